"""The replay of learned memory over recorded jobs, on SQLite and on PostgreSQL."""

from __future__ import annotations

from typing import Any

import pytest
from factories import ADA, BOB, make_spec
from outbox import Outbox, second

from gpuqueue.history import queries
from gpuqueue.history.connect import reading
from gpuqueue.history.database import HistoryDatabase
from gpuqueue.model.array import Array
from gpuqueue.model.device import DeviceKind, Peak, PeakSource
from gpuqueue.model.job_spec import Account, JobSpec
from gpuqueue.model.learning_report import LearningReport, MemRule, ReplayFigures
from gpuqueue.model.run import Ending, EndingKind, RunDevice
from gpuqueue.text.units import GIB

WELL = Ending.from_status(0)
DIED = Ending.stopped(EndingKind.OUT_OF_MEMORY, 1)
END = second(1000)
#: The duration of each run in seconds.
TOOK_S = 10.0


def train(*args: str, account: Account = ADA, **changes: Any) -> JobSpec:
    """Return the spec of a script with *args*."""
    argv = ("/venv/python", "train.py", *args)
    return make_spec(
        argv=argv, script="train.py", interpreter="/venv/python", cwd="/home/ada", account=account, **changes
    )


def run(
    outbox: Outbox, job_id: int, *peaks: float, lease: float = 8, ending: Ending = WELL, attempt: int = 1, **given: Any
) -> None:
    """Add a run of a job with these peaks in GiB, one for each device, each with *lease* GiB."""
    devices = tuple(
        RunDevice(
            uuid=f"GPU-{number}",
            lease_bytes=int(lease * GIB),
            name="A10",
            kind=DeviceKind.GPU,
            total_bytes=24 * GIB,
            peak=Peak(bytes=int(peak * GIB), source=PeakSource.NVML_SAMPLED, samples=50),
        )
        for number, peak in enumerate(peaks)
    )
    outbox.run(job_id, devices, ending, attempt=attempt, duration_s=TOOK_S, claimed=given)


def ran(outbox: Outbox, job_id: int, spec: JobSpec, *peaks: float, **given: Any) -> None:
    """Add a job with one run."""
    outbox.submit(job_id, spec)
    run(outbox, job_id, *peaks, **given)


def replayed(database: HistoryDatabase, **changes: Any) -> LearningReport:
    """Return the replay of all that is recorded."""
    return database.learning(**{"since": second(0), "until": END, **changes})


def of(report: LearningReport, rule: MemRule) -> ReplayFigures:
    """Return the figures of a rule."""
    return next(group.figures for group in report.rules if group.key == rule.value)


def test_each_rule_is_replayed_over_the_repeat_jobs(database: HistoryDatabase, outbox: Outbox) -> None:
    """The first job teaches; each later one is replayed with what the jobs before it had shown."""
    # The learned number is 6.5 GiB after one and two peaks of 5 GiB, and 5.8 GiB after three: the fourth job needs 6.
    for job_id, peak in enumerate((5, 5, 5, 6), 1):
        ran(outbox, job_id, train(), peak)
    outbox.record()

    report = replayed(database)

    assert (4, 0, 1, 3, False) == (report.jobs, report.unclear, report.first, report.repeats, report.is_cut)
    assert (3, 3, 0) == (of(report, MemRule.ASKED).jobs, of(report, MemRule.ASKED).fitted, 0)
    learned = of(report, MemRule.LEARNED)
    assert (2, 1) == (learned.fitted, learned.lost_tries)
    assert pytest.approx((5 + 5 + 6) * GIB * TOOK_S) == learned.used_byte_s
    lost, again = 5.8 / 2, 2 * 5.8  # half of its time, then twice as much
    assert pytest.approx((6.5 + 6.5 + lost + again) * GIB * TOOK_S, rel=1e-3) == learned.reserved_byte_s
    assert [("arguments", 3)] == [(each.key, each.figures.jobs) for each in report.signatures]


def test_a_run_that_filled_its_allocation_or_lacked_memory_has_no_known_need(
    database: HistoryDatabase, outbox: Outbox
) -> None:
    # Failures are not read at all.
    ran(outbox, 1, train(), 5)
    ran(outbox, 2, train(), 7.9)
    ran(outbox, 3, train(), 5, ending=DIED)
    ran(outbox, 4, train(), 5, ending=Ending.from_status(1))
    outbox.submit(5, train())
    outbox.record()

    report = replayed(database)

    assert (3, 2, 1, 0) == (report.jobs, report.unclear, report.first, report.repeats)
    assert of(report, MemRule.LEARNED).fit_rate is None


def test_a_job_after_a_lack_of_memory_asked_for_too_little(database: HistoryDatabase, outbox: Outbox) -> None:
    # The need is that of the last one.
    ran(outbox, 1, train(), 5)
    ran(outbox, 2, train(), 4, lease=4, ending=DIED)
    run(outbox, 2, 5, lease=8, attempt=2)
    outbox.record()

    asked = of(replayed(database), MemRule.ASKED)

    assert (1, 0, 1) == (asked.jobs, asked.fitted, asked.lost_tries)


def test_memory_counts_on_each_device(database: HistoryDatabase, outbox: Outbox) -> None:
    """A run on two devices reserves the number on both, and uses the peak of each."""
    ran(outbox, 1, train(), 5, 3)
    ran(outbox, 2, train(), 5, 3)
    outbox.record()

    learned = of(replayed(database), MemRule.LEARNED)

    assert pytest.approx(2 * 6.5 * GIB * TOOK_S) == learned.reserved_byte_s
    assert pytest.approx((5 + 3) * GIB * TOOK_S) == learned.used_byte_s


def test_only_jobs_that_had_ended_teach(database: HistoryDatabase, outbox: Outbox) -> None:
    """A job that was submitted before the first one ended had nothing to learn from."""
    outbox.submit(1, train())
    outbox.submit(2, train())
    run(outbox, 1, 5)
    run(outbox, 2, 5)
    ran(outbox, 3, train(), 5)
    outbox.record()

    assert (2, 1) == (replayed(database).first, replayed(database).repeats)


def test_each_account_has_its_own_earlier_runs_and_can_be_asked_for_alone(
    database: HistoryDatabase, outbox: Outbox
) -> None:
    for job_id, account in enumerate((ADA, BOB, ADA, BOB, ADA), 1):
        ran(outbox, job_id, train(account=account), 5)
    outbox.record()

    assert (5, 2) == (replayed(database).jobs, replayed(database).first)
    assert (3, 1) == (replayed(database, user="ada").jobs, replayed(database, user="ada").first)
    assert 0 == replayed(database, user="eve").jobs


def test_nobody_asked_for_the_device_of_a_probe(database: HistoryDatabase, outbox: Outbox) -> None:
    """A probe teaches, and is not counted as a repeat job: its whole device would spoil what people ask for."""
    ran(outbox, 1, train(probe="flat=60", time_limit_s=600.0), 5, lease=24)
    ran(outbox, 2, train(), 5)
    outbox.record()

    report = replayed(database)

    assert (2, 1, 0, 1) == (report.jobs, report.unclear, report.first, report.repeats)


def test_the_members_of_an_array_are_jobs_with_their_own_arguments(database: HistoryDatabase, outbox: Outbox) -> None:
    outbox.submit(1, train("--lr", "{lr}", array=Array.asked(None, ["lr=1,1"], None)))
    outbox.record()
    for member, index in ((2, 0), (3, 1)):
        run(outbox, member, 5, of="1", index=str(index), left="" if index else "1", held="")
        outbox.record()

    report = replayed(database)

    assert (2, 0) == (report.jobs, report.unclear)


def test_only_the_period_is_read_and_only_so_many_jobs(database: HistoryDatabase, outbox: Outbox) -> None:
    """The newest jobs of the period are read, up to the limit, and the report says that there are more."""
    for job_id in range(1, 6):
        ran(outbox, job_id, train(), 5)
    outbox.record()

    assert 2 == replayed(database, until=second(9)).jobs
    with reading(database._engine) as connection:
        found, is_cut = queries.past_jobs(connection, since=second(0), until=END, user=None, limit=3)
        assert ([3, 4, 5], True) == ([job.id for job in found], is_cut)
        found, is_cut = queries.past_jobs(connection, since=second(0), until=END, user=None, limit=5)
        assert ([1, 2, 3, 4, 5], False) == ([job.id for job in found], is_cut)


def test_a_long_history_is_not_read_from_its_beginning(database: HistoryDatabase) -> None:
    # PostgreSQL needs figures about many rows to plan so.
    query = queries._with_runs(queries._newest(second(0), END, None, 10))
    with reading(database._engine) as connection:
        if connection.dialect.name != "sqlite":
            pytest.skip("its plan of an empty table says nothing")
        statement = query.compile(connection, compile_kwargs={"literal_binds": False})
        values = tuple(statement.params[name] for name in statement.positiontup or ())
        plan = str(connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", _plain(values)).all())
    assert "ix_jobs_ended_at" in plan, plan
    assert "SCAN jobs" not in plan, plan


def _plain(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return parameters as SQLite takes them: the plan does not depend on the times."""
    return tuple(str(value) if hasattr(value, "isoformat") else value for value in values)
