"""Tests of the part of a device's utilisation that is that of one run."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from factories import make_device

from gpuqueue.model.device import Health, Reading, Utilisation
from gpuqueue.text.units import GIB
from workers.measure.monitor import own_utilisation
from workers.measure.sample import RunOnDevice, Sample

MINE, OTHER, EXTERNAL = 11, 22, 33
RUN, BESIDE = "1.a", "2.b"
ByProcess = Mapping[int, Utilisation] | None


def sample_of(*pids: int, mig_parent: str | None = None, beside: bool = False) -> Sample:
    """Return a sample of a device with these processes, a run of MINE, and *beside* it a run of OTHER."""
    own = frozenset({MINE} & set(pids))
    runs = [RunOnDevice(job_id=1, token=RUN, lease_bytes=GIB, started=True, alive=True, pids=own)]
    if beside:
        its = frozenset({OTHER} & set(pids))
        runs.append(RunOnDevice(job_id=2, token=BESIDE, lease_bytes=GIB, started=True, alive=True, pids=its))
    return Sample(
        device=make_device(mig_parent=mig_parent),
        began_s=0.0,
        reading=Reading(total_bytes=24 * GIB, free_bytes=GIB, processes=dict.fromkeys(pids, GIB)),
        runs=tuple(runs),
        counted={},
        external_processes=(),
    )


def busy_of(sample: Sample, device: float | None, by_process: ByProcess = None) -> float | None:
    """Return the share of time in which the device, busy for *device* of it, worked for the run RUN."""
    found = own_utilisation(RUN, sample, Health(utilisation=device), lambda: by_process)
    return None if found is None else found.busy


def shares(**busy: float) -> dict[int, Utilisation]:
    """Return the utilisation by these processes, by their names above in lower case."""
    pids = {"mine": MINE, "other": OTHER, "external": EXTERNAL, "hidden": 44}
    return {pids[name]: Utilisation(busy=share, memory=share / 2) for name, share in busy.items()}


@pytest.mark.parametrize(
    ("device", "by_process", "busy"),
    [
        (0.6, None, 0.6),
        (0.6, {}, 0.6),
        (0.0, None, 0.0),
        (0.0, {}, 0.0),
        (0.0, shares(mine=0.3), 0.3),  # a video engine, which is no part of the device's figure
        (None, None, None),
        (None, {}, None),
    ],
)
def test_alone_the_devices_figure_is_the_runs(device: float | None, by_process: ByProcess, busy: float | None) -> None:
    """Of a run that is alone the device's utilisation is its own. Without that figure it is unknown."""
    assert busy == busy_of(sample_of(MINE), device, by_process)


@pytest.mark.parametrize(
    ("device", "by_process", "busy"),
    [
        (0.9, None, None),
        (0.9, shares(mine=0.2, other=0.7), 0.2),
        (0.9, shares(other=0.9), 0.0),
        (0.0, {}, 0.0),
        (0.9, {}, None),  # the device works for a process that the driver does not report
        (0.9, shares(other=0.5, hidden=0.4), None),  # a process of another pid namespace, perhaps of this run
        (None, shares(other=0.9), None),
    ],
)
def test_beside_others_only_figures_by_process_count(
    device: float | None, by_process: ByProcess, busy: float | None
) -> None:
    """On a shared device the device's figure is nobody's. What the driver does not report is unknown, not 0."""
    assert busy == busy_of(sample_of(MINE, OTHER, beside=True), device, by_process)


def test_an_external_process_and_a_run_without_one_share_the_device() -> None:
    """A device is shared with an external process, and with a run whose processes the driver does not list."""
    assert busy_of(sample_of(MINE, EXTERNAL), 0.9) is None
    assert busy_of(sample_of(MINE, beside=True), 0.9) is None


def test_a_busy_device_without_a_process_works_for_somebody_hidden() -> None:
    """A run without a process on the device does not use it, but a device that is busy then hides a process."""
    assert busy_of(sample_of(), 0.9) is None
    assert 0.0 == busy_of(sample_of(), 0.0)


def test_the_cards_figure_is_not_that_of_a_part() -> None:
    """A MIG instance has only the figures of its card, which cover other instances."""
    assert busy_of(sample_of(MINE, mig_parent="GPU-9"), 0.9, shares(mine=0.9)) is None
