"""Samples the devices of the live runs, more often while a run is young.

Ends runs that use too much memory, and runs of probes whose answer is known.

The time limit of a probe is that of its job, which the shim enforces. A worker that adopts the run begins anew: the run
is then ended later, never sooner.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from enum import Enum
from functools import partial

from gpuqueue.clock import Clock
from gpuqueue.errors import BadRequest
from gpuqueue.model.device import Device, DeviceKind
from gpuqueue.model.probe import Probe
from gpuqueue.model.progress_reader import TAIL_BYTES, steps_in
from gpuqueue.model.run import PROBE_ENDED, EndingKind
from gpuqueue.settings.parsers import OnWrongDevice
from gpuqueue.system.logs import last_bytes
from gpuqueue.system.timed_call import start_thread
from gpuqueue.text.units import MIB, format_bytes, format_duration
from workers.devices.backend import DeviceTrouble
from workers.measure.active_runs import LiveRun, LiveRuns
from workers.measure.meter import INTERVAL_S
from workers.measure.monitor import MOMENT_S, DeviceMonitor
from workers.measure.sample import Sample

log = logging.getLogger(__name__)

#: Most runs reach their peak while they load, so the sampler polls every 0.1 s for the first 10 s.
YOUNG_S = 10.0
YOUNG_INTERVAL_S = 0.1
#: Time between two samples of the devices that no run of this worker holds, in seconds: a script may use another card
#: than those of its job. A driver takes about a millisecond for a sample.
ELSEWHERE_S = 5.0
#: Time from the start of a run to its first sample, in seconds. At the start only the shim exists, and an earlier
#: sample would slow down the start itself, which matters in a series of short jobs.
FIRST_S = 0.02
#: How far a job may exceed its lease before it is ended: a share of the lease, and at least so many bytes.
#: CUDA's own memory is not part of a framework's cap, and its size differs from card to card.
TOLERANCE = 0.05
TOLERANCE_BYTES = 256 * MIB
#: The score of a meter at which a job is ended. A sample with `Excess.END` adds 2, any other sample subtracts 1.
ENOUGH = 4
#: A peak has grown if it is larger by this share and by this many bytes. The resident memory of a process on a CPU or a
#: simulated device always changes a little.
GROWTH, GROWTH_BYTES = 1.01, 16 * MIB


class Sampler:
    """Samples the runs of one worker on all their devices. Without a run it samples no device."""

    def __init__(
        self,
        monitor: DeviceMonitor,
        runs: LiveRuns,
        clock: Clock,
        on_wrong_device: OnWrongDevice = OnWrongDevice.WARN,
    ) -> None:
        self._monitor = monitor
        self._runs = runs
        self._clock = clock
        self._on_wrong_device = on_wrong_device
        #: The trouble last logged for each device that gives no sample, so that each trouble is logged once.
        self._logged: dict[str, str] = {}
        self._probes: Probes | None = None
        #: When the devices that no run of this worker holds were sampled last, on the host's clock.
        self._elsewhere_s: float | None = None
        #: Whether they are being sampled.
        self._is_elsewhere = False

    def loop(self, stopping: threading.Event) -> None:
        """Sample until *stopping* is set. A new run is sampled without waiting for the next poll."""
        while not stopping.is_set():
            self.sample()
            if self._runs.wait(self._pause_s()):
                stopping.wait(FIRST_S)

    def _pause_s(self) -> float:
        now = self._clock.monotonic_s()
        runs = self._runs.all()
        # A job that uses too much is sampled again soon, since it endangers its neighbours.
        soon = any(now - run.since_s < YOUNG_S or run.in_excess for run in runs)
        return YOUNG_INTERVAL_S if soon else INTERVAL_S

    def sample(self) -> None:
        """Take one sample of every started run, on each of its devices.

        The other devices are sampled in a thread of their own, because one of them may not answer for seconds.
        """
        runs = [run for run in self._runs.all() if run.shim is not None]
        devices = self._monitor.devices.values()
        held = [device for device in devices if any(run.has(device.uuid) for run in runs)]
        if self._is_elsewhere_due(runs):
            # The readings of the CPU list no processes.
            others = [device for device in devices if device not in held and device.kind.is_gpu]
            self._is_elsewhere = True
            try:
                start_thread(partial(self._sample_elsewhere, others, runs))
            except RuntimeError:  # the host cannot create another thread
                self._is_elsewhere = False
        found = [self._check(device, [run for run in runs if run.has(device.uuid)], runs) for device in held]
        samples = [sample for sample in found if sample is not None]
        for run in runs:
            shares = [sample.measured(run.held.token) for sample in samples]
            run.note_at_once(share.used_bytes for share in shares if share is not None and share.was_given)
        probes = [run for run in runs if run.held.probe is not None]
        if probes:
            self._probes = self._probes or Probes()
            self._probes.check(probes, self._clock.monotonic_s())

    def _sample_elsewhere(self, devices: Sequence[Device], runs: Sequence[LiveRun]) -> None:
        """Sample *devices*, which no run of this worker holds: one of *runs* may use them."""
        try:
            for device in devices:
                self._check(device, runs, runs)
        finally:
            self._is_elsewhere = False

    def _check(self, device: Device, newest: Sequence[LiveRun], runs: Sequence[LiveRun]) -> Sample | None:
        """Sample *device* after the start of the runs *newest*, and check what *runs* use there."""
        sample = self._sample(device, newest)
        if sample is not None:
            for run in runs:
                check_given(run, sample, self._monitor.devices, self._on_wrong_device)
                enforce_limit(run, sample)
        return sample

    def _is_elsewhere_due(self, runs: Sequence[LiveRun]) -> bool:
        """Return whether it is time to sample the devices that no run of this worker holds."""
        now_s = self._clock.monotonic_s()
        is_due = self._elsewhere_s is None or now_s - self._elsewhere_s >= ELSEWHERE_S
        if not runs or self._is_elsewhere or not (is_due or any(run.not_given and run.in_excess for run in runs)):
            return False
        self._elsewhere_s = now_s
        return True

    def _sample(self, device: Device, runs: Sequence[LiveRun]) -> Sample | None:
        # In a series of short jobs each claim samples the device. Reuse that sample if the newest run had started.
        began_s = max(run.since_s for run in runs) + FIRST_S / 2
        try:
            sample = self._monitor.sample(device, max(began_s, self._clock.monotonic_s() - MOMENT_S))
            # At most once per INTERVAL_S, at any sampling rate: these calls are slow with some drivers.
            self._monitor.health(device, INTERVAL_S)
        except (DeviceTrouble, OSError) as trouble:
            if self._logged.get(device.uuid) != str(trouble):
                log.warning("no sample of %s: %s", device.uuid, trouble)
            self._logged[device.uuid] = str(trouble)
            return None
        self._logged.pop(device.uuid, None)
        return sample


class Excess(Enum):
    """How a job's memory on a device relates to its lease."""

    NONE = "none"
    #: Above the lease, but within the tolerance and without harm to other jobs.
    WARN = "warn"
    #: Above the tolerance, or in memory that is allocated to other jobs.
    END = "end"


def limit_bytes(lease_bytes: int) -> int:
    """Return the bytes that a job with a lease of *lease_bytes* may use before it is ended."""
    return lease_bytes + max(TOLERANCE_BYTES, round(TOLERANCE * lease_bytes))


def excess(used_bytes: int, lease_bytes: int, *, free_bytes: int, allocated_bytes: int) -> Excess:
    """Return the excess of a job that uses *used_bytes*; *allocated_bytes* are allocated to jobs and not used yet."""
    if used_bytes <= lease_bytes:
        return Excess.NONE
    if used_bytes > limit_bytes(lease_bytes) or free_bytes < allocated_bytes:
        return Excess.END
    return Excess.WARN


def check_given(run: LiveRun, sample: Sample, devices: Mapping[str, Device], action: OnWrongDevice) -> None:
    """Warn the owner of *run*, once, if it uses a sampled device that it was not given, and do *action*.

    *devices* are the host's. It takes a second sample to end the run: in one, a process that just ended can be taken
    for another one, which has got its pid.
    """
    share, used = sample.measured(run.held.token), sample.device
    if share is None or share.was_given:
        return
    known = [devices.get(each.uuid) for each in run.held.devices]
    given = ", ".join(str(each.index) for each in known if each is not None) or "another one"
    words = (
        f"it was given device {given} and uses device {used.index}: inside a job devices count from 0, "
        "so a script must not set CUDA_VISIBLE_DEVICES"
    )
    if used.uuid not in run.not_given:
        run.not_given.add(used.uuid)
        run.notes.append(words)
        _log(run, words)
    elif action is OnWrongDevice.END and not run.end_words:
        run.end_words = words  # before the end, which another thread reports
        if run.ask_end(EndingKind.WRONG_DEVICE, f"{words}; the site ends such jobs"):
            _log(run, "the site ends jobs on devices that they were not given")
        else:
            run.end_words = ""


def enforce_limit(run: LiveRun, sample: Sample) -> None:
    """Check one sample of a run, and warn or end the run if it uses too much.

    On a device that the run was not given, its memory counts against what it has on each of its own.

    This is the last of the layers in docs/explanation/memory-cap.md, and the only one that measures all frameworks and
    all processes of a job together. It reacts within a sample or two. A neighbour that allocates memory before that may
    still find the card full.

    On a simulated device the resident memory counts, interpreter and libraries included. A request for a GPU
    does not cover these, so a run within the tolerance is not warned there. The CPU's memory is left to the kernel.
    """
    device, share = sample.device, sample.measured(run.held.token)
    if share is None or share.used_bytes is None or not device.kind.is_gpu or not run.held.capped:
        return
    used_bytes = share.used_bytes
    lease_bytes = share.lease_bytes if share.was_given else run.held.devices[0].lease_bytes
    reading, not_used_bytes = sample.reading, sample.committed_bytes - sample.reading.used_bytes
    found = excess(used_bytes, lease_bytes, free_bytes=reading.free_bytes, allocated_bytes=not_used_bytes)
    if device.kind is DeviceKind.SIMULATED and used_bytes <= limit_bytes(lease_bytes):
        found = Excess.NONE
    meter = run.meter(device.uuid)
    # One high sample alone may be a process that is exiting. The score also catches a job that goes up and down.
    meter.excess = meter.excess + 2 if found is Excess.END else max(0, meter.excess - 1)
    asked = format_bytes(lease_bytes)
    holds = f"it holds {format_bytes(used_bytes)} on {device.uuid}"
    if found is not Excess.NONE and not meter.warned:
        meter.warned = True
        words = (
            f"{holds}, more than the {asked} it asked for; above {format_bytes(limit_bytes(lease_bytes))} it is ended"
        )
        run.notes.append(words)
        _log(run, words)
    if meter.excess >= ENOUGH and not meter.ended:
        words = f"ended: {holds} and asked for {asked}; give it more with --mem"
        meter.ended = run.ask_end(EndingKind.OUT_OF_MEMORY, words)
        if meter.ended:
            _log(run, words)


def _log(run: LiveRun, words: str) -> None:
    """Write *words* to the job's log and to the worker's log."""
    log.warning("%s: %s", run, words)
    run.write_to_log(words)


class ProbeWatch:
    """Decides when the run of a probe may end. It has the state of one run."""

    def __init__(self, probe: Probe) -> None:
        self.probe = probe
        self._peak_bytes = 0
        self._grown_s: float | None = None
        self._steps = self._last = 0

    def reason(self, peak_bytes: int, now_s: float, steps: int | None) -> str | None:
        """Return why the run may end, or None.

        Args:
            peak_bytes: The peak so far over all devices; 0 if the run has used no memory.
            now_s: The time on the host's monotonic clock, in seconds.
            steps: The number of done steps on the job's progress bar, None if there is no bar.

        """
        wanted = self.probe.steps
        if wanted is not None and steps is not None and self._counted(steps) >= wanted:
            return f"it has made {self._steps} steps"
        if self._grown_s is None or peak_bytes > max(GROWTH * self._peak_bytes, self._peak_bytes + GROWTH_BYTES):
            self._peak_bytes = max(peak_bytes, self._peak_bytes)
            self._grown_s = now_s
        flat_s = self.probe.flat_s
        if flat_s is not None and self._peak_bytes and now_s - self._grown_s >= flat_s:
            return f"its peak of {format_bytes(peak_bytes)} has not grown for {format_duration(now_s - self._grown_s)}"
        return None

    def _counted(self, steps: int) -> int:
        """Return the steps of all bars so far. A bar that counts fewer than before is a new one."""
        self._steps += steps - self._last if steps >= self._last else steps
        self._last = steps
        return self._steps


class Probes:
    """The probes among the runs of a worker. Used by one thread."""

    def __init__(self) -> None:
        self._watches: dict[str, ProbeWatch] = {}
        #: The tokens of the runs that were asked to end.
        self._ended: set[str] = set()

    def check(self, runs: Sequence[LiveRun], now_s: float) -> None:
        """End those of *runs*, all live runs of probes, that may end. Forget the state of all other runs."""
        tokens = {run.held.token for run in runs}
        self._ended &= tokens
        self._watches = {token: watch for token, watch in self._watches.items() if token in tokens}
        for run in runs:
            token = run.held.token
            watch = self._watches.setdefault(token, ProbeWatch(_probe_of(run)))
            why = None if token in self._ended else _reason(run, watch, now_s)
            if why is not None and run.ask_end(EndingKind.TIMED_OUT, f"{PROBE_ENDED}: {why}"):
                self._ended.add(token)


def _reason(run: LiveRun, watch: ProbeWatch, now_s: float) -> str | None:
    """Return why *run* may end, or None."""
    steps = None if watch.probe.steps is None else steps_in(last_bytes(run.directory.log, TAIL_BYTES))
    peak_bytes = sum(meter.peak_bytes or 0 for meter in list(run.meters.values()))
    return watch.reason(peak_bytes, now_s, steps)


def _probe_of(run: LiveRun) -> Probe:
    """Return the probe of *run*. One that this version cannot read is ended by its time limit only."""
    try:
        return Probe.parse(run.held.probe or "")
    except BadRequest as error:
        log.warning("%s: %s", run, error)
        return Probe()
