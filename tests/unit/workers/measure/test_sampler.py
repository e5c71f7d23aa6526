from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from factories import make_device, make_spec

from gpuqueue.clock import SystemClock
from gpuqueue.errors import Unreachable
from gpuqueue.model.device import Device, DeviceKind, Peak, PeakSource, Reading
from gpuqueue.model.probe import Probe
from gpuqueue.model.run import RunDevice
from gpuqueue.settings.settings import Settings
from gpuqueue.system.process import ProcessIdentity
from gpuqueue.text.units import GIB, MIB
from workers.devices.select import choose
from workers.devices.simulated import SimulatedBackend
from workers.measure.active_runs import LiveRun, LiveRuns
from workers.measure.monitor import MOMENT_S, DeviceMonitor
from workers.measure.peak import gap_note, measured_devices
from workers.measure.sample import RunOnDevice, Sample
from workers.measure.sampler import FIRST_S, Excess, Probes, ProbeWatch, Sampler, enforce_limit, excess, limit_bytes
from workers.run.directory import Held, RunDir
from workers.run.verdict import InsideReport


def monitor_of(spec: str, place: Path, runs: LiveRuns, clock: SystemClock | None = None) -> DeviceMonitor:
    """Return the monitor of a worker that serves *spec*."""
    settings = Settings.load({"GPUQUEUE_STATE_DIR": str(place / "state"), "GPUQUEUE_CONFIG": os.devnull})
    return DeviceMonitor(settings, choose(spec, "box"), runs, clock or SystemClock())


def peak_on(kind: DeviceKind | None, place: Path, spec: str) -> Peak:
    """Return the peak of a run on a device of *kind*, as reported by a worker of *spec*.

    The worker measured 7 bytes and the kernel 9.
    """
    device = RunDevice(uuid="dev-0", lease_bytes=1, kind=kind)
    held = Held(job_id=1, token="1.a", devices=(device,), capped=True)
    run = LiveRun(held=held, directory=RunDir.create(place, held), since_s=0.0)
    if kind is not None:
        run.meter("dev-0").note(7, at_s=0.0, shared=False, device_bytes=7)
    (reported,) = measured_devices(run, 9, None, monitor_of(spec, place, LiveRuns()))
    return reported.peak


@pytest.mark.parametrize("spec", ["cpu", "sim:24G", "sim:24G,cpu"])
def test_a_peak_comes_from_the_runs_own_kind_of_device(tmp_path: Path, spec: str) -> None:
    """The source of a peak follows from the run's own device kind.

    A worker with other devices may report the peak after a restart. Samples of a card are not host memory.
    """
    peaks = {kind: peak_on(kind, tmp_path / str(kind), spec) for kind in DeviceKind}

    assert {
        DeviceKind.GPU: (7, PeakSource.NVML_SAMPLED),
        DeviceKind.CPU: (9, PeakSource.HOST_RSS),
        DeviceKind.SIMULATED: (9, PeakSource.SIMULATED),
        DeviceKind.SLURM: (None, PeakSource.NONE),  # the process here only follows its job
    } == {kind: (peak.bytes, peak.source) for kind, peak in peaks.items()}


def test_memory_on_a_device_that_was_not_given_is_part_of_the_peak(tmp_path: Path) -> None:
    """What a run used on another card counts as used on one of its own: the one that it used least.

    Regression: a script that named its card itself had a peak of 0, and that is what memory learned.
    """
    devices = tuple(RunDevice(uuid=f"dev-{name}", lease_bytes=9, kind=DeviceKind.GPU) for name in "ab")
    held = Held(job_id=1, token="1.a", devices=devices)
    run = LiveRun(held=held, directory=RunDir.create(tmp_path, held), since_s=0.0)
    for uuid, used_bytes in (("dev-a", 5), ("dev-b", 1), ("dev-other", 7)):
        run.meter(uuid).note(used_bytes, at_s=0.0, shared=False, device_bytes=used_bytes)

    reported = measured_devices(run, None, None, monitor_of("cpu", tmp_path, LiveRuns()))

    assert [("dev-a", 5), ("dev-b", 7)] == [(device.uuid, device.peak.bytes) for device in reported]


def test_the_maximum_of_torch_and_a_measured_context_are_the_peak(tmp_path: Path) -> None:
    """A spike between two samples is in torch's own maximum, which has no context."""
    device = RunDevice(uuid="dev-0", lease_bytes=9, kind=DeviceKind.GPU, name="Card")
    held = Held(job_id=1, token="1.a", devices=(device,))
    run = LiveRun(held=held, directory=RunDir.create(tmp_path, held), since_s=0.0)
    run.meter("dev-0").note(900, at_s=0.0, shared=False, device_bytes=900, pids=(7,))
    contexts = tmp_path / "state" / "devices" / "contexts.json"
    contexts.parent.mkdir(parents=True)
    contexts.write_text('{"driver": "1", "contexts": {"Card": 300}}')

    report, monitor = InsideReport(reserved_on={"dev-0": 700}), monitor_of("cpu", tmp_path, LiveRuns())
    (reported,) = measured_devices(run, None, report, monitor)

    assert (1000, PeakSource.TORCH) == (reported.peak.bytes, reported.peak.source)


@pytest.mark.parametrize(
    ("kind", "report", "accounted", "count"),
    [
        (DeviceKind.GPU, None, False, 7),
        (DeviceKind.GPU, None, True, None),
        (DeviceKind.GPU, InsideReport(reserved_on={"dev-0": 1}), False, None),
        (DeviceKind.SIMULATED, None, False, 7),
        (DeviceKind.CPU, None, False, None),
    ],
)
def test_a_run_that_was_not_measured_for_a_time_has_a_note(
    tmp_path: Path,
    kind: DeviceKind,
    report: InsideReport | None,
    accounted: bool,  # noqa: FBT001
    count: int | None,
) -> None:
    """It has none if the driver or torch has the maximum of its only process, or without device memory."""
    source = PeakSource.NVML_ACCOUNTING if accounted else PeakSource.NVML_SAMPLED
    device = RunDevice(uuid="dev-0", lease_bytes=9, kind=kind, peak=Peak(bytes=5, source=source))
    held = Held(job_id=1, token="1.a", devices=(device,))
    run = LiveRun(held=held, directory=RunDir.create(tmp_path, held), since_s=0.0)
    for at_s in (0.0, 1.0, 7.5):
        run.meter("dev-0").note(5, at_s=at_s, shared=False, device_bytes=5, pids=(7,))

    note = gap_note(run, (device,), report, 8.0)

    assert count == (None if note is None else note.count)


def test_of_a_device_that_nobody_knew_no_peak_is_made_up(tmp_path: Path) -> None:
    """A device of unknown kind has no peak.

    The kernel's figure is host memory, and the device's memory may be different.
    """
    assert Peak.unknown() == peak_on(None, tmp_path, "cpu")


class Stopping(threading.Event):
    """A stop event of the loop that sets itself at the first wait and records the timeouts."""

    def __init__(self) -> None:
        super().__init__()
        self.waits_s: list[float | None] = []

    def wait(self, timeout: float | None = None) -> bool:
        """Record the timeout and end the loop."""
        self.waits_s.append(timeout)
        self.set()
        return True


def test_the_first_sample_does_not_delay_the_start(tmp_path: Path) -> None:
    """The first sample of a run is delayed.

    Regression: it came at once, found only the shim, and delayed the start of this job and the next.
    """
    runs, stopping = LiveRuns(), Stopping()
    held = Held(job_id=1, token="1.a", devices=(RunDevice(uuid="dev-0", lease_bytes=1),))
    runs.add(LiveRun(held=held, directory=RunDir.create(tmp_path, held), since_s=0.0))

    Sampler(monitor_of("sim:24G", tmp_path, runs), runs, SystemClock()).loop(stopping)

    assert [FIRST_S] == stopping.waits_s


class FixedClock(SystemClock):
    """A clock that a test sets."""

    now_s = 0.0

    def monotonic_s(self) -> float:
        """Return the time that was set."""
        return self.now_s


def test_a_sample_that_a_claim_has_just_taken_is_reused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A recent sample for a claim is reused by the sampler.

    Regression: in a series of short jobs the device was read for each claim and again for each peak.
    """
    runs, clock = LiveRuns(), FixedClock()
    monitor = monitor_of("sim:24G", tmp_path, runs, clock)
    (device,) = monitor.devices.values()
    held = Held(job_id=1, token="1.a", devices=(RunDevice(uuid=device.uuid, lease_bytes=1),))
    run = LiveRun(held=held, directory=RunDir.create(tmp_path, held), since_s=0.0)
    (run.directory.path / "pid").write_text(f"{ProcessIdentity.of(os.getpid())}\n")
    runs.add(run)
    taken: list[float] = []
    ours = Reading(total_bytes=24, free_bytes=20, processes={os.getpid(): 4})
    monkeypatch.setattr(SimulatedBackend, "reading", lambda *_: taken.append(clock.now_s) or ours)
    sampler = Sampler(monitor, runs, clock)

    clock.now_s = FIRST_S / 4
    monitor.sample(device)
    clock.now_s = FIRST_S
    sampler.sample()
    assert [FIRST_S / 4, FIRST_S] == taken, "one from before its start would not have seen it"

    clock.now_s = 1.0
    monitor.sample(device)
    clock.now_s += MOMENT_S / 2
    sampler.sample()
    assert [FIRST_S / 4, FIRST_S, 1.0] == taken
    assert 4 == run.at_once_bytes
    assert 3 == run.meter(device.uuid).samples, "each sample is recorded once"


def test_a_card_that_does_not_answer_holds_up_no_sample_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run is sampled on its own device while a device that it does not hold keeps its caller waiting."""
    runs, gate, waiting, returned = LiveRuns(), threading.Event(), threading.Event(), threading.Event()
    monitor = monitor_of("sim:2x24G", tmp_path, runs)
    own, other = monitor.devices.values()
    held = Held(job_id=1, token="1.a", devices=(RunDevice(uuid=own.uuid, lease_bytes=1),))
    run = LiveRun(held=held, directory=RunDir.create(tmp_path, held), since_s=0.0)
    (run.directory.path / "pid").write_text(f"{ProcessIdentity.of(os.getpid())}\n")
    runs.add(run)

    def reading(_: object, device: Device) -> Reading:
        if device == other:
            waiting.set()
            assert gate.wait(60)
            returned.set()
        return Reading(total_bytes=24, free_bytes=20, processes={os.getpid(): 4})

    monkeypatch.setattr(SimulatedBackend, "reading", reading)
    try:
        Sampler(monitor, runs, SystemClock()).sample()

        assert waiting.wait(60)
        assert not returned.is_set()
        assert 1 == run.meter(own.uuid).samples
    finally:
        gate.set()
    assert returned.wait(60)


def test_a_run_that_is_still_to_be_started_wakes_nobody() -> None:
    """A claimed run does not wake the sampler before its start.

    Regression: the sampler woke at the claim, found nothing, and woke again at the start.
    """
    runs = LiveRuns()
    held = Held(job_id=1, token="1.a", devices=(RunDevice(uuid="dev-0", lease_bytes=1),))
    directory = RunDir(Path("/nowhere"))

    runs.add(LiveRun(held=held, directory=directory, since_s=0.0, spec=make_spec()))
    assert not runs.wait(0)

    runs.add(LiveRun(held=held, directory=directory, since_s=0.0))
    assert runs.wait(0)


# ---- Tests of the memory limit that the sampler enforces: when a run is warned, and when it is ended -----------------


@pytest.mark.parametrize(
    ("used", "free", "allocated", "expected"),
    [
        (6 * GIB, 10 * GIB, 0, Excess.NONE),
        (6 * GIB, 0, 5 * GIB, Excess.NONE),
        (6 * GIB + 1, 10 * GIB, 0, Excess.WARN),
        (6 * GIB + 307 * MIB, 10 * GIB, 0, Excess.WARN),
        (6 * GIB + 308 * MIB, 10 * GIB, 0, Excess.END),
        (6 * GIB + 1, 2 * GIB, 3 * GIB, Excess.END),
    ],
)
def test_a_small_excess_warns_and_a_large_one_ends_the_run(
    used: int, free: int, allocated: int, expected: Excess
) -> None:
    """A small excess gives a warning.

    More than 5 % ends the run, and so does any excess that uses memory allocated to another job. The 5 % may be CUDA's
    own memory.
    """
    assert expected is excess(used, 6 * GIB, free_bytes=free, allocated_bytes=allocated)


def test_small_jobs_have_room_for_cudas_own_memory() -> None:
    """A small job may exceed its memory by at least 256 MiB.

    Five per cent of 1 GiB would be less than a CUDA context.
    """
    assert GIB + 256 * MIB == limit_bytes(GIB)


def run_of(place: Path, kind: DeviceKind = DeviceKind.GPU) -> LiveRun:
    """Return a run with a lease of 1 GiB on a device of this kind."""
    device = RunDevice(uuid="GPU-0", lease_bytes=GIB, kind=kind)
    held = Held(job_id=1, token="1.a", devices=(device,), capped=True)
    return LiveRun(held=held, directory=RunDir.create(place, held), since_s=0.0)


def ended_by(run: LiveRun, *used: int) -> bool:
    """Pass these samples to the watchdog, and return whether it asked for the run's end."""
    for each in used:
        share = RunOnDevice(
            job_id=1,
            token="1.a",
            lease_bytes=GIB,
            started=True,
            alive=True,
            pids=frozenset({7}),
            used_bytes=each,
        )
        sample = Sample(
            device=make_device("GPU-0", kind=run.held.devices[0].kind),
            began_s=0.0,
            reading=Reading(total_bytes=24 * GIB, free_bytes=24 * GIB - each, processes={7: each}),
            runs=(share,),
            counted={},
            external_processes=(),
        )
        enforce_limit(run, sample)
    return (run.directory.path / "cancel").exists()


@pytest.mark.parametrize(
    ("samples", "ends"),
    [
        ((9 * GIB, 9 * GIB), True),
        ((9 * GIB,), False),
        ((9 * GIB, 0, 0, 9 * GIB), False),
        ((9 * GIB, 0, 9 * GIB), False),
        ((9 * GIB, 0, 9 * GIB, 0, 9 * GIB), True),
    ],
)
def test_one_excessive_sample_is_tolerated_and_repeated_ones_end_the_run(
    tmp_path: Path, samples: tuple[int, ...], *, ends: bool
) -> None:
    """One excessive sample may be a process that is ending, so several are needed.

    Regression: a load that changed between too much and little with each sample was never ended.
    """
    assert ends is ended_by(run_of(tmp_path), *samples)


@pytest.mark.parametrize(
    ("kind", "ends"), [(DeviceKind.GPU, True), (DeviceKind.SIMULATED, True), (DeviceKind.CPU, False)]
)
def test_a_simulated_device_is_watched_like_a_gpu(tmp_path: Path, kind: DeviceKind, *, ends: bool) -> None:
    """The cap holds on every device that counts as a GPU.

    Regression: on a simulated device a job that asked for 1 GiB held 3.9 GiB and succeeded.
    """
    assert ends is ended_by(run_of(tmp_path, kind), 3 * GIB, 3 * GIB)


def test_a_small_excess_on_a_simulated_device_is_in_order(tmp_path: Path) -> None:
    """The interpreter of a job counts on a simulated device, so a job of 1 MiB is neither ended nor warned."""
    run = run_of(tmp_path, DeviceKind.SIMULATED)

    assert not ended_by(run, GIB + 250 * MIB, GIB + 250 * MIB)
    assert not run.notes


def test_a_failed_request_to_end_a_run_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request to end a run is repeated if it fails.

    Regression: no file descriptor was left at that moment, and the excess continued.
    """
    run = run_of(tmp_path)
    with monkeypatch.context() as short:
        short.setattr(RunDir, "ask_end", _no_descriptor)
        assert not ended_by(run, 9 * GIB, 9 * GIB)
    assert run.in_excess

    assert ended_by(run, 9 * GIB)
    assert not run.in_excess
    assert 2 == len(run.notes)


def _no_descriptor(*_: object) -> None:
    raise OSError(24, "Too many open files")


# ---- Tests of the decision when the run of a probe ends --------------------------------------------------------------


def first_end(watch: ProbeWatch, peaks: list[float], steps: list[int | None] | None = None) -> int | None:
    """Return the second in which *watch* ends a run with these peaks in GiB, one each second."""
    for second, peak in enumerate(peaks):
        count = None if steps is None else steps[second]
        if watch.reason(int(peak * GIB), float(second), count) is not None:
            return second
    return None


def test_a_flat_peak_ends_the_run() -> None:
    """The time counts from the last growth."""
    watch = ProbeWatch(Probe(flat_s=3))

    assert 6 == first_end(watch, [0, 1, 2, 5, 5, 5, 5, 5])


def test_a_run_that_uses_no_memory_yet_is_not_flat() -> None:
    """A program that still imports has shown nothing."""
    assert first_end(ProbeWatch(Probe(flat_s=3)), [0.0] * 50) is None


def test_slow_growth_is_growth() -> None:
    """A peak that creeps is compared with its last growth; noise below one percent does not count."""
    assert first_end(ProbeWatch(Probe(flat_s=3)), [1 + second / 100 for second in range(50)]) is None
    assert 3 == first_end(ProbeWatch(Probe(flat_s=3)), [1 + second / 10_000 for second in range(50)])


def test_so_many_steps_end_the_run() -> None:
    """The steps of several bars add up: a bar with a smaller count is a new one. Without a bar nothing counts."""
    watch = ProbeWatch(Probe(steps=10))

    assert 4 == first_end(watch, [1.0] * 6, [None, 4, 6, 1, 4, 5])
    assert first_end(ProbeWatch(Probe(steps=10)), [1.0] * 50, [None] * 50) is None


def test_without_a_rule_only_the_time_limit_ends_it() -> None:
    """A probe without rules never ends early."""
    assert first_end(ProbeWatch(Probe()), [1.0] * 100, [50] * 100) is None


@pytest.fixture
def run(tmp_path: Path) -> LiveRun:
    """Return a live run of a probe that ends after three steps."""
    held = Held(job_id=1, token="1.a", devices=(RunDevice(uuid="dev-0", lease_bytes=GIB),), probe="steps=3")
    return LiveRun(held=held, directory=RunDir.create(tmp_path, held), since_s=0.0)


def test_a_run_is_asked_to_end_once_and_notes_why(run: LiveRun) -> None:
    """The steps are those in its log. The shim reads what to end it as."""
    probes = Probes()
    run.directory.log.write_text("step 2/9\n")
    probes.check([run], 1.0)
    assert not os.path.lexists(run.directory.path / "cancel")

    run.directory.log.write_text("step 3/9\n")
    for second in (2.0, 3.0):
        probes.check([run], second)

    assert "timed_out" == (run.directory.path / "cancel").read_text()
    assert ["the probe ended it: it has made 3 steps"] == list(run.notes)


def test_the_reason_is_there_before_the_run_ends(run: LiveRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run can end, and its notes be sent, while the sampler still asks for its end.

    Regression: ``gpuqueue probe --flat 1s`` ended with "its time was over" after 1.5 s.
    """
    sent: list[str] = []
    monkeypatch.setattr(RunDir, "ask_end", lambda *_: run.send_notes(sent.append))
    run.directory.log.write_text("step 3/9\n")

    Probes().check([run], 1.0)

    assert ["the probe ended it: it has made 3 steps"] == sent


def test_the_end_follows_a_note_that_is_just_being_sent(run: LiveRun) -> None:
    """The end of a run is reported once the heartbeats have sent the note that they took.

    Regression: the record of a probe could be read without the reason for its end, which the heartbeats sent late.
    """
    sent: list[str] = []
    began, may_go = threading.Event(), threading.Event()

    def slowly(text: str) -> None:
        began.set()
        assert may_go.wait(60)
        sent.append(text)

    def report() -> None:
        run.send_notes(sent.append)
        sent.append("the end")

    run.notes.append("why")
    heartbeats, step = threading.Thread(target=run.send_notes, args=[slowly]), threading.Thread(target=report)
    heartbeats.start()
    assert began.wait(60)
    step.start()
    step.join(0.2)
    may_go.set()
    heartbeats.join(60)
    step.join(60)

    assert ["why", "the end"] == sent


def test_a_note_that_cannot_be_sent_stays_the_first(run: LiveRun) -> None:
    """The store is gone while the second of three notes is sent: the next try goes on with it."""
    sent: list[str] = []

    def fails_once(text: str) -> None:
        if text == "b" and "b failed" not in sent:
            sent.append("b failed")
            raise Unreachable("gone")
        sent.append(text)

    run.notes.extend("abc")
    with pytest.raises(Unreachable):
        run.send_notes(fails_once)
    run.send_notes(fails_once)

    assert ["a", "b failed", "b", "c"] == sent


def test_the_rule_is_kept_for_a_worker_that_adopts_the_run(run: LiveRun) -> None:
    """The claim in the run directory has the rule."""
    kept = run.directory.held()

    assert kept is not None
    assert "steps=3" == kept.probe


def test_a_rule_of_a_later_version_leaves_the_run_alone(run: LiveRun, tmp_path: Path) -> None:
    """A worker that cannot read the rule leaves the end to the time limit."""
    held = Held(job_id=2, token="1.b", devices=run.held.devices, probe="tokens=9")
    other = LiveRun(held=held, directory=RunDir.create(tmp_path / "other", held), since_s=0.0)
    other.meter("dev-0").note(64 * MIB, at_s=0.0, shared=False, device_bytes=64 * MIB)
    probes = Probes()

    for second in range(0, 1000, 100):
        probes.check([other], float(second))

    assert not os.path.lexists(other.directory.path / "cancel")
