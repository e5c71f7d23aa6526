"""The metrics of the site: their names and help texts, the text that a scrape gets, and what of the site answers.

A scrape reads the store and the history at most every FRESH_S seconds, however many scrapers there are, and never in
the threads that serve requests. It waits a bounded time for either, and says which of them is away.

Names follow Prometheus' conventions: base units, and the unit at the end. A value that is unknown is left out. No label
holds a job, a path or a command. Texts from other hosts are sanitised and cut.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import closing
from functools import partial
from typing import Any, Generic, TypeVar

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gpuqueue.engines.engine import Phase
from gpuqueue.errors import GpuQueueError, StoreNotReady
from gpuqueue.history.database import HistoryDatabase
from gpuqueue.history.queries import Position, RecordedEvent
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.device import is_heat
from gpuqueue.model.event import Act
from gpuqueue.model.job import WaitReason
from gpuqueue.model.measures import Use
from gpuqueue.model.run import EndingKind, StartKind
from gpuqueue.queue.census import Census, census
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.queue.lease import SILENT_HEARTBEATS, DeviceStatus
from gpuqueue.settings.settings import Settings
from gpuqueue.text.sanitize import plain
from gpuqueue.version import VERSION

log = logging.getLogger(__name__)
T = TypeVar("T")

#: How long a result is used again, in seconds. More scrapes than that cost the store and the history nothing.
FRESH_S = 5.0
#: How long a scrape waits for a read, in seconds. Prometheus itself waits 10 s by default.
WAIT_S = 3.0
#: Threads for reads: one for each reader. And threads that identify scrapers and write the text.
READ_THREADS, SCRAPE_THREADS = 4, 2
#: Events of one read of the history, and most reads for one scrape.
EVENTS, READS = 2000, 5
#: Upper bounds of waits, in seconds: from a second to a week.
WAITS_S = (1, 5, 15, 60, 300, 900, 3600, 4 * 3600, 12 * 3600, 86400, 3 * 86400, 7 * 86400)
#: The outcomes of runs that exited by themselves; the others are the kinds of endings.
SUCCEEDED, FAILED = "succeeded", "failed"
_UNKNOWN = "unknown"
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
    (
        "memory_errors",
        "Memory errors that could not be corrected, since the driver started.",
        lambda device: device.memory_errors,
    ),
    ("retired_rows", "Rows or pages of memory that the device has retired.", lambda device: device.retired_rows),
    (
        "last_xid",
        "Number of the last Xid error that the driver reported since the worker started.",
        lambda device: device.xids[-1].code if device.xids else None,
    ),
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
#: Most devices and users that are reported one by one.
MOST_DEVICES, MOST_USERS = 1024, 200
#: Upper bounds of the latency, in seconds. A long poll takes up to a minute.
BUCKETS_S = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0)
#: Methods with a label of their own. A client can send any word.
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
#: The route of a request that no route serves.
UNKNOWN_ROUTE = "none"


# It would be a second series for each counter, which nobody reads.
prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call] # it has no types


class _Read(Collector):
    """The metrics of the last read."""

    def __init__(self) -> None:
        self.families: list[Metric] = []

    def collect(self) -> Iterable[Metric]:
        """Return them."""
        return self.families


class Metrics:
    """All metrics of one service. ``close`` ends its threads."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._registry = CollectorRegistry()
        self._read = _Read()
        self._registry.register(self._read)
        ProcessCollector(registry=self._registry)
        self.requests = RequestTimes(self._registry)
        self.pilots = PilotFigures(self._registry)
        self._queue = JobQueue.of(settings)
        self._database = HistoryDatabase(settings.database_url)
        counters = RecordedCounters(self._registry, self._database)
        self._readers = ThreadPoolExecutor(READ_THREADS, thread_name_prefix="metrics-read")
        self._scrapes = ThreadPoolExecutor(SCRAPE_THREADS, thread_name_prefix="metrics-scrape")
        self._store: Reader[StoreFigures] = Reader(partial(store_figures, self._queue, settings), self._readers)
        self._history: Reader[bool] = Reader(counters.advance, self._readers)
        self._store_answers: Reader[bool] = Reader(partial(is_open, settings), self._readers)
        self._history_answers: Reader[bool] = Reader(self._probe_history, self._readers)
        #: Content type -> when the text was written, and the text.
        self._written: dict[str, tuple[float, bytes]] = {}
        self._writing = asyncio.Lock()
        self._render_lock = threading.Lock()

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Call *work* in a thread that serves no requests."""
        return await asyncio.get_running_loop().run_in_executor(self._scrapes, work)

    async def text(self, accept: str) -> tuple[bytes, str]:
        """Return all metrics in the format that *accept*, a header, asks for, and its content type."""
        encode, content_type = choose_encoder(accept)
        async with self._writing:
            at_s, content = self._written.get(content_type, (float("-inf"), b""))
            if time.monotonic() - at_s >= FRESH_S:
                store, history = await asyncio.gather(self._store.reading(), self._history.reading())
                content = await self.in_thread(lambda: self._render(encode, store, history))
                self._written[content_type] = time.monotonic(), content
        return content, content_type

    async def away(self) -> list[str]:
        """Return what does not answer: the store, the history."""
        found = await asyncio.gather(self._store_answers.reading(), self._history_answers.reading())
        return [name for name, reading in zip(("store", "history"), found, strict=True) if not reading.is_there]

    def close(self) -> None:
        """End the threads, after the reads that are being made, and close the connections."""
        self._readers.shutdown()
        self._scrapes.shutdown()
        self._queue.close()
        self._database.close()

    def _probe_history(self) -> bool:
        self._database.cursor()
        return True

    def _render(
        self, encode: Callable[[CollectorRegistry], bytes], store: Reading[StoreFigures], history: Reading[bool]
    ) -> bytes:
        up = {"store": store.is_there, "history": history.is_there}
        families = list(general_families(up, {"store": store.took_s, "history": history.took_s}))
        if store.value is not None:
            silent_s = SILENT_HEARTBEATS * self._settings.heartbeat_s
            families += store_families(store.value, silent_s=silent_s)
        with self._render_lock:
            self._read.families = families
            return encode(self._registry)


class RecordedCounters:
    """The counters of what was recorded since this service started.

    They come from the events that the recorder has written to the history. Each event is counted once. The counters
    begin at 0 when the service starts, which Prometheus takes for a reset of a counter. While the history is away they
    stay as they are, and afterwards they catch up.
    """

    def __init__(self, registry: CollectorRegistry, database: HistoryDatabase) -> None:
        self._database = database
        self._position: Position | None = None
        self._lock = threading.Lock()
        self._submitted = Counter("gpuqueue_jobs_submitted", "Jobs submitted. An array counts once.", registry=registry)
        self._claims = Counter(
            "gpuqueue_claims", "Claims of jobs, by how they came about.", ("start",), registry=registry
        )
        self._released = Counter("gpuqueue_claims_released", "Claims that did not become runs.", registry=registry)
        self._preempted = Counter("gpuqueue_preemptions", "Runs that were asked to make room.", registry=registry)
        self._ended = Counter("gpuqueue_runs_ended", "Runs that ended, by outcome.", ("outcome",), registry=registry)
        self._waits = Histogram(
            "gpuqueue_job_wait_seconds",
            "Time from the submit of a job to the start of its first run.",
            buckets=WAITS_S,
            registry=registry,
        )
        for start in (*map(str, StartKind), _UNKNOWN):
            self._claims.labels(start)
        for outcome in (SUCCEEDED, FAILED, *(str(kind) for kind in EndingKind if kind is not EndingKind.EXITED)):
            self._ended.labels(outcome)

    def advance(self) -> bool:
        """Count what was recorded since the last call, and return True.

        Raises:
            HistoryUnreachable: the history does not answer. The next call goes on from the same event.

        """
        with self._lock:
            if self._position is None:
                self._position = self._database.recorded_position()
            for _ in range(READS):
                events, self._position, is_more = self._database.recorded_events(self._position, EVENTS)
                for event in events:
                    self._count(event)
                if not is_more:
                    break
        return True

    def _count(self, event: RecordedEvent) -> None:
        if event.act is Act.SUBMIT:
            self._submitted.inc()
        elif event.act is Act.CLAIM:
            self._claims.labels(str(event.start_kind or _UNKNOWN)).inc()
        elif event.act is Act.RELEASE_CLAIM:
            self._released.inc()
        elif event.act is Act.PREEMPT:
            self._preempted.inc()
        elif event.act is Act.STARTED and event.wait_s is not None:
            self._waits.observe(event.wait_s)
        elif event.act in {Act.FINISH, Act.LOSE}:
            self._ended.labels(outcome_of(event)).inc()


def outcome_of(event: RecordedEvent) -> str:
    """Return the outcome of the run that *event* ended."""
    if event.ending is EndingKind.EXITED:
        return FAILED if event.exit_code else SUCCEEDED
    return str(event.ending or EndingKind.LOST)


def store_families(found: StoreFigures, *, silent_s: float) -> Iterator[Metric]:
    """Yield the metrics of *found*. Devices that were silent for *silent_s* seconds are reported without samples."""
    yield from _jobs(found)
    yield _gauge("gpuqueue_recorder_backlog_events", "Events that wait for the history database.", found.unrecorded)
    lag_s = found.unrecorded_s or 0.0
    yield _gauge("gpuqueue_recorder_lag_seconds", "Age of the oldest event that waits for the history database.", lag_s)
    yield CounterMetricFamily(
        "gpuqueue_reserved_idle_device_seconds",
        "Time for which devices were idle because they were reserved, since the store was opened.",
        value=found.reserved_idle_device_s,
    )
    devices = found.devices[:MOST_DEVICES]
    yield from _devices(devices, silent_s)
    yield from _hosts(devices)
    not_shown = len(found.devices) - len(devices)
    yield _gauge("gpuqueue_devices_not_shown", f"Devices beyond the {MOST_DEVICES} that are reported.", not_shown)
    if found.users is not None:
        yield from _users(found.users)


def general_families(up: Mapping[str, bool], took_s: Mapping[str, float | None]) -> Iterator[Metric]:
    """Yield the version, what is *up*, and how long the last read of each source took."""
    info = InfoMetricFamily("gpuqueue_build", "Version of the service.")
    info.add_metric((), {"version": VERSION})
    yield info
    for source, name in (("store", "the store"), ("history", "the history database")):
        yield _gauge(f"gpuqueue_{source}_up", f"1 if {name} answers, else 0.", float(up[source]))
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
    yield _gauge("gpuqueue_jobs_idle", "Running jobs that are marked as idle: no use of their devices.", counts.idle)
    help_text = "Jobs that wait beyond what one scrape counts, in no state and of no reason above."
    yield _gauge("gpuqueue_jobs_not_counted", help_text, counts.not_counted)


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
    yield _gauge("gpuqueue_users_not_shown", f"Users beyond the {MOST_USERS} that are reported.", not_shown)


def _labels(status: DeviceStatus) -> tuple[str, ...]:
    return label(status.host), str(status.device.index), label(status.device.uuid)


def label(text: str) -> str:
    """Return *text* as the value of a label: printable, without half characters, and not too long."""
    return plain(text).encode("utf-8", "replace").decode("utf-8")[:MOST_LABEL]


def _gauge(name: str, help_text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, help_text, value=value)


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading(Generic[T]):
    """The result of a read: None if the read failed, or is not over yet. ``took_s`` is None for the latter."""

    value: T | None = None
    took_s: float | None = None

    @property
    def is_there(self) -> bool:
        """Return whether what was asked has answered."""
        return self.value is not None


class Reader(Generic[T]):
    """Calls *read* in a thread of *pool* when its last result is too old. Belongs to one event loop.

    At most one read goes on at a time, so that a slow store or history holds up nobody.
    """

    def __init__(self, read: Callable[[], T], pool: Executor) -> None:
        self._read, self._pool = read, pool
        self._running: asyncio.Future[Reading[T]] | None = None
        self._last: Reading[T] = Reading()
        self._read_at_s = float("-inf")

    async def reading(self) -> Reading[T]:
        """Return a reading that is at most FRESH_S old, without a value if that takes longer than WAIT_S.

        All callers wait for the same read.
        """
        running = self._running
        if running is None:
            if time.monotonic() - self._read_at_s < FRESH_S:
                return self._last
            running = self._running = asyncio.get_running_loop().run_in_executor(self._pool, self._timed)
            running.add_done_callback(self._finished)
        await asyncio.wait({running}, timeout=WAIT_S)
        return _result(running) if running.done() else Reading()

    def _timed(self) -> Reading[T]:
        start_s = time.monotonic()
        try:
            value = self._read()
        except GpuQueueError:  # it is away, which the metrics say; the log of the service has the reason already
            value = None
        return Reading(value=value, took_s=time.monotonic() - start_s)

    def _finished(self, done: asyncio.Future[Reading[T]]) -> None:
        self._running, self._read_at_s, self._last = None, time.monotonic(), _result(done)
        if not done.cancelled() and done.exception() is not None:
            log.error("a read for the metrics failed", exc_info=done.exception())


def _result(done: asyncio.Future[Reading[T]]) -> Reading[T]:
    return Reading() if done.cancelled() or done.exception() is not None else done.result()


@dataclass(frozen=True, kw_only=True, slots=True)
class StoreFigures:
    """The figures of one moment. ``unrecorded_s`` is None if no event waits for the history.

    ``users`` is None unless the setting ``metrics_users`` is on.
    """

    census: Census
    devices: tuple[DeviceStatus, ...]
    unrecorded: int
    unrecorded_s: float | None
    reserved_idle_device_s: float
    users: Mapping[str, Use] | None


def store_figures(queue: JobQueue, settings: Settings) -> StoreFigures:
    """Return the figures of the store.

    Raises:
        StoreUnreachable: the store does not answer.
        StoreNotReady: the store answers that it cannot serve.

    """
    if queue.epoch() is None:
        raise StoreNotReady("the store is not open")
    unrecorded, unrecorded_s = queue.outbox.backlog()
    return StoreFigures(
        census=census(queue),
        devices=tuple(queue.devices.all()),
        unrecorded=unrecorded,
        unrecorded_s=unrecorded_s,
        reserved_idle_device_s=queue.maintenance.reserved_idle_device_s(),
        users=queue.rules.uses() if settings.metrics_users else None,
    )


def is_open(settings: Settings) -> bool:
    """Return True if the store answers and is open; it never returns False.

    Raises:
        StoreUnreachable: the store does not answer.
        StoreNotReady: the store answers that it cannot serve.

    """
    with closing(JobQueue.of(settings)) as queue:
        if queue.epoch() is None:
            raise StoreNotReady("the store is not open")
    return True


class RequestTimes:
    """The figures of all requests, by the template of the route: never by the path, which clients choose."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.seconds = Histogram(
            "gpuqueue_http_request_duration_seconds",
            "Time from the head of a request to the head of its answer. A long poll waits in between.",
            ("method", "route"),
            buckets=BUCKETS_S,
            registry=registry,
        )
        self.total = Counter(
            "gpuqueue_http_requests", "Requests that were answered.", ("method", "route", "code"), registry=registry
        )

    def observe(self, method: str, route: str, status: int, took_s: float) -> None:
        """Count a request that was answered with *status*."""
        method = method if method in _METHODS else "other"
        self.seconds.labels(method, route).observe(took_s)
        self.total.labels(method, route, str(status)).inc()


class PilotFigures:
    """The figures of the pilots that this service asks for by rule."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._now = Gauge(
            "gpuqueue_pilots", "Pilots at an engine, by how they stand.", ("engine", "phase"), registry=registry
        )
        self._started = Counter(
            "gpuqueue_pilots_started", "Pilots that were asked for by rule.", ("engine",), registry=registry
        )

    def note(self, engine: str, phases: Sequence[str]) -> None:
        """Report the phase of each pilot of *engine*."""
        for phase in Phase:
            self._now.labels(engine, str(phase)).set(phases.count(phase))

    def started(self, engine: str) -> None:
        """Count a pilot that was asked for."""
        self._started.labels(engine).inc()


class Measured:
    """ASGI middleware that passes each request on, and reports it when its answer begins."""

    def __init__(self, app: ASGIApp, times: RequestTimes) -> None:
        """Pass requests to *app*."""
        self._app, self._times = app, times

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start_s = time.monotonic()

        async def observed(message: Message) -> Any:
            if message["type"] == "http.response.start":
                took_s = time.monotonic() - start_s
                template = getattr(scope.get("route"), "path", UNKNOWN_ROUTE)
                self._times.observe(scope["method"], template, message["status"], took_s)
            await send(message)

        await self._app(scope, receive, observed)
