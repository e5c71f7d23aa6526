"""Values of jobs, runs and devices in a few words."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime, tzinfo
from types import MappingProxyType
from typing import TYPE_CHECKING

from gpuqueue.clock import SystemClock, from_epoch_ms
from gpuqueue.lazy.imports import later
from gpuqueue.model.device import Activity, Device, DeviceFilter, memory_errors_in_words
from gpuqueue.model.job import Job, WaitReason
from gpuqueue.model.job_spec import ASKED, Checkout, JobSpec
from gpuqueue.model.placement import Placement
from gpuqueue.model.run import Run, RunDevice
from gpuqueue.text.sanitize import plain, short
from gpuqueue.text.units import format_bytes, format_duration

if TYPE_CHECKING:
    from gpuqueue.model import mem_source, xids
    from gpuqueue.model.calendar import CalendarReservation
    from gpuqueue.model.job_values import Metric, Reported
    from gpuqueue.queue.lease import DeviceStatus
else:
    mem_source = later("gpuqueue.model.mem_source")
    xids = later("gpuqueue.model.xids")  # few devices have such errors

#: Reasons of a job that waits for a point in time.
_OF_ITS_TIME = {WaitReason.BEGIN, WaitReason.RETRY, WaitReason.REQUEUE}
#: The time zone of the reader; None: that of this process.
_ZONE: ContextVar[tzinfo | None] = ContextVar("zone", default=None)


def percent(share: float | None) -> str:
    """Return a share from 0 to 1 in percent; ``-`` for None."""
    return "-" if share is None else f"{100 * share:.0f} %"


def figure(value: float | None) -> str:
    """Return a number with at most six digits; ``-`` for None."""
    return "-" if value is None else f"{value:.6g}"


def metric_in_words(metric: Metric) -> str:
    """Return the last value of a metric, and its least and largest ones with their steps if there are several."""
    words = f"{metric.name} {_reported(metric.last)}"
    if metric.count == 1 or metric.min is None or metric.max is None:
        return words
    return f"{words}, min {_reported(metric.min)}, max {_reported(metric.max)}, {metric.count} values"


def stop_rules(spec: JobSpec) -> list[str]:
    """Return when a worker ends a run of the job because it looks wrong."""
    silent_s = spec.stop_when_stalled_s
    return [
        *(["once a metric is no number"] if spec.stop_on_nan else []),
        *([f"after {format_duration(silent_s)} without output and use of its devices"] if silent_s else []),
    ]


def _reported(reported: Reported) -> str:
    at = "" if reported.step is None else f" at step {reported.step}"
    return f"{figure(float(reported.value))}{at}"


def hours(seconds: float) -> str:
    """Return *seconds* in hours, with fewer decimals for larger values; ``<0.01`` for a very small one."""
    number = seconds / 3600
    if not number:
        return "0"
    if number < 0.01:  # noqa: PLR2004 - half a minute
        return "<0.01"
    return f"{number:.0f}" if number >= 100 else f"{number:.1f}" if number >= 1 else f"{number:.2f}"  # noqa: PLR2004 - three digits


def priority_of(job: Job) -> str:
    """Return the priority of the job, and the one that aging has promoted it to: ``priority low, promoted to high``."""
    return f"priority {job.spec.priority}" + (f", promoted to {job.promoted}" if job.promoted is not None else "")


def devices_of(run: Run | None) -> str:
    """Return the host and the device indexes of a run: ``nodeA:0,1``; ``-`` if it has no devices."""
    return "-" if run is None or not run.devices else place_of(run.host, run.devices)


def place_of(host: str, devices: Iterable[Device | RunDevice]) -> str:
    """Return the host and the indexes of *devices*, all of that host: ``nodeA:0,1``."""
    return plain(f"{host}:{','.join(map(device_label, devices))}")


def device_label(device: Device | RunDevice) -> str:
    """Return the index of a device, ``cpu`` for the CPU, or the UUID if the index is unknown."""
    if device.kind is not None and not device.kind.is_gpu:
        return device.kind.value  # cpu, or the engine
    return str(device.index) if device.index is not None else plain(device.uuid)


#: What a person does about :func:`without_processes`.
PID_HOST = "in a container: docker run --pid=host, or pid: host in compose"
#: What a person does about :func:`without_gpu`.
REPAIR_OR_CPU = (
    "repair the driver; on a machine without a GPU: gpuqueue down, then gpuqueue up --devices cpu, or for good "
    "GPUQUEUE_DEVICES=cpu"
)


def without_gpu(status: DeviceStatus) -> str | None:
    """Return why a host serves its CPU in place of GPUs, and which jobs run there; None for any other device."""
    if status.device.no_gpu is None and not status.lost_gpus:
        return None
    none = f"no NVIDIA GPU found on {plain(status.host)}: {plain(status.device.no_gpu or 'no reason is known')}"
    if status.lost_gpus:
        return f"{none}; it has served GPUs before, so jobs without --device wait for one"
    return f"{none}; jobs run on the CPU"


def without_processes(status: DeviceStatus) -> str | None:
    """Return that the driver does not list the processes of the host on this device; None if it does."""
    if not status.device.unlisted:
        return None
    where = f"{plain(status.host)} device {device_label(status.device)}"
    return f"{where}: the driver does not list the processes of this host, so runs have no peak"


def end_in_words(status: DeviceStatus) -> str | None:
    """Return when a device takes no job any more; None without an end."""
    return None if status.ends_at is None else f"ends at {short_time(status.ends_at)}"


def users_of(reservation: CalendarReservation) -> str:
    """Return the users of a reservation: ``ann and bob``."""
    return " and ".join(map(plain, reservation.users))


def reserved_in_words(status: DeviceStatus) -> str | None:
    """Return for which users people have reserved a device now or next, and the time; None for nobody."""
    if not status.calendar:
        return None
    first = status.calendar[0]
    holds = first.holds(SystemClock().now())
    when = f"until {short_time(first.ends_at)}" if holds else f"from {short_time(first.begins_at)}"
    return f"reserved for {users_of(first)} {when}"


def closed_in_words(status: DeviceStatus, *, silent: bool) -> str | None:
    """Return why no job is given all the free memory of a device, in a few words; None if jobs are."""
    reserved = status.reservation
    reasons = (
        (silent, "its worker is silent"),
        (status.trouble is not None, "it takes no jobs now"),
        (status.external_bytes is None, "its use by others is unknown"),
        (bool(status.drains), "it is drained"),
        (status.exclusive, "one job has it for itself"),
        (len(status.holdings) >= status.slots, f"it runs as many jobs as it may: {status.slots}"),
        (any(each.holds(SystemClock().now()) for each in status.calendar), f"it is {reserved_in_words(status)}"),
        (reserved is not None, f"it is reserved for job {reserved.job_id if reserved is not None else ''}"),
    )
    return next((words for holds, words in reasons if holds), None)


def device_errors(status: DeviceStatus) -> Iterator[str]:
    """Yield a phrase about the memory errors of a device, if there are any, and one about its last Xid error."""
    errors = memory_errors_in_words(status.memory_errors, status.retired_rows, status.retirement)
    if errors:
        yield errors
    if status.xids:
        earlier = f", and {len(status.xids) - 1} before" if len(status.xids) > 1 else ""
        yield f"{xids.in_words(status.xids[-1])}, at {when(status.xids[-1].at)}{earlier}"


def missing_devices(job: Job, served: Container[str]) -> str | None:
    """Return which devices that *job* names are not among those that are *served*; None if enough of them are."""
    named = job.spec.placement.devices
    missing = [plain(uuid) for uuid in named if uuid not in served]
    if not missing or len(named) - len(missing) >= job.spec.gpus:
        return None
    which = "is missing: no worker serves it" if len(missing) == 1 else "are missing: no worker serves them"
    return f"{', '.join(missing)}, which the job names, {which}. Name others: gpuqueue edit {job.label} --device"


def asked_of(job: Job) -> str:
    """Return the memory that a job requests: ``6G``, or ``2x6G`` on two devices, or ``8 GPUs`` of an engine."""
    if job.spec.is_whole:
        return f"{job.spec.gpus} GPU{'s' if job.spec.gpus > 1 else ''}"
    size = size_of(job.spec)
    return f"{job.spec.gpus}x{size}" if job.spec.gpus > 1 else size


def size_of(spec: JobSpec) -> str:
    """Return the memory that a job requests on each device: ``6G``, or ``all`` for the whole device."""
    return "all" if spec.placement.whole else format_bytes(spec.mem_bytes)


def asked_in_words(spec: JobSpec, device_names: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return the memory and the devices that a job requests: ``6G on each of 2 GPUs, alone there, in pool big``.

    *device_names* are names of devices by their UUIDs.
    """
    if spec.is_whole:
        return f"{places_of(spec)}{f', in pool {plain(spec.pool)}' if spec.pool else ''}"
    where = f"{'each of ' if spec.gpus > 1 else ''}{places_of(spec)}{put_of(spec.placement, device_names)}"
    pool = f", in pool {plain(spec.pool)}" if spec.pool else ""
    cap = "" if spec.cap else ", and it may use more"
    expected = spec.expected_utilisation
    busy = "" if expected is None else f", expected to be busy {percent(expected)} of the time"
    return f"{size_of(spec)}{source_of(spec)} on {where}{pool}{cap}{busy}"


def source_of(spec: JobSpec) -> str:
    """Return where the memory came from, to follow `size_of`: `` (learned from 12 runs …)``; empty if it was asked."""
    source = mem_source.MemSource.known(spec.mem_source) if spec.mem_source not in {None, ASKED} else None
    return "" if source is None else f" ({source.words})"


def wants_of(spec: JobSpec) -> str:
    """Return the requested devices in one or two words: their kind or model, ``named``, ``alone``."""
    if spec.placement.devices:
        words = ["named"]
    else:
        words = [short("|".join(spec.placement.models), 16)] if spec.placement.models else [str(spec.device or "")]
    return " ".join([*words, "alone"] if spec.placement.exclusive else words).strip()


def put_of(placement: Placement, device_names: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return the device filter and placement of a job, to follow `places_of`: ``, alone there, of type A100``.

    *device_names* are names of devices by their UUIDs.
    """
    words = ["alone there"] if placement.exclusive else []
    if placement.models:
        words.append(f"of type {' or '.join(placement.models)}")
    if placement.devices:
        names = (device_names.get(each, each) for each in placement.devices)
        words.append(f"{'among' if len(placement.devices) > 1 else 'only'} {', '.join(names)}")
    if placement.preference is not None:
        words.append(f"placed by {placement.preference}")
    return plain("".join(f", {each}" for each in words))


def places_of(spec: JobSpec) -> str:
    """Return the requested number and kind of devices: ``2 GPUs``, ``the CPU``, ``1 device, GPU or CPU``."""
    if spec.device is DeviceFilter.CPU:
        return "the CPU"
    if spec.is_whole:
        nodes = 1 if spec.nodes is None else spec.nodes
        gpus = f"{spec.gpus} GPU{'s' if spec.gpus > 1 else ''}"
        return f"{gpus} on {nodes} node{'s' if nodes > 1 else ''} of {str(spec.device).capitalize()}"
    noun = "GPU" if spec.device is DeviceFilter.GPU else "device"
    either = spec.device is DeviceFilter.ANY and not spec.placement.devices  # a named device has one kind
    return f"{spec.gpus} {noun}{'s' if spec.gpus > 1 else ''}" + (", GPU or CPU" if either else "")


def checkout_of(git: Checkout) -> str:
    """Return commit, branch and state of a git checkout: ``3442fefc16a1 on main, nothing changed``."""
    changes = {True: "with changes that are not committed", False: "nothing changed", None: "changes not known"}
    return f"{git.commit[:12]}" + (f" on {plain(git.branch)}" if git.branch else "") + f", {changes[git.dirty]}"


def code_of_retry(spec: JobSpec) -> str:
    """Return which code a job runs that runs the job of *spec* again."""
    if spec.snapshot is None:
        return (
            f"It runs the files in {plain(spec.cwd)} as they are when it starts, so what you have changed there counts."
        )
    newer = "submit it as a new script" if spec.is_from_page else "type gpuqueue submit in its directory"
    return (
        "It runs the copy of the code that was made at the first submission. What was changed since then does not "
        f"count: to run changed code, {newer}."
    )


def retried_in_words(spec: JobSpec, array_id: int) -> str:
    """Return what a retry with *spec* makes, which of the array *array_id* has the failed members only."""
    if spec.array is None:
        return "The same command with the same variables becomes a new job of yours."
    count = len(spec.array)
    which = "The failed member" if count == 1 else f"The {count} failed members"
    become = "becomes" if count == 1 else "become"
    return f"{which} of array {array_id} {become} a new array of yours, with the same command and variables."


def more_mem_in_words(had_bytes: int, mem_bytes: int) -> str:
    """Return that a form for a retry asks for more memory than the job had."""
    return f"It ran out of memory with {format_bytes(had_bytes)}, so {format_bytes(mem_bytes)} is in the field now."


def use_in_words(spec: JobSpec) -> str:
    """Return the memory that a job asked for, and whether it may use more: ``asked for 6G, the most it may use``."""
    alone = "alone on its device" if spec.gpus == 1 else "alone on its devices"
    most = alone if spec.placement.exclusive else "the most it may use" if spec.cap else "may use more"
    return f"asked for {format_bytes(spec.mem_bytes)}, {most}"


def peak_of(run: Run | None) -> str:
    """Return a run's peak memory, or ``-`` if it was not measured."""
    return format_bytes(run.peak_bytes if run else None)


def waits_for(job: Job, now: datetime) -> str:
    """Return why a job waits, in a few words: ``memory``, ``job 12 and 3 more``, ``retry in 40s``.

    A job whose run asked to be requeued is no retry: ``again in 4.0s``.
    """
    if job.reason is WaitReason.DEPENDENCY and job.awaits:
        more = len(job.awaits) - 1
        return f"job {job.awaits[0].job_id}" + (f" and {more} more" if more else "")
    words = str(job.reason).replace("_", " ") if job.reason else ""
    if job.reason is WaitReason.REQUEUE:
        words = "again"
    if job.begins_at is not None and job.reason in _OF_ITS_TIME:
        words += f" in {format_duration(float(max(0, round((job.begins_at - now).total_seconds()))))}"
    return words


def activity_lines(activity: Activity) -> Iterator[str]:
    """Yield a line about the device during the run, and a line about the use by the run alone, if there are any."""
    words = []
    if activity.first_memory_s is not None:
        words.append(f"first memory after {format_duration(activity.first_memory_s)}")
    if activity.utilisation_mean is not None and activity.utilisation_max is not None:
        words.append(f"busy {percent(activity.utilisation_mean)} (at most {percent(activity.utilisation_max)})")
    if activity.temperature_max_c is not None:
        words.append(f"at most {activity.temperature_max_c:.0f} °C")
    if words:
        yield ", ".join(words)
    figures = (
        ("utilisation", activity.own_utilisation_mean, activity.own_utilisation_p95),
        ("memory bandwidth", activity.own_bandwidth_mean, activity.own_bandwidth_p95),
    )
    own = [
        f"{name} {percent(mean)} (95th percentile {percent(high)})"
        for name, mean, high in figures
        if mean is not None and high is not None
    ]
    if own:
        yield f"by this run: {', '.join(own)}"


def limits_in_words(limits: Mapping[str, int]) -> str:
    """Return what a run got of its host, such as ``4 threads a library (OMP_NUM_THREADS), 1048576 open files``."""
    words = []
    if "threads" in limits:
        threads = "1 thread" if limits["threads"] == 1 else f"{limits['threads']} threads"
        words.append(f"{threads} a library (OMP_NUM_THREADS)")
    if "open_files" in limits:
        words.append(f"{limits['open_files']} open files")
    return ", ".join(words)


@contextmanager
def in_zone(zone: tzinfo | None) -> Iterator[None]:
    """Write the times of this block in *zone*. The service answers readers of other zones than its own."""
    before = _ZONE.set(zone)
    try:
        yield
    finally:
        _ZONE.reset(before)


def local(moment: datetime) -> datetime:
    """Return *moment* in the time zone of the reader."""
    return moment.astimezone(_ZONE.get())


def when(moment: datetime | None) -> str:
    """Return *moment* in local time, to the second; ``-`` for None."""
    return f"{local(moment):%Y-%m-%d %H:%M:%S}{_offset(moment)}" if moment else "-"


def clock(at_ms: int) -> str:
    """Return a time of the store's clock, in milliseconds since the epoch, as :func:`when` does."""
    return when(from_epoch_ms(at_ms))


def short_time(moment: datetime) -> str:
    """Return a local time, without the date if it is today."""
    at = local(moment)
    text = f"{at:%H:%M}" if at.date() == local(SystemClock().now()).date() else f"{at:%Y-%m-%d %H:%M}"
    return text + _offset(moment)


def _offset(moment: datetime) -> str:
    """Return the offset of a time in the hour that comes twice when clocks go back, `` +0100``; else nothing."""
    zone, at = _ZONE.get(), local(moment)
    both = {at.replace(tzinfo=zone, fold=fold).astimezone(zone).utcoffset() for fold in (0, 1)}
    return f"{at: %z}" if len(both) > 1 else ""
