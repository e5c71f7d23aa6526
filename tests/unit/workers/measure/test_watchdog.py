"""Tests of the memory limit that the sampler enforces: when a run is warned, and when it is ended."""

from __future__ import annotations

from pathlib import Path

import pytest
from factories import make_device

from gpuqueue.model.device import DeviceKind, Reading
from gpuqueue.model.run import RunDevice
from gpuqueue.text.units import GIB, MIB
from workers.measure.active_runs import LiveRun
from workers.measure.sample import RunOnDevice, Sample
from workers.measure.sampler import Excess, enforce_limit, excess, limit_bytes
from workers.run.directory import Held, RunDir


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
