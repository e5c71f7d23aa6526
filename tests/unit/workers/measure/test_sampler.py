from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from factories import make_spec

from gpuqueue.clock import SystemClock
from gpuqueue.model.device import Device, DeviceKind, Peak, PeakSource, Reading
from gpuqueue.model.run import RunDevice
from gpuqueue.system.process import ProcessIdentity
from workers.devices.select import choose
from workers.measure.active_runs import LiveRun, LiveRuns
from workers.measure.sampler import FIRST_S, Sampler
from workers.measure.watchdog import Watchdog
from workers.run.directory import RunDir
from workers.run.values import Held


def peak_on(kind: DeviceKind | None, place: Path, spec: str) -> Peak:
    """Return the peak of a run on a device of *kind*, as reported by a worker of *spec*.

    The sampler measured 7 bytes and the kernel 9.
    """
    device = RunDevice(uuid="dev-0", lease_bytes=1, kind=kind)
    held = Held(job_id=1, token="1.a", devices=(device,), capped=True)
    run = LiveRun(held=held, directory=RunDir.create(place, held), since_s=0.0)
    if kind is not None:
        run.meter("dev-0").note(7, at_s=0.0, shared=False, device_bytes=7)
    runs = LiveRuns()
    (reported,) = Sampler(choose(spec, "box"), runs, SystemClock(), Watchdog(runs)).reported(run, 9, None)
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
    } == {kind: (peak.bytes, peak.source) for kind, peak in peaks.items()}


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


def test_the_first_look_at_a_run_is_not_in_the_way_of_its_start(tmp_path: Path) -> None:
    """The first sample of a run is delayed.

    Regression: it came at once, found only the shim, and delayed the start of this job and the next.
    """
    runs, stopping = LiveRuns(), Stopping()
    held = Held(job_id=1, token="1.a", devices=(RunDevice(uuid="dev-0", lease_bytes=1),))
    runs.add(LiveRun(held=held, directory=RunDir.create(tmp_path, held), since_s=0.0))

    Sampler(choose("sim:24G", "box"), runs, SystemClock(), Watchdog(runs)).loop(stopping)

    assert [FIRST_S] == stopping.waits_s


def test_a_look_that_a_claim_has_just_taken_is_a_sample(tmp_path: Path) -> None:
    """A recent reading for a claim is used as a sample.

    Regression: in a series of short jobs the device was read for each claim and again for each peak.
    """
    backend, runs, clock = choose("sim:24G", "box"), LiveRuns(), SystemClock()
    (device,) = backend.devices()
    began_s = clock.monotonic_s()
    held = Held(job_id=1, token="1.a", devices=(RunDevice(uuid=device.uuid, lease_bytes=1),))
    run = LiveRun(held=held, directory=RunDir.create(tmp_path, held), since_s=began_s)
    (run.directory.path / "pid").write_text(f"{ProcessIdentity.of(os.getpid())}\n")
    runs.add(run)
    ours = Reading(total_bytes=24, free_bytes=20, processes={os.getpid(): 4})
    asked: list[float] = []

    def newest(_device: Device, since_s: float) -> Reading | None:
        asked.append(since_s)
        return ours

    Sampler(backend, runs, clock, Watchdog(lambda _device, _reading: 0), newest=newest).sample()

    assert [began_s + FIRST_S / 2] == asked, "one from before its start would not have seen it"
    assert 4 == run.at_once_bytes
    assert 0 == run.meter(device.uuid).samples, "who took the look has noted it"


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
