"""Statistics of a small history with results computed by hand, on SQLite and on PostgreSQL."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from factories import ADA, BOB, make_spec
from outbox import Outbox

from gpuqueue.codec.request import encode_ended, encode_started
from gpuqueue.history.connect import writing
from gpuqueue.history.database import HistoryDatabase
from gpuqueue.history.statistics import local_days
from gpuqueue.history.tables import runs
from gpuqueue.model.device import Activity, DeviceKind, Peak, PeakSource
from gpuqueue.model.event import Act
from gpuqueue.model.history_query import HistoryQuery
from gpuqueue.model.job import JobState
from gpuqueue.model.job_spec import Account
from gpuqueue.model.run import Ending, EndingKind, RunDevice
from gpuqueue.model.statistics import By, Figures, Statistics
from gpuqueue.text.units import GIB

NOON = datetime(2026, 11, 3, 12, tzinfo=timezone.utc)
HOUR = 3600.0


def at(hours: float) -> datetime:
    """Return the time *hours* after noon."""
    return NOON + timedelta(hours=hours)


class Diary(Outbox):
    """An outbox whose events have given times."""

    def when(self, hours: float, *event: Any, **given: Any) -> None:
        """Add one event of the given time."""
        self.report(*event, **given)
        self.reported[-1] = replace(self.reported[-1], at=at(hours))

    def run(  # noqa: PLR0913 - each is one thing about a run
        self,
        job_id: int,
        account: Account,
        *hours: float,
        on: str = "GPU-a",
        lease: int = 10 * GIB,
        peak: int | None = 5 * GIB,
        ending: Ending | None = None,
        kind: DeviceKind = DeviceKind.GPU,
        busy: float | None = 0.5,
        host: str = "nodeA",
        suspended_s: float = 0.0,
    ) -> None:
        """Add a job that is submitted, claimed and, if there is a third time, ended at these hours."""
        submitted, claimed, *ended = hours
        what = Peak.unknown() if peak is None else Peak(bytes=peak, source=PeakSource.TORCH, samples=1)
        devices = tuple(
            RunDevice(
                uuid=uuid,
                lease_bytes=lease,
                index=number,
                name="card",
                kind=kind,
                peak=what,
                activity=Activity(utilisation_mean=busy),
            )
            for number, uuid in enumerate(on.split(","))
        )
        token = {"token": f"1.{job_id}"}
        self.submit(job_id, make_spec(account=account, mem_bytes=lease))
        self.reported[-1] = replace(self.reported[-1], at=at(submitted))
        claim = {**token, "host": host, "worker": "w", "devices": on, "lease": str(lease)}
        self.when(claimed, job_id, Act.CLAIM, JobState.STARTING, **claim)
        started = encode_started(log_path="/log", devices=devices)
        self.when(claimed, job_id, Act.STARTED, JobState.RUNNING, **token, started=started)
        for end in ended:
            how = ending or Ending.from_status(0)
            payload = encode_ended(ending=how, duration_s=(end - claimed) * HOUR - suspended_s, devices=devices)
            state = JobState.SUCCEEDED if how == Ending.from_status(0) else JobState.FAILED
            self.when(end, job_id, Act.FINISH, state, **token, ended=payload)


@pytest.fixture
def diary(database: HistoryDatabase) -> Diary:
    """Return an empty diary for the empty history."""
    return Diary(database)


def ask(database: HistoryDatabase, by: By = By.USER, since: float = 0, until: float = 10, **given: Any) -> Statistics:
    """Return the statistics from *since* to *until* hours after noon."""
    return database.statistics(by=by, since=at(since), until=at(until), **given)


def of(statistics: Statistics, name: str) -> dict[str, Any]:
    """Return one figure of each group, by label."""
    return {group.label: getattr(group.figures, name) for group in statistics.groups}


def test_an_empty_history_has_no_groups_amounts_of_0_and_unknown_rates(database: HistoryDatabase) -> None:
    reported = ask(database)

    assert ((), Figures()) == (reported.groups, reported.total)
    assert (None, None, None, None) == (
        reported.total.failure_rate,
        reported.total.used,
        reported.total.wait_median_s,
        reported.total.utilisation,
    )


def test_a_run_counts_on_each_of_its_devices_and_once_as_a_run(database: HistoryDatabase, diary: Diary) -> None:
    # Two cards for two hours are four GPU-hours of one run, and two hours on each card.
    diary.run(1, ADA, 0, 1, 3, on="GPU-a,GPU-b")
    diary.record()

    by_user, by_device = ask(database), ask(database, By.DEVICE)

    assert {"ada": 4 * HOUR} == pytest.approx(of(by_user, "gpu_s"))
    assert ({"ada": 1}, {"ada": 1}) == (of(by_user, "runs"), of(by_user, "jobs"))
    assert {"nodeA:0": 2 * HOUR, "nodeA:1": 2 * HOUR} == pytest.approx(of(by_device, "gpu_s"))
    assert (1, 4 * HOUR) == (by_device.total.runs, pytest.approx(by_device.total.gpu_s))


def test_the_ratio_of_used_to_requested_memory_is_weighted_by_time(database: HistoryDatabase, diary: Diary) -> None:
    # Three hours at 2 of 24 GiB count more than one at 10 of 12. Unmeasured time is left out and reported.
    diary.run(1, ADA, 0, 0, 3, lease=24 * GIB, peak=2 * GIB)
    diary.run(2, ADA, 3, 3, 4, lease=12 * GIB, peak=10 * GIB)
    diary.run(3, ADA, 4, 4, 5, lease=6 * GIB, peak=None)
    diary.run(4, BOB, 5, 5, 6, lease=6 * GIB, peak=None)
    diary.record()

    reported = ask(database)

    assert {"ada": 16 / 84, "bob": None} == pytest.approx(of(reported, "used"))
    assert {"ada": 90 / 5 * GIB, "bob": 6 * GIB} == pytest.approx(of(reported, "asked_bytes"))
    assert {"ada": 4 * GIB, "bob": None} == pytest.approx(of(reported, "peak_bytes"))
    assert {"ada": 4 / 5, "bob": 0.0} == pytest.approx(of(reported, "measured"))


def test_only_what_lies_in_the_period_counts(database: HistoryDatabase, diary: Diary) -> None:
    """Runs are cut to the period: those that start before it, end after it or have not ended."""
    diary.run(1, ADA, -3, -2, 1)
    diary.run(2, ADA, 8, 9, 20)
    diary.run(3, BOB, 6, 7)
    diary.run(4, ADA, -9, -8, -5)
    diary.run(5, ADA, 11, 12, 13)
    diary.record()

    reported = ask(database)

    assert {"ada": 2 * HOUR, "bob": 3 * HOUR} == pytest.approx(of(reported, "held_s"))
    assert {"ada": 1.5 * HOUR, "bob": 2.5 * HOUR} == pytest.approx(of(reported, "gpu_s")), "they share the last hour"
    assert ({"ada": 2, "bob": 1}, {"ada": 1, "bob": 0}) == (of(reported, "runs"), of(reported, "ended"))
    assert {"ada": 1, "bob": 1} == of(reported, "waits")
    assert {"ada": HOUR, "bob": HOUR} == pytest.approx(of(reported, "wait_max_s"))


def test_the_time_of_a_suspended_host_is_not_counted(database: HistoryDatabase, diary: Diary) -> None:
    """A laptop slept for eight hours, and 80 seconds on two devices counted as 16 GPU-hours."""
    diary.run(1, ADA, 0, 0, 8, on="GPU-a,GPU-b", suspended_s=8 * HOUR - 40)
    diary.record()

    found = ask(database)

    assert 80 == pytest.approx(found.total.gpu_s)
    assert 40 * 20 * GIB == pytest.approx(found.total.asked_byte_s)


def test_waits_are_ranked_and_only_the_first_claim_ends_one(database: HistoryDatabase, diary: Diary) -> None:
    """Median and 95th percentile are actual waits, and only the first claim of a job ends a wait."""
    # A run after a loss is no second wait.
    for number in range(1, 21):
        diary.run(number, ADA, 0, number / 10, 3)
    diary.record()
    diary.when(4, 1, Act.CLAIM, JobState.STARTING, attempt=2, token="2.1", host="h", worker="w", devices="G", lease="1")
    diary.record()

    figures = ask(database).total

    assert (20, HOUR, 1.9 * HOUR, 2 * HOUR) == pytest.approx(
        (figures.waits, figures.wait_median_s, figures.wait_p95_s, figures.wait_max_s), abs=0.01
    )


def test_rates_are_of_the_runs_that_ended(database: HistoryDatabase, diary: Diary) -> None:
    # A cancelled run is no failure, and an exit code other than 0 is one.
    endings = [
        Ending.from_status(0),
        Ending.from_status(3),
        Ending.stopped(EndingKind.OUT_OF_MEMORY, 1),
        Ending.stopped(EndingKind.TIMED_OUT, -15),
        Ending.stopped(EndingKind.CANCELLED, -15),
    ]
    for number, ending in enumerate(endings, start=1):
        diary.run(number, ADA, 0, 0, 1, ending=ending)
    diary.run(9, ADA, 0, 1)
    diary.record()

    figures = ask(database).total

    assert (6, 5, 1, 1, 1, 1, 3) == (
        figures.runs,
        figures.ended,
        figures.succeeded,
        figures.cancelled,
        figures.out_of_memory,
        figures.timed_out,
        figures.failed,
    )
    assert (0.6, 0.2) == (figures.failure_rate, figures.out_of_memory_rate)


def test_a_lack_of_memory_that_was_repaired_is_no_failure(database: HistoryDatabase, diary: Diary) -> None:
    """A job died for lack of memory and ran again with more: it counts as out of memory, and not as a failure."""
    diary.run(1, ADA, 0, 0, 1, ending=Ending.stopped(EndingKind.OUT_OF_MEMORY, 1))
    diary.record()
    again = {"job_id": 1, "attempt": 2, "token": "2.1", "host": "nodeA", "worker": "w"}
    moments = {"claimed_at": at(2), "ended_at": at(3), "ending": "exited", "exit_code": 0}
    with writing(database._engine) as connection:
        connection.execute(runs.insert().values(**again, **moments))

    figures = ask(database).total

    assert (2, 1, 1, 1, 0, 0.0, 0.5) == (
        figures.ended,
        figures.succeeded,
        figures.out_of_memory,
        figures.repaired,
        figures.failed,
        figures.failure_rate,
        figures.out_of_memory_rate,
    )


def test_a_device_is_found_by_the_name_that_lists_give_it(database: HistoryDatabase, diary: Diary) -> None:
    # Regression: only the UUID worked, which no list shows.
    diary.run(1, ADA, 0, 0, 1)
    diary.run(2, ADA, 0, 1, 2, on="GPU-b", host="nodeB")
    diary.record()

    assert [2] == [record.job.id for record in database.history(HistoryQuery(device="nodeB:0"))]
    assert [] == database.history(HistoryQuery(device="nodeB:1"))


def test_jobs_that_share_a_card_share_its_time(database: HistoryDatabase, diary: Diary) -> None:
    """Regression: four jobs on one card for an hour counted as four GPU-hours. By what they were allocated, it is one.

    A user alone has all of the time. What others do on the card counts even if only one user is asked for.
    """
    diary.run(1, ADA, 0, 0, 2, lease=6 * GIB)
    diary.run(2, BOB, 0, 1, 2, lease=18 * GIB)
    diary.run(3, BOB, 0, 1, 3, lease=2 * GIB, on="GPU-b", host="nodeB")
    diary.record()

    found = ask(database)
    assert {"ada": 1.25 * HOUR, "bob": 2.75 * HOUR} == pytest.approx(of(found, "gpu_s"))
    assert (4 * HOUR, 5 * HOUR) == (pytest.approx(found.total.gpu_s), pytest.approx(found.total.held_s))
    assert 1.25 * HOUR == pytest.approx(ask(database, user="ada").total.gpu_s)
    assert {"nodeA": 2 * HOUR, "nodeB": 2 * HOUR} == pytest.approx(of(ask(database, By.HOST), "gpu_s"))


def test_a_cpu_is_no_gpu_and_utilisation_is_weighted(database: HistoryDatabase, diary: Diary) -> None:
    """CPU hours are separate from GPU hours, and utilisation is weighted by the time for which it is known."""
    diary.run(1, ADA, 0, 0, 1, kind=DeviceKind.CPU, on="cpu-x", busy=None)
    diary.run(2, ADA, 0, 1, 4, busy=0.2)
    diary.run(3, ADA, 0, 4, 5, busy=1.0)
    diary.run(4, BOB, 0, 5, 6, on="GPU-b", host="nodeB")
    diary.record()

    total = ask(database).total
    assert (5 * HOUR, HOUR) == (pytest.approx(total.gpu_s), pytest.approx(total.cpu_s))
    assert (0.2 * 3 + 1.0 + 0.5) / 5 == pytest.approx(total.utilisation)
    assert {"nodeA": 4 * HOUR, "nodeB": HOUR} == pytest.approx(of(ask(database, By.HOST), "gpu_s"))
    assert ["nodeA:cpu", "nodeA:0", "nodeB:0"] == [group.label for group in ask(database, By.DEVICE).groups]
    assert {"bob": HOUR} == pytest.approx(of(ask(database, user="bob"), "gpu_s"))


@pytest.fixture
def berlin(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Set a time zone in which days start at another time than in UTC, and two days have 23 and 25 hours."""
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("berlin")
def test_a_run_over_midnight_counts_in_both_days(database: HistoryDatabase, diary: Diary) -> None:
    # A day without runs has 0.
    diary.run(1, ADA, 0, 9, 13)  # 22:00 to 02:00 in Berlin
    diary.record()

    reported = ask(database, By.DAY, 0, 36)

    assert {"2026-11-03": 2 * HOUR, "2026-11-04": 2 * HOUR, "2026-11-05": 0.0} == pytest.approx(of(reported, "gpu_s"))
    assert {"2026-11-03": 0, "2026-11-04": 1, "2026-11-05": 0} == of(reported, "ended")
    assert (1, 4 * HOUR) == (reported.total.runs, pytest.approx(reported.total.gpu_s))


@pytest.mark.usefixtures("berlin")
def test_a_day_has_the_hours_that_the_clock_on_the_wall_gives_it() -> None:
    """A day has the hours of local time: 25 when clocks go back. A partial day has its part."""
    since = datetime(2026, 10, 24, 12, tzinfo=timezone.utc)  # 14:00 in Berlin

    steps = local_days(since, since + timedelta(days=2))

    assert [10, 25, 13] == [(end - start).total_seconds() / HOUR for start, end in steps]


def test_a_run_counts_in_each_step_that_it_overlaps(database: HistoryDatabase, diary: Diary) -> None:
    # Devices are in the order of their indexes.
    diary.run(1, ADA, 0, 0, 3, on="GPU-a,GPU-b", busy=0.25)
    diary.record()

    course = database.course(since=at(0), until=at(4), count=2)

    assert (at(0), at(2), at(4)) == course.bounds
    assert [4 * HOUR, 2 * HOUR] == pytest.approx([step.gpu_s for step in course.steps])
    assert ["nodeA:0", "nodeA:1"] == [label for label, _ in course.devices]
    assert [[2 * HOUR, HOUR]] * 2 == [pytest.approx([step.gpu_s for step in steps]) for _, steps in course.devices]
    assert [0.25, 0.25] == pytest.approx([step.utilisation for step in course.devices[0][1]])
