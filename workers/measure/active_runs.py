"""The live runs that this worker manages."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpuqueue.codec.wire import from_plain, to_stored
from gpuqueue.errors import Unreachable, Unreadable
from gpuqueue.model import xids
from gpuqueue.model.device import Device, DeviceKind, Health, Utilisation, Xid
from gpuqueue.model.job_spec import JobSpec
from gpuqueue.model.run import EndingKind
from gpuqueue.model.run_figures import RunFigures
from gpuqueue.model.run_mark import MarkKind
from gpuqueue.queue.lease import ExternalProcess
from gpuqueue.system.disk_room import Room
from gpuqueue.system.process import ProcessIdentity
from gpuqueue.system.timed_call import CallFailed, TimedCall
from gpuqueue.text.units import format_bytes
from workers.measure.idle import Stage
from workers.measure.job_values import ValuesReader
from workers.measure.meter import MOST_POINTS, Meter, Trace
from workers.measure.neighbours import Neighbours
from workers.measure.output import RunOutput, Step
from workers.measure.sample import Sample
from workers.run.directory import Held, RunDir
from workers.shim.log import OWN_LINE
from workers.threads import SteadyEvent

log = logging.getLogger(__name__)


#: How often the disks of a run are checked, in seconds, and how long one check may take.
DISK_S, DISK_LIMIT_S = 10.0, 5.0


class DiskWatch:
    """Checks the disks of one run. A disk may not answer, so another thread reads what is free."""

    def __init__(self) -> None:
        self._call: TimedCall[str | None] | None = None
        self._at_s: float | None = None
        self._low: str | None = None

    def low(self, places: dict[str, str | None], low_bytes: int, now_s: float) -> str | None:
        """Return, as of the last check, which disk of *places* has fewer than *low_bytes* free; None if none has.

        On a small disk it is its usual share that should be free. A disk that cannot be read is left out.
        """
        if self._call is not None and self._call.done:
            try:
                self._low = self._call.wait()
            except (CallFailed, OSError):
                self._low = None
            self._call = None
        if self._call is None and (self._at_s is None or now_s - self._at_s >= DISK_S):
            self._at_s = now_s
            self._call = TimedCall(lambda: _low_of(places, low_bytes), DISK_LIMIT_S)
        return self._low


def _low_of(places: dict[str, str | None], low_bytes: int) -> str | None:
    for what, place in places.items():
        with contextlib.suppress(OSError):
            room = Room.of(Path(place)) if place is not None else None
            if room is not None and room.free_bytes < room.least_bytes(low_bytes):
                return f"the disk of its {what} is nearly full, with {format_bytes(room.free_bytes)} free"
    return None


def root_of(processes: tuple[ProcessIdentity | None, ...]) -> ProcessIdentity | None:
    """Return the root of a run's process tree: the guard of a job that runs as its submitter, else the shim."""
    return processes[2] if len(processes) > 2 else next(iter(processes), None)  # noqa: PLR2004 - the third line


@dataclass(kw_only=True, slots=True)
class LiveRun:
    """A run from its claim to its settlement. ``spec`` is None for an adopted run, which needs no start.

    ``since_s`` is the time of the run's start (of its claim, before it starts) on the host's monotonic clock.
    ``at_once_bytes`` is the largest memory used on all its devices at the same time, in bytes.
    """

    held: Held
    directory: RunDir
    since_s: float
    lock_fd: int | None = None
    spec: JobSpec | None = None
    meters: dict[str, Meter] = field(default_factory=dict)
    at_once_bytes: int | None = None
    #: Messages for the job's owner, sent with the next heartbeat.
    notes: deque[str] = field(default_factory=deque)
    #: What was last reported of its idle time; None for an adopted run, of which an earlier worker may have reported.
    idle_stage: Stage | None = None
    #: When the last warning before an action was given, on the host's clock; None: it was not.
    idle_warned_at_s: float | None = None
    #: Which marks were last reported of it; one is missing where an earlier worker may have reported it.
    marked: dict[MarkKind, bool] = field(default_factory=dict)
    #: Since when what a mark is about is over, on the host's clock.
    over_since_s: dict[MarkKind, float] = field(default_factory=dict)
    disk: DiskWatch = field(default_factory=DiskWatch)
    #: The devices that the run uses although it was not given them, as far as its owner was warned.
    not_given: set[str] = field(default_factory=set)
    #: Why this worker has asked the run to end; empty if it has not, or if the ending needs no words.
    end_words: str = ""
    #: Whether a warm interpreter was asked to become the run, and the shim has not yet written the result.
    warm_asked: bool = False
    neighbours: Neighbours = field(init=False)
    _output: RunOutput = field(init=False)
    #: What the job reports about itself.
    values: ValuesReader = field(init=False)
    _shim: ProcessIdentity | None = None
    _root: ProcessIdentity | None = None
    #: Guards the meters. The sampler, the claimer and the heartbeats record samples in separate threads.
    _noting: threading.Lock = field(default_factory=threading.Lock)
    #: Guards the sending of notes, by the heartbeats and by the step that reports the end.
    _sending: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.neighbours = Neighbours(self.held.job_id)
        self._output = RunOutput("" if self.spec is None else self.spec.command)
        self.values = ValuesReader(self.directory.path)
        if self.spec is not None:
            self.idle_stage = Stage.IN_USE
            self.marked = dict.fromkeys(MarkKind, False)

    def __str__(self) -> str:
        return f"job {self.held.job_id} run {self.held.token}"

    @property
    def shim(self) -> ProcessIdentity | None:
        """Return the shim that owns the run, or None while the shim has not written its identity."""
        if self._shim is None:
            self._shim = self.directory.shim()
        return self._shim

    @property
    def root(self) -> ProcessIdentity | None:
        """Return the root of the run's process tree (:func:`root_of`), or None while it is unknown."""
        if self._root is None:
            processes = self.directory.processes()
            if len(processes) < 2:  # noqa: PLR2004 - the guard is not written yet, if there is one
                return root_of(processes)
            self._root = root_of(processes)
        return self._root

    @property
    def in_excess(self) -> bool:
        """Return whether the watchdog's score of a device is above zero, and the run was not asked to end for it."""
        return any(meter.excess and not meter.ended for meter in list(self.meters.values()))

    @property
    def was_seen(self) -> bool:
        """Return whether any sample of the run was taken, including samples for which the driver gave no figure."""
        return any(meter.samples or meter.na_samples for meter in list(self.meters.values()))

    @property
    def is_whole(self) -> bool:
        """Return whether an engine runs the job as a whole, and the run's process only follows it."""
        kind = self.held.devices[0].kind if self.held.devices else None
        return kind is not None and kind.is_engine

    def has(self, uuid: str) -> bool:
        """Return whether the run holds the device *uuid*."""
        return self.held.has(uuid)

    def meter(self, uuid: str) -> Meter:
        """Return the meter of the run on the device *uuid*."""
        meter = self.meters.get(uuid)
        if meter is None:
            meter = self.meters.setdefault(uuid, Meter(trace=Trace(MOST_POINTS // len(self.held.devices))))
        return meter

    def note(self, sample: Sample) -> None:
        """Record one sample of a device."""
        device, reading = sample.device, sample.reading
        held = {run.job_id: run.used_bytes for run in sample.runs if run.alive}
        leases = {run.job_id: run.lease_bytes for run in sample.runs}
        others = [each for each in sample.external_processes if not self._has_ended(each, device)]
        members = {run.job_id: run.member for run in sample.runs if run.member is not None}
        self.neighbours.note(device, reading, held, others, leases, members)
        share = sample.measured(self.held.token)
        if share is None:
            return
        meter = self.meter(device.uuid)
        with self._noting:
            meter.note(
                share.used_bytes,
                at_s=sample.began_s - self.since_s,
                # A process of this run that ended right after the reading is not in *pids*, and is no neighbour.
                shared=bool(reading.processes.keys() - share.pids - meter.pids),
                device_bytes=reading.used_bytes,
                pids=share.pids,
                listed=bool(reading.processes) or device.kind is not DeviceKind.GPU,
                alone=held.keys() <= {self.held.job_id},
            )

    def _has_ended(self, process: ExternalProcess, device: Device) -> bool:
        """Return whether a process was of a run and has ended since the sample, so that it looks like an external one.

        A driver may report processes that cannot be read, because they are in another pid namespace. A simulated device
        reports only those that could be read a moment ago.
        """
        if process.started_at is not None:
            return False
        meter = self.meters.get(device.uuid)
        return device.kind is DeviceKind.SIMULATED or (meter is not None and process.pid in meter.pids)

    def note_health(self, device: Device, health: Health, own: Utilisation | None, at_s: float) -> None:
        """Record the health of a device, and how much it worked for this run, at *at_s* on the host's clock.

        Called at most once per ``INTERVAL_S``, so that means are means over time.
        """
        with self._noting:
            self.meter(device.uuid).note_health(health)
            self.meter(device.uuid).note_use(own, at_s - self.since_s)

    def note_xid(self, device: Device, xid: Xid) -> None:
        """Report an Xid error of *device* to the job's owner."""
        beside = "" if len(self.held.devices) == 1 else f" of its device {device.index}"
        words = f"the driver reported {xids.in_words(xid)}{beside}; a job beside it may have caused it"
        self.notes.append(words)
        self.write_to_log(words)

    def unused_s(self, now_s: float) -> float | None:
        """Return for how many seconds the run has used none of its devices, at *now_s* on the host's clock.

        None means that it uses one of them, or that the use of one is unknown.
        """
        at_s = now_s - self.since_s
        with self._noting:
            since = [self.meter(device.uuid).unused_since_s(at_s) for device in self.held.devices]
        known = [each for each in since if each is not None]
        return at_s - max(known) if len(known) == len(since) else None

    @property
    def was_used(self) -> bool:
        """Return whether the run has used one of its devices at any time, as far as that is known."""
        return any(meter.was_used for meter in list(self.meters.values()))

    @property
    def has_written(self) -> bool:
        """Return whether the run has written any output."""
        return self._output.written_s is not None

    def silent_s(self, now_s: float) -> float:
        """Return for how many seconds the run has written no output, at *now_s* on the host's clock."""
        return now_s - self.since_s - (self._output.written_s or 0.0)

    def step(self, now_s: float) -> Step | None:
        """Return the step at which the run is, at *now_s* on the host's clock, or None if it is unknown."""
        return self._output.step(now_s - self.since_s)

    def note_at_once(self, used: Iterable[int | None]) -> None:
        """Record the bytes that the run uses on each of its devices at one moment; None where that is unknown."""
        known = [each for each in used if each is not None]
        if known and len(known) == len(self.held.devices):
            self.at_once_bytes = max(self.at_once_bytes or 0, sum(known))

    def read_output(self, now_s: float) -> None:
        """Read what is new in the output of the run at *now_s* on the host's clock, and write the run's progress."""
        with contextlib.suppress(OSError):  # a full disk: the progress is written later
            self._output.read(self.directory, now_s - self.since_s)

    def close(self) -> None:
        """Close the files of the run, and release its lock if this worker holds it."""
        self.directory.close()
        if self.lock_fd is not None:
            os.close(self.lock_fd)
            self.lock_fd = None

    def hear_start(self) -> None:
        """Add a note on whether a warm interpreter became the run, once the shim has written that."""
        with self._noting:
            start = self.directory.start() if self.warm_asked else None
            if start is not None:
                self.warm_asked = False
                self.notes.append(f"started {start}")

    def ask_end(self, kind: EndingKind, note: str) -> bool:
        """Ask the shim to end the run, with *note* as the reason for the job's owner. Return whether that worked.

        The note is added first: the run can end, and its notes be sent, before this thread goes on.
        """
        self.notes.append(note)
        try:
            self.directory.ask_end(kind)
        except OSError as error:
            log.warning("%s: its end cannot be requested, it is tried again: %s", self, error)
            with contextlib.suppress(ValueError):  # it was sent meanwhile
                self.notes.remove(note)
            return False
        return True

    def write_to_log(self, words: str) -> None:
        """Append *words* as a line to the job's log. A log that is gone, or cannot be written now, is left alone."""
        with contextlib.suppress(OSError):
            # Non-blocking, because the job may have put a pipe there. Without O_CREAT, a deleted log stays deleted.
            job_log = os.open(self.directory.log, os.O_RDWR | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                size = os.fstat(job_log).st_size
                before = "\n" if size and os.pread(job_log, 1, size - 1) != b"\n" else ""  # the last line is not whole
                with self._output.adding:
                    self._output.own_bytes += os.write(job_log, f"{before}{OWN_LINE}{words}\n".encode())
            finally:
                os.close(job_log)

    def send_notes(self, send: Callable[[str], object]) -> None:
        """Send all notes that were not sent yet, oldest first. A note that cannot be sent stays for the next time.

        Notes that another thread is sending are sent when this returns, so that the end of the run can follow them.
        """
        with self._sending:
            while self.notes:
                text = self.notes.popleft()
                try:
                    send(text)
                except Unreachable:
                    self.notes.appendleft(text)
                    raise

    def observed(self) -> dict[str, int]:
        """Return the bytes of the last sample on each device; 0 before the first sample."""
        return {
            device.uuid: self.meters[device.uuid].observed_bytes if device.uuid in self.meters else 0
            for device in self.held.devices
        }

    def figures(self) -> dict[str, Any]:
        """Return all figures so far as plain values, for a worker that adopts the run."""
        with self._noting:
            devices = {uuid: to_stored(meter) for uuid, meter in self.meters.items()}
        outputs = {} if self._output.kept is None else {"output": self._output.kept}
        values = self.values.to_plain()
        reported = {} if values is None else {"values": values}
        return {"since_s": self.since_s, "at_once_bytes": self.at_once_bytes, "devices": devices, **outputs, **reported}

    def figures_so_far(self) -> RunFigures:
        """Return what the run has used and reported so far, for people."""
        with self._noting:
            known = {uuid: meter.timeline() for uuid, meter in self.meters.items()}
        timelines = {uuid: timeline for uuid, timeline in known.items() if timeline is not None}
        return RunFigures(timelines=timelines, values=self.values.values())

    def resume(self) -> None:
        """Restore the :meth:`figures` that another worker has left.

        If the figures cannot be read, the run continues without them, and its peak covers only the samples from now on.
        """
        try:
            stored = self.directory.meters()
            if stored is None:
                return
            since_s = stored.number("since_s")
            devices = stored.below("devices", "the figures of a run's devices")
            mine = [device.uuid for device in self.held.devices if device.uuid in devices]
            meters = {uuid: Meter.adopted(devices.plain(uuid)) for uuid in mine}
            at_once_bytes = stored.whole_or_none("at_once_bytes")
            output = self._output
            if "output" in stored:
                output = from_plain(RunOutput, stored.plain("output"), "the output of a run")
            if "values" in stored:
                self.values.resume(stored.plain("values"))
        except Unreadable as error:
            log.warning("%s: its figures so far are lost: %s", self, error)
            return
        self.since_s = min(max(0.0, since_s), self.since_s)  # never in the future of this host's clock
        self.at_once_bytes, self.meters, self._output = at_once_bytes, meters, output


class LiveRuns:
    """All live runs of a worker, by token. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: dict[str, LiveRun] = {}
        self._reported: dict[str, LiveRun] = {}
        self._added = SteadyEvent()

    def add(self, run: LiveRun) -> None:
        """Add *run* to the live runs."""
        with self._lock:
            self._runs[run.held.token] = run
        if run.spec is None:  # a run that is yet to be started has nothing to sample
            self._added.set()

    def wait(self, timeout_s: float) -> bool:
        """Wait up to *timeout_s* for an adopted run or a call of :meth:`wake`, and return whether there was one."""
        woken = self._added.wait(timeout_s)
        self._added.clear()
        return woken

    def wake(self) -> None:
        """Wake the thread in :meth:`wait`."""
        self._added.set()

    def remove(self, token: str) -> None:
        """Remove the run with this token from the live runs."""
        with self._lock:
            self._runs.pop(token, None)

    def report(self, run: LiveRun) -> None:
        """Keep *run*, whose end was reported to the store, until the history has that end."""
        run.spec = None  # if the end must be reported again, the run must not be started again
        with self._lock:
            self._reported[run.held.token] = run

    def reported(self) -> list[LiveRun]:
        """Return the runs whose end was reported to the store and may not be in the history yet."""
        with self._lock:
            return list(self._reported.values())

    def forget(self, token: str) -> None:
        """Drop the run with this token from the runs whose end was reported."""
        with self._lock:
            self._reported.pop(token, None)

    def get(self, token: str) -> LiveRun | None:
        """Return the run with this token, or None."""
        with self._lock:
            return self._runs.get(token)

    def all(self) -> list[LiveRun]:
        """Return a copy of the list of live runs."""
        with self._lock:
            return list(self._runs.values())

    def __len__(self) -> int:
        with self._lock:
            return len(self._runs)
