from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from factories import make_spec

from gpuqueue.clock import SystemClock
from gpuqueue.model.device import Device, DeviceKind, Peak, PeakSource, Reading
from gpuqueue.model.run import RunDevice
from gpuqueue.settings.settings import Settings
from gpuqueue.system.process import ProcessIdentity
from workers.devices.select import choose
from workers.devices.simulated import SimulatedBackend
from workers.measure.active_runs import LiveRun, LiveRuns
from workers.measure.monitor import MOMENT_S, DeviceMonitor
from workers.measure.peak import gap_note, measured_devices
from workers.measure.sampler import FIRST_S, Sampler
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
