from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from factories import make_device
from hypothesis import given
from hypothesis import strategies as st

from gpuqueue.model.device import Health, Reading, Utilisation
from gpuqueue.text.units import GIB
from workers.measure.monitor import own_utilisation
from workers.measure.sample import ExternalProcesses, RunOnDevice, Sample, external_bytes


def test_freed_memory_counts_by_half_less_each_minute() -> None:
    """A notebook that freed 16 of its 18 GB may take them again soon, and less likely with each minute.

    Regression: its peak counted in full for five minutes. Jobs of 16 GB waited beside 22 GB that were free.
    """
    external_processes = ExternalProcesses(half_life_s=60)

    counted = [
        external_processes.note({7: used}, (), now_s)[7] for now_s, used in ((0, 18), (60, 2), (120, 2), (180, 2))
    ]

    assert [18, 10, 6, 4] == counted


def test_more_than_before_counts_at_once() -> None:
    """A process that grows counts with what it has, whatever it had before."""
    external_processes = ExternalProcesses(half_life_s=60)

    assert [10, 30] == [external_processes.note({7: used}, (), now_s)[7] for now_s, used in ((0, 10), (1, 30))]


@given(st.lists(st.tuples(st.floats(0, 1000), st.integers(0, 2**40)), min_size=1))
def test_never_less_counts_than_is_used(steps: list[tuple[float, int]]) -> None:
    """What is counted is at least what is used now, and at most the most that was ever used."""
    external_processes, now_s = ExternalProcesses(half_life_s=60), 0.0
    for number, (passed_s, used) in enumerate(steps):
        now_s += passed_s
        counted = external_processes.note({7: used}, (), now_s)[7]
        assert used <= counted <= max(before for _, before in steps[: number + 1])


def test_without_a_half_life_only_the_present_counts() -> None:
    """A site where external processes do not come back may count only what they use now."""
    external_processes = ExternalProcesses(half_life_s=None)

    assert [18, 2] == [external_processes.note({7: used}, (), now_s)[7] for now_s, used in ((0, 18), (1, 2))]


def test_an_ended_external_process_is_forgotten_at_once() -> None:
    """An ended external process is forgotten at once. A later process with the same pid starts without a history."""
    external_processes = ExternalProcesses(60)
    external_processes.note({7: 10}, (), 0.0)

    assert {} == external_processes.note({}, (), 1.0)
    assert {7: 1} == external_processes.note({7: 1}, (), 2.0)


def test_our_processes_and_unreported_ones_are_no_external_processes() -> None:
    """Processes of jobs and processes with unknown memory are not listed.

    Unknown memory is already in the used bytes.
    """
    assert {9: 3} == ExternalProcesses(60).note({7: 5, 8: None, 9: 3}, {7}, 0.0)


def external(**changes: Any) -> int:
    """Return the external memory of a device that uses 20: a job 12, an external process 5, and no known process 3."""
    sample: dict[str, Any] = {
        "used": 20,
        "processes": {1: 12, 2: 5},
        "ours": {1},
        "external_processes": {2: 5},
        "leased": 0,
    }
    return external_bytes(**{**sample, **changes})


def test_external_memory_is_all_that_is_not_ours() -> None:
    """External memory is the remembered peak of external processes plus the memory that no process owns."""
    assert 8 == external()
    assert 13 == external(external_processes={2: 10})
    assert 5 == external(used=17, processes={1: 12}, external_processes={})


def test_unreported_memory_of_ours_is_not_counted_twice() -> None:
    """Job memory that the driver does not report is in the used bytes and in the leases.

    The lease is subtracted once.
    """
    assert 8 == external(processes={1: None, 2: 5}, leased=12)
    assert 5 == external(processes={1: None, 2: 5}, leased=15)


def test_beside_an_unreported_external_process_all_memory_is_external() -> None:
    """If an external process is unknown too, nothing counts as job memory.

    The card then offers less than it could, and never more than it has.
    """
    assert 20 == external(processes={1: None, 2: None}, external_processes={}, leased=12)


@given(
    ours=st.dictionaries(st.integers(1, 9), st.integers(0, 50), max_size=5),
    others=st.dictionaries(st.integers(10, 19), st.tuples(st.integers(0, 50), st.integers(0, 50)), max_size=5),
    unnamed=st.integers(0, 20),
    granted=st.dictionaries(st.integers(1, 12), st.integers(0, 60), max_size=8),
)
def test_allocations_never_exceed_free_less_allocated_and_unused_memory(
    ours: dict[int, int], others: dict[int, tuple[int, int]], unnamed: int, granted: dict[int, int]
) -> None:
    """The claim's sum (see leases.lua) with this figure never offers more than the driver reports.

    The upper limit is the free memory less the leases that are not yet used. This holds for any processes.
    """
    total = 1000
    used = sum(ours.values()) + sum(now for now, _ in others.values()) + unnamed
    counted = external_bytes(
        used=used,
        processes={**ours, **{pid: now for pid, (now, _) in others.items()}},
        ours=set(ours),
        external_processes={pid: max(now, before) for pid, (now, before) in others.items()},
        leased=0,
    )
    leases = {**dict.fromkeys(ours, 0), **granted}

    available = total - counted - sum(max(lease, ours.get(pid, 0)) for pid, lease in leases.items())

    not_yet_taken = sum(max(0, lease - ours.get(pid, 0)) for pid, lease in leases.items())
    assert available <= total - used - not_yet_taken


# ---- Tests of the part of a device's utilisation that is that of one run ---------------------------------------------

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
