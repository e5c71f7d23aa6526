"""Filters and orders of the history, and pages that follow each other in every order, on both databases."""

from __future__ import annotations

import itertools
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from factories import ADA, BOB, make_spec
from outbox import Outbox, ids, second

from gpuqueue.errors import JobNotFound
from gpuqueue.history import filters
from gpuqueue.history.connect import reading, writing
from gpuqueue.history.database import HistoryDatabase
from gpuqueue.history.tables import jobs
from gpuqueue.model.device import DeviceKind, Peak, PeakSource
from gpuqueue.model.event import Act
from gpuqueue.model.history_query import HistoryQuery, Sort
from gpuqueue.model.job import JobState
from gpuqueue.model.run import Ending, EndingKind, RunDevice
from gpuqueue.text.units import GIB

OUT_OF_MEMORY = Ending.stopped(EndingKind.OUT_OF_MEMORY, 1)
TIMED_OUT = Ending.stopped(EndingKind.TIMED_OUT, -15)


class RunOutbox(Outbox):
    """An outbox whose runs have given endings."""

    def ran(
        self,
        job_id: int,
        ending: Ending,
        *,
        took_s: float | None = 1.5,
        peaks: tuple[int | None, ...] = (GIB,),
        on: str = "GPU-a1",
        model: str = "NVIDIA A100-SXM4-80GB",
        host: str = "nodeA",
    ) -> None:
        """Add a run from its claim to its end."""
        uuids = on.split(",")
        devices = tuple(
            RunDevice(
                uuid=uuid,
                lease_bytes=8 * GIB,
                name=model,
                kind=DeviceKind.GPU,
                peak=Peak.unknown() if peak is None else Peak(bytes=peak, source=PeakSource.TORCH, samples=1),
            )
            for uuid, peak in zip(uuids, peaks, strict=True)
        )
        state = JobState.SUCCEEDED if ending == Ending.from_status(0) else JobState.FAILED
        self.run(job_id, devices, ending, state=state, duration_s=took_s, claimed={"host": host})


@pytest.fixture
def furnished(database: HistoryDatabase) -> HistoryDatabase:
    """Return a history with eight jobs: two models of card, two hosts, all kinds of endings, and unknown values."""
    outbox = RunOutbox(database)
    outbox.submit(1, make_spec(account=ADA, argv=("python", "train.py", "--lr", "1e-3")))
    outbox.ran(1, Ending.from_status(0), took_s=10, peaks=(4 * GIB,))
    outbox.submit(2, make_spec(account=BOB, argv=("python", "eval_100%.py")))
    outbox.ran(2, Ending.from_status(3), took_s=20, peaks=(4 * GIB,), on="GPU-b2", model="NVIDIA H200", host="nodeB")
    outbox.submit(3, make_spec(account=ADA, argv=("python", "Train.py")))
    outbox.ran(3, OUT_OF_MEMORY, took_s=5, peaks=(7 * GIB,))
    outbox.submit(4, make_spec(account=BOB, gpus=2))
    outbox.ran(4, Ending.from_status(0), took_s=20, peaks=(3 * GIB, 6 * GIB), on="GPU-a1,GPU-a2")
    outbox.submit(5, make_spec(account=ADA))
    outbox.ran(5, TIMED_OUT, took_s=None, peaks=(None,))
    outbox.submit(6, make_spec(account=BOB, gpus=2))
    outbox.ran(6, Ending.from_status(0), took_s=20, peaks=(9 * GIB, None), on="GPU-a1,GPU-a2")
    outbox.submit(7, make_spec(account=ADA))
    outbox.claim(7, token="1.7", devices="GPU-b2")
    outbox.report(7, Act.LOSE, JobState.QUEUED, attempt=1, losses=1, token="1.7", detail="gone")
    outbox.submit(8, make_spec(account=BOB))
    outbox.record()
    return database


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({"endings": (EndingKind.EXITED,)}, [6, 4, 2, 1]),
        ({"endings": (EndingKind.TIMED_OUT, EndingKind.OUT_OF_MEMORY)}, [5, 3]),
        ({"endings": (EndingKind.LOST,)}, [7]),
        ({"exit_code": 0}, [6, 4, 1]),
        ({"exit_code": 3}, [2]),
        ({"exit_code": 1}, [3]),
        ({"exit_code": 124}, [5]),
        ({"model": "a100"}, [6, 5, 4, 3, 1]),
        ({"model": "H2"}, [7, 2]),
        ({"model": "%"}, []),
        ({"model": "A100", "device": "GPU-b"}, []),
        ({"device": "GPU-a2"}, [6, 4]),
        ({"device": ""}, [7, 6, 5, 4, 3, 2, 1]),
        ({"host": "nodeB"}, [2]),
        ({"host": "node"}, []),
        ({"min_peak_bytes": 7 * GIB}, [4, 3]),
        ({"min_duration_s": 10}, [6, 4, 2, 1]),
        ({"max_duration_s": 10}, [3, 1]),
        ({"min_duration_s": 6, "max_duration_s": 19}, [1]),
        ({"text": "TRAIN.PY"}, [3, 1]),
        ({"text": "100%"}, [2]),
        ({"text": "_"}, [2]),
        ({"text": "--lr 1e"}, [1]),
        ({"text": "TRAIN", "owner": ADA}, [3, 1]),
        ({"text": "TRAIN", "owner": BOB}, []),
        ({"owner": replace(ADA, uid=7)}, []),
        ({"owner": ADA, "user": "bob"}, []),
        ({"owner": BOB, "sort": Sort.USER}, [8, 6, 4, 2]),
        ({"text": "train", "user": "ada", "endings": (EndingKind.OUT_OF_MEMORY,), "host": "nodeA"}, [3]),
        ({"exit_code": 0, "limit": 1, "after_id": 6}, [4]),
    ],
)
def test_each_filter_gives_the_matching_jobs(
    furnished: HistoryDatabase, query: dict[str, Any], expected: list[int]
) -> None:
    # An unknown value matches no filter, and SQL wildcards match only themselves.
    assert expected == ids(furnished, **query)


@pytest.mark.parametrize("sort", Sort)
@pytest.mark.parametrize(
    "query",
    [
        {"min_peak_bytes": 4 * GIB},
        {"min_duration_s": 10, "max_duration_s": 19},
        {"since": second(4)},
        {"until": second(9)},
        {"since": second(4), "until": second(9)},
        {"states": (JobState.SUCCEEDED,)},
        {"states": (JobState.SUCCEEDED, JobState.FAILED), "user": "ada"},
        {"endings": (EndingKind.OUT_OF_MEMORY, EndingKind.EXITED)},
        {"endings": (EndingKind.OUT_OF_MEMORY,)},
        {"exit_code": 3},
        {"exit_code": 0, "until": second(9)},
    ],
)
@pytest.mark.parametrize("reverse", [False, True])
def test_few_or_many_within_a_bound_give_the_same(
    furnished: HistoryDatabase, monkeypatch: pytest.MonkeyPatch, sort: Sort, query: dict[str, Any], *, reverse: bool
) -> None:
    """A filter with few matches and one with many use different searches, with the same result."""
    few = ids(furnished, sort=sort, reverse=reverse, **query)
    monkeypatch.setattr(filters, "FEW", 0)

    assert few == ids(furnished, sort=sort, reverse=reverse, **query)
    assert 0 < len(few) < 8


@pytest.fixture
def named(database: HistoryDatabase) -> HistoryDatabase:
    """Return a history with job names that contain pattern characters."""
    outbox = Outbox(database)
    for job_id, name in enumerate(("sweep-1", "sweep-22", "Sweep-1", "s[1]", "s1", "a^", "x%y"), start=1):
        outbox.submit(job_id, make_spec(name=name))
    outbox.record()
    return database


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("swee*", [2, 1]),
        ("sweep-?", [1]),
        ("[sS]weep-1", [3, 1]),
        ("[!s]*", [7, 6, 3]),
        ("s[1]", [5, 4]),
        ("s[", []),
        ("s[[]1]", [4]),
        ("*[\\^]", [6]),
        ("?%?", [7]),
        ("swee", []),
        ("*.*", []),
    ],
)
def test_a_name_may_be_a_pattern(named: HistoryDatabase, name: str, expected: list[int]) -> None:
    # A pattern that is also a whole name matches that name too.
    assert expected == ids(named, name=name)


@pytest.mark.parametrize("few", [filters.FEW, 0])
def test_an_exit_code_may_be_a_signal(database: HistoryDatabase, monkeypatch: pytest.MonkeyPatch, few: int) -> None:
    """The filter for exit code 137 also matches jobs that SIGKILL ended, for which ``run`` returns 137."""
    # A job that timed out and was ended by SIGKILL does not match.
    monkeypatch.setattr(filters, "FEW", few)
    outbox = RunOutbox(database)
    endings = (Ending.from_status(-9), Ending.from_status(137), Ending.from_status(-15), OUT_OF_MEMORY, TIMED_OUT)
    for job_id, ending in enumerate((*endings, Ending.from_status(9), Ending.stopped(EndingKind.TIMED_OUT, -9)), 1):
        outbox.submit(job_id)
        outbox.ran(job_id, ending)
    outbox.record()

    assert [2, 1] == ids(database, exit_code=137)
    assert [2] == ids(database, exit_code=137, sort=Sort.PEAK, after_id=3, limit=1)
    assert [3] == ids(database, exit_code=143)
    assert [6] == ids(database, exit_code=9)


@pytest.mark.parametrize("few", [filters.FEW, 0])
def test_an_exit_code_may_be_that_of_run_and_wait(
    database: HistoryDatabase, monkeypatch: pytest.MonkeyPatch, few: int
) -> None:
    """The filter also matches the exit codes of `run` and `wait`: 124 for a timeout and 130 for a cancel."""
    # Regression: the history found neither.
    monkeypatch.setattr(filters, "FEW", few)
    outbox = RunOutbox(database)
    cancelled = Ending.stopped(EndingKind.CANCELLED, -15)
    endings = (TIMED_OUT, Ending.from_status(124), cancelled, Ending.from_status(130), Ending.from_status(-2))
    for job_id, ending in enumerate((*endings, Ending.from_status(0), Ending.from_status(-15)), 1):
        outbox.submit(job_id)
        outbox.ran(job_id, ending)
    outbox.submit(8)
    outbox.report(8, Act.CANCEL, JobState.CANCELLED)
    outbox.record()

    assert [2, 1] == ids(database, exit_code=124)
    assert [8, 5, 4, 3] == ids(database, exit_code=130)
    assert [5, 4] == ids(database, exit_code=130, after_id=8, limit=2)
    assert {8, 5, 4, 3} == set(ids(database, exit_code=130, sort=Sort.PEAK))
    assert [7] == ids(database, exit_code=143)


def test_a_clock_that_was_set_back_hides_no_job(database: HistoryDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job with an earlier time than its id suggests is found: the submission time counts, not the id."""
    # The store's clock was set back, so job 3 has an earlier submission time than job 1.
    outbox = Outbox(database)
    for job_id in (1, 2, 3, 4):
        outbox.submit(job_id)
    outbox.record()
    with writing(database._engine) as connection:
        earlier = jobs.update().where(jobs.c.id == 3).values(submitted_at=second(0) - timedelta(days=1))
        connection.execute(earlier)
    monkeypatch.setattr(filters, "FEW", 0)
    first = database.get(1)
    assert first is not None
    at = first.job.submitted_at

    assert [3] == ids(database, until=at)
    assert [1, 2, 4] == ids(database, since=at, reverse=True)


@pytest.mark.parametrize("backend", ["sqlite"])
@pytest.mark.parametrize(
    ("query", "plan"),
    [
        ({"states": (JobState.SUCCEEDED,), "sort": Sort.PEAK}, "ix_jobs_peak_bytes_id"),
        ({"exit_code": 3, "sort": Sort.DURATION}, "ix_jobs_duration_s_id"),
        ({"exit_code": 124, "sort": Sort.PEAK}, "ix_jobs_peak_bytes_id"),
        ({"exit_code": 124}, "SCAN jobs USING INDEX sqlite_autoindex_jobs_1"),
        ({"until": second(9)}, "COVERING INDEX ix_jobs_submitted_at_id (submitted_at<?)"),
        ({"since": second(4), "reverse": True}, "COVERING INDEX ix_jobs_submitted_at_id (submitted_at>?)"),
        ({"since": second(4)}, "SCAN jobs USING INDEX sqlite_autoindex_jobs_1"),
    ],
)
def test_a_page_of_many_matches_is_read_from_an_index_without_sorting(
    furnished: HistoryDatabase, monkeypatch: pytest.MonkeyPatch, query: dict[str, Any], plan: str
) -> None:
    # Regression: of a million jobs SQLite collected all succeeded ones to show the fifty largest, or scanned a year of
    # them.
    monkeypatch.setattr(filters, "FEW", 0)
    engine = furnished._engine
    asked: list[tuple[str, Any]] = []
    sa.event.listen(engine, "before_cursor_execute", lambda *call: asked.append((call[2], call[3])))

    with reading(engine) as connection:
        filters.page(connection, HistoryQuery(**query))
        pages = [each for each in asked if each[0].startswith("SELECT jobs.id, jobs.name")]
        found = [
            str(row[-1])
            for statement, given in pages
            for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", given)
        ]

    assert any(plan in step for step in found), found
    assert not any("USE TEMP B-TREE" in step for step in found), found


@pytest.mark.parametrize(
    ("sort", "expected"),
    [
        (Sort.ID, [8, 7, 6, 5, 4, 3, 2, 1]),
        (Sort.DURATION, [6, 4, 2, 1, 3, 8, 7, 5]),
        (Sort.PEAK, [4, 3, 2, 1, 8, 7, 6, 5]),
        (Sort.ENDED, [6, 5, 4, 3, 2, 1, 8, 7]),
        (Sort.USER, [7, 5, 3, 1, 8, 6, 4, 2]),
    ],
)
def test_the_largest_stands_first_and_the_unknown_last(
    furnished: HistoryDatabase, sort: Sort, expected: list[int]
) -> None:
    # Among equal values the newest job is first. A peak is unknown if the peak on one of its devices is unknown.
    assert expected == ids(furnished, sort=sort)


@pytest.mark.parametrize("sort", Sort)
def test_the_other_way_round_the_unknown_still_stands_last(furnished: HistoryDatabase, sort: Sort) -> None:
    """In reverse order unknown values are still last: jobs with known values are reversed, then the others."""
    straight = ids(furnished, sort=sort)
    unknown = {Sort.DURATION: [8, 7, 5], Sort.PEAK: [8, 7, 6, 5], Sort.ENDED: [8, 7]}.get(sort, [])
    known = straight[: len(straight) - len(unknown)]

    assert known[::-1] + unknown[::-1] == ids(furnished, sort=sort, reverse=True)


@pytest.mark.parametrize(("sort", "reverse", "limit"), list(itertools.product(Sort, (False, True), (1, 3))), ids=str)
def test_pages_put_together_are_the_whole_list(
    furnished: HistoryDatabase,
    sort: Sort,
    reverse: bool,  # noqa: FBT001 - a test's
    limit: int,
) -> None:
    """All pages together are the whole list in every order, with no job twice and none missing."""
    # That also holds where a page ends among equal or unknown values.
    whole = ids(furnished, sort=sort, reverse=reverse)
    seen: list[int] = []
    while page := ids(furnished, sort=sort, reverse=reverse, limit=limit, after_id=seen[-1] if seen else None):
        seen += page
        assert len(seen) <= len(whole)

    assert whole == seen


def test_the_job_after_which_a_page_continues_need_not_match_the_filter(furnished: HistoryDatabase) -> None:
    assert [3, 1] == ids(furnished, sort=Sort.PEAK, user="ada", after_id=4, limit=2)
    assert [5] == ids(furnished, sort=Sort.PEAK, user="ada", after_id=7)


def test_a_page_after_a_job_that_nobody_knows(furnished: HistoryDatabase) -> None:
    """Continuing after an unknown job is an error in an order by value, and works in the order by id."""
    with pytest.raises(JobNotFound, match="no job 99 in the history to continue after"):
        furnished.history(HistoryQuery(sort=Sort.PEAK, after_id=99))
    assert [8, 7] == ids(furnished, after_id=99, limit=2)


def test_a_filter_uses_the_run_that_a_list_shows(database: HistoryDatabase, outbox: Outbox) -> None:
    # A job that runs again shows nothing of its previous run. A released claim changes nothing.
    outbox.submit(1)
    outbox.claim(1)
    outbox.report(1, Act.LOSE, JobState.QUEUED, token="1.a", detail="gone", losses=1)
    outbox.claim(1, token="2.b", attempt=2)
    outbox.report(1, Act.RELEASE_CLAIM, JobState.QUEUED, token="2.b", losses=1)
    outbox.record()
    assert [1] == ids(database, endings=(EndingKind.LOST,))
    outbox.claim(1, token="2.c", attempt=2)
    outbox.started(1, token="2.c", attempt=2)
    outbox.record()
    assert [] == ids(database, endings=(EndingKind.LOST,))
