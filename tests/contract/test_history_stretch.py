"""By how much runs took longer beside others than alone, on SQLite and on PostgreSQL, with results computed by hand."""

from __future__ import annotations

from typing import Any

import pytest
from factories import ADA, BOB, make_spec
from outbox import Outbox, facts, second

from gpuqueue.history.database import HistoryDatabase
from gpuqueue.model.device import Peak, PeakSource
from gpuqueue.model.job import JobState
from gpuqueue.model.run import Ending, RunDevice
from gpuqueue.model.statistics import By, Stretch

WELL = Ending.from_status(0)


#: Whether others were on a device.
SHARED = {"alone": False, "shared": True, "unknown": None}


def on(how: str, *uuids: str) -> tuple[RunDevice, ...]:
    """Return devices of a run, which were shared or not, or for which that is unknown."""
    peak = Peak(bytes=1, source=PeakSource.NVML_SAMPLED, samples=50, shared=SHARED[how])
    return facts(",".join(uuids or ("GPU-0",)), peak)


def ran(
    outbox: Outbox, duration_s: float, *devices: RunDevice, command: str = "a", ending: Ending = WELL, **spec: Any
) -> None:
    """Add a job with one run."""
    job_id = outbox.number + 1
    outbox.submit(job_id, make_spec(argv=("train", command), **spec))
    state = JobState.SUCCEEDED if ending == WELL else JobState.FAILED
    outbox.run(job_id, devices, ending, state=state, duration_s=duration_s)


def found(database: HistoryDatabase, first: int = 0, last: int = 1000, user: str | None = None) -> Stretch | None:
    """Return the stretch of the runs that ended from the one event to the other."""
    return database.statistics(by=By.USER, since=second(first), until=second(last), user=user).stretch


def test_a_shared_run_is_compared_with_the_mean_of_those_alone(database: HistoryDatabase, outbox: Outbox) -> None:
    for duration_s in (90, 110):
        ran(outbox, duration_s, *on("alone"))
    for duration_s in (120, 140):
        ran(outbox, duration_s, *on("shared"))
    outbox.record()

    assert Stretch(factor=1.3, commands=1, shared_runs=2, alone_runs=2) == found(database)


def test_commands_are_compared_apart(database: HistoryDatabase, outbox: Outbox) -> None:
    """A long command and a short one: 150 and 20 s took what 100 and 10 s take alone. A third one was never alone."""
    ran(outbox, 100, *on("alone"), command="long")
    ran(outbox, 150, *on("shared"), command="long")
    ran(outbox, 10, *on("alone"), command="short")
    ran(outbox, 20, *on("shared"), command="short")
    ran(outbox, 999, *on("shared"), command="other")
    outbox.record()

    reported = found(database)
    assert reported is not None
    assert (2, 2, 2) == (reported.commands, reported.shared_runs, reported.alone_runs)
    assert 170 / 110 == pytest.approx(reported.factor)


@pytest.mark.parametrize(
    "other",
    [
        {"account": BOB},
        {"command": "b"},
        {"ending": Ending.from_status(1)},
        {"devices": on("unknown")},
        {"devices": (*on("shared", "GPU-0"), *on("unknown", "GPU-1"))},
    ],
)
def test_what_cannot_be_compared_does_not_count(
    database: HistoryDatabase, outbox: Outbox, other: dict[str, Any]
) -> None:
    """A run of another user or command, that failed, or of which it is unknown whether it shared all its devices."""
    ran(outbox, 100, *on("alone"), account=ADA)
    spec = {"account": ADA, **other}
    ran(outbox, 500, *spec.pop("devices", on("shared")), **spec)
    outbox.record()

    assert found(database) is None


def test_a_run_on_two_devices_waits_for_the_slower_one(database: HistoryDatabase, outbox: Outbox) -> None:
    ran(outbox, 100, *on("alone", "GPU-0", "GPU-1"))
    ran(outbox, 200, *on("alone", "GPU-0"), *on("shared", "GPU-1"))
    outbox.record()

    assert Stretch(factor=2, commands=1, shared_runs=1, alone_runs=1) == found(database)


def test_the_period_and_the_user_select_the_runs(database: HistoryDatabase, outbox: Outbox) -> None:
    # The last run of ada is out of the period, and bob's are his own.
    for duration_s, how in ((100, "alone"), (200, "shared"), (900, "shared")):
        ran(outbox, duration_s, *on(how), account=ADA)
    outbox.record()

    assert Stretch(factor=2, commands=1, shared_runs=1, alone_runs=1) == found(database, last=12, user="ada")
    assert found(database, last=12, user="bob") is None
    assert found(database, first=5, last=12) is None, "the run alone ended before"
