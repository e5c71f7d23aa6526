"""The metrics that are read of the store: their names, labels and help texts.

Names follow Prometheus' conventions: base units, and the unit at the end. A value that is unknown is left out. No label
holds a job, a path or a command. Texts from other hosts are sanitised and cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.metrics_core import Metric

from gpuqueue.model.device import is_heat
from gpuqueue.model.job import WaitReason
from gpuqueue.model.measures import Use
from gpuqueue.queue.lease import DeviceStatus
from gpuqueue.service.metrics.figures import MOST_DEVICES, MOST_USERS, StoreFigures
from gpuqueue.text.sanitize import plain
from gpuqueue.version import VERSION

#: Longest value of a label, in characters.
MOST_LABEL = 100

#: What a worker's last sample says of a device. None: unknown, or the device is silent. Name, help text, value.
_Figure = tuple[str, str, Callable[[DeviceStatus], float | None]]
_SAMPLED: tuple[_Figure, ...] = (
    (
        "memory_used_bytes",
        "Memory that the jobs of the queue use.",
        lambda device: sum(each.observed_bytes for each in device.holdings),
    ),
    (
        "memory_external_bytes",
        "Memory that counts as that of external processes.",
        lambda device: device.external_bytes,
    ),
    ("memory_free_bytes", "Memory that a new job can be allocated.", lambda device: device.free_bytes),
    (
        "utilisation_ratio",
        "Share of time in which the device was busy, from 0 to 1.",
        lambda device: device.utilisation,
    ),
    ("temperature_celsius", "Temperature.", lambda device: device.temperature_c),
    ("power_watts", "Power that the device draws.", lambda device: device.power_w),
    ("hot", "1 if the device takes no new job because it is too hot.", lambda device: float(is_heat(device.trouble))),
    ("in_trouble", "1 if its worker gives it no new job: heat, or no answer.", lambda device: bool(device.trouble)),
)
#: What the store itself knows of a device.
_KNOWN: tuple[_Figure, ...] = (
    ("memory_capacity_bytes", "Memory of the device.", lambda device: device.device.total_bytes),
    ("memory_headroom_bytes", "Memory that is never allocated.", lambda device: device.headroom_bytes),
    ("memory_allocated_bytes", "Memory that is allocated to jobs.", lambda device: device.allocated_bytes),
    ("jobs", "Jobs that hold the device.", lambda device: len(device.jobs)),
    ("drained", "1 if the device is drained.", lambda device: bool(device.drains)),
    ("reserved", "1 if the device is reserved for a job that waits.", lambda device: bool(device.reservation)),
)
_DEVICE = ("host", "device", "uuid")


def store_families(found: StoreFigures, *, silent_s: float) -> Iterator[Metric]:
    """Yield the metrics of *found*. Devices that were silent for *silent_s* seconds are reported without samples."""
    yield from _jobs(found)
    yield _one("gpuqueue_recorder_backlog_events", "Events that wait for the history database.", found.unrecorded)
    lag_s = found.unrecorded_s or 0.0
    yield _one("gpuqueue_recorder_lag_seconds", "Age of the oldest event that waits for the history database.", lag_s)
    yield CounterMetricFamily(
        "gpuqueue_reserved_idle_device_seconds",
        "Time for which devices were idle because they were reserved, since the store was opened.",
        value=found.reserved_idle_device_s,
    )
    devices = found.devices[:MOST_DEVICES]
    yield from _devices(devices, silent_s)
    yield from _hosts(devices)
    not_shown = len(found.devices) - len(devices)
    yield _one("gpuqueue_devices_not_shown", f"Devices beyond the {MOST_DEVICES} that are reported.", not_shown)
    if found.users is not None:
        yield from _users(found.users)


def general_families(up: Mapping[str, bool], took_s: Mapping[str, float | None]) -> Iterator[Metric]:
    """Yield the version, what is *up*, and how long the last read of each source took."""
    info = InfoMetricFamily("gpuqueue_build", "Version of the service.")
    info.add_metric((), {"version": VERSION})
    yield info
    for source, name in (("store", "the store"), ("history", "the history database")):
        yield _one(f"gpuqueue_{source}_up", f"1 if {name} answers, else 0.", float(up[source]))
    took = GaugeMetricFamily(
        "gpuqueue_read_duration_seconds", "Duration of the last read for metrics.", labels=("source",)
    )
    for source, duration_s in took_s.items():
        if duration_s is not None:
            took.add_metric((source,), duration_s)
    yield took


def _jobs(found: StoreFigures) -> Iterator[Metric]:
    counts = found.census
    states = GaugeMetricFamily("gpuqueue_jobs", "Jobs by state. Each member of an array counts.", labels=("state",))
    for state, count in counts.states().items():
        states.add_metric((state.value,), count)
    yield states
    reasons = GaugeMetricFamily("gpuqueue_jobs_waiting", "Jobs queued or held, by why they wait.", labels=("reason",))
    for reason in WaitReason:
        reasons.add_metric((reason.value,), counts.waiting.get(reason, 0))
    yield reasons
    yield _one("gpuqueue_jobs_idle", "Running jobs that are marked as idle: no use of their devices.", counts.idle)
    help_text = "Jobs that wait beyond what one scrape counts, in no state and of no reason above."
    yield _one("gpuqueue_jobs_not_counted", help_text, counts.not_counted)


def _devices(devices: Sequence[DeviceStatus], silent_s: float) -> Iterator[Metric]:
    info = InfoMetricFamily("gpuqueue_device", "A device, with its model, kind and pool.", labels=_DEVICE)
    for each in devices:
        more = {"model": each.device.name, "kind": each.device.kind.value, "pool": each.pool}
        info.add_metric(_labels(each), {name: label(text) for name, text in more.items()})
    yield info
    awake = [each for each in devices if each.seen_s_ago <= silent_s]
    for figures, some in ((_KNOWN, devices), (_SAMPLED, awake)):
        for name, help_text, value_of in figures:
            family = GaugeMetricFamily(f"gpuqueue_device_{name}", help_text, labels=_DEVICE)
            for each in some:
                value = value_of(each)
                if value is not None:
                    family.add_metric(_labels(each), float(value))
            yield family


def _hosts(devices: Sequence[DeviceStatus]) -> Iterator[Metric]:
    silence = GaugeMetricFamily("gpuqueue_host_silence_seconds", "Time since the last heartbeat.", labels=("host",))
    refused = GaugeMetricFamily(
        "gpuqueue_host_refused_jobs", "Jobs in a row that the host could not start.", labels=("host",)
    )
    hosts: dict[str, list[DeviceStatus]] = {}
    for each in devices:
        hosts.setdefault(label(each.host), []).append(each)
    for host, its_devices in hosts.items():
        silence.add_metric((host,), min(each.seen_s_ago for each in its_devices))
        refused.add_metric((host,), max(each.refusals.jobs if each.refusals else 0 for each in its_devices))
    yield from (silence, refused)


def _users(users: Mapping[str, Use]) -> Iterator[Metric]:
    def size(user: str) -> tuple[int, int, str]:
        return -users[user].running_mem, -users[user].queued_jobs, user

    figures: tuple[tuple[str, str, Callable[[Use], int]], ...] = (
        ("jobs_running", "Jobs of a user that hold devices.", lambda use: use.running_jobs),
        ("jobs_waiting", "Jobs of a user that are queued or held.", lambda use: use.queued_jobs),
        ("devices", "Devices that the jobs of a user hold.", lambda use: use.running_gpus),
        ("memory_allocated_bytes", "Memory that is allocated to the jobs of a user.", lambda use: use.running_mem),
    )
    shown = sorted(users, key=size)[:MOST_USERS]
    for name, help_text, value_of in figures:
        family = GaugeMetricFamily(f"gpuqueue_user_{name}", help_text, labels=("user",))
        for user in shown:
            family.add_metric((label(user),), value_of(users[user]))
        yield family
    not_shown = len(users) - len(shown)
    yield _one("gpuqueue_users_not_shown", f"Users beyond the {MOST_USERS} that are reported.", not_shown)


def _labels(status: DeviceStatus) -> tuple[str, ...]:
    return label(status.host), str(status.device.index), label(status.device.uuid)


def label(text: str) -> str:
    """Return *text* as the value of a label: printable, without half characters, and not too long."""
    return plain(text).encode("utf-8", "replace").decode("utf-8")[:MOST_LABEL]


def _one(name: str, help_text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, help_text, value=value)
