"""Queries of the history and its error messages, on SQLite and on PostgreSQL."""

from __future__ import annotations

from datetime import timedelta, timezone
from typing import Any

import pytest
import sqlalchemy as sa
from factories import ADA, BOB, make_spec
from outbox import PEAK, RUN, Outbox, ids, second

from gpuqueue.codec.request import encode_ended
from gpuqueue.errors import HistoryUnreachable
from gpuqueue.history import migrate
from gpuqueue.history.connect import open_engine, writing
from gpuqueue.history.database import HistoryDatabase
from gpuqueue.model.array import Array
from gpuqueue.model.event import Act
from gpuqueue.model.history_query import HistoryQuery
from gpuqueue.model.job import JobState, WaitReason
from gpuqueue.model.job_values import JobValues, Metric, Reported, plain_number
from gpuqueue.model.run import Ending


def test_a_story_is_in_the_order_of_the_outbox(database: HistoryDatabase, outbox: Outbox) -> None:
    """A job's events are in the order of the outbox, with their contents: event 10 comes after event 9."""
    outbox.submit(1)
    for _ in range(5):
        outbox.report(1, Act.HOLD, JobState.HELD, attempt=0, reason=WaitReason.HELD)
        outbox.report(1, Act.RELEASE, JobState.QUEUED, attempt=0)
    outbox.claim(1)
    reported = list(outbox.reported)
    outbox.record()
    story = database.events(1)
    assert [event.id for event in reported] == [event.id for event in story]
    assert reported[1:] == list(story[1:])


def test_in_a_page_each_job_has_its_own_runs_and_devices_in_order(database: HistoryDatabase, outbox: Outbox) -> None:
    for job_id in (1, 2):
        outbox.submit(job_id)
        for attempt in (1, 2):
            outbox.claim(job_id, token=f"{attempt}.{job_id}", attempt=attempt, devices=f"GPU-{job_id}{attempt}")
            outbox.report(job_id, Act.LOSE, JobState.QUEUED, attempt=attempt, token=f"{attempt}.{job_id}", detail="")
    outbox.record()
    page = database.history(HistoryQuery())
    found = [[(run.token, run.devices[0].uuid) for run in record.runs] for record in page]
    assert [[("1.2", "GPU-21"), ("2.2", "GPU-22")], [("1.1", "GPU-11"), ("2.1", "GPU-12")]] == found


@pytest.fixture
def furnished(database: HistoryDatabase, outbox: Outbox) -> HistoryDatabase:
    """Return a history with four jobs, submitted one second apart."""
    outbox.submit(1, make_spec(account=ADA, name="train"))
    outbox.submit(2, make_spec(account=BOB, name="train"))
    outbox.submit(3, make_spec(account=BOB, name="eval"))
    outbox.submit(4, make_spec(account=ADA, name="eval"))
    outbox.claim(2, devices="GPU-aa11,GPU-bb22")
    outbox.claim(3, devices="GPU-bb22")
    outbox.report(4, Act.CANCEL, JobState.CANCELLED, attempt=0)
    outbox.record()
    return database


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({}, [4, 3, 2, 1]),
        ({"user": "ada"}, [4, 1]),
        ({"user": "nobody"}, []),
        ({"name": "train"}, [2, 1]),
        ({"states": (JobState.QUEUED, JobState.CANCELLED)}, [4, 1]),
        ({"since": second(2)}, [4, 3, 2]),
        ({"until": second(2)}, [1]),
        ({"since": second(2).astimezone(timezone(timedelta(hours=9))), "until": second(4)}, [3, 2]),
        ({"device": "GPU-bb22"}, [3, 2]),
        ({"device": "GPU-aa"}, [2]),
        ({"device": "gpu-aa"}, []),
        ({"device": "%"}, []),
        ({"user": "bob", "name": "eval", "states": (JobState.STARTING,), "device": "GPU-"}, [3]),
        ({"limit": 2}, [4, 3]),
        ({"limit": 2, "before_id": 3}, [2, 1]),
        ({"before_id": 1}, []),
    ],
)
def test_each_filter_narrows_the_result_alone_and_combined(
    furnished: HistoryDatabase, query: dict[str, Any], expected: list[int]
) -> None:
    # Records are newest first, page by page.
    assert expected == ids(furnished, **query)


@pytest.mark.full
def test_a_page_may_be_large(database: HistoryDatabase, outbox: Outbox) -> None:
    """A page may have more jobs than a database accepts parameters, and each job has its run."""
    count = 2100
    for job_id in range(1, count + 1):
        outbox.submit(job_id)
    outbox.record()
    for job_id in range(1, count + 1):
        outbox.claim(job_id)
    outbox.record()
    page = database.history(HistoryQuery(limit=count))
    assert [1] * count == [len(record.runs) for record in page]


def test_without_tables_the_message_names_the_command_that_creates_them(empty_url: str) -> None:
    database = HistoryDatabase(empty_url)
    with pytest.raises(
        HistoryUnreachable, match=r"(has no tables|is not there) yet: run gpuqueue up, or gpuqueue db upgrade"
    ):
        database.cursor()
    migrate.upgrade(empty_url)
    assert database.cursor() is None
    database.close()


@pytest.mark.parametrize(
    ("revision", "advice"), [("0000", "is older .* run gpuqueue db upgrade"), ("9999", "is newer .* upgrade gpuqueue")]
)
def test_tables_of_another_version_are_refused(history_url: str, revision: str, advice: str) -> None:
    """Tables of another version are refused: reading or writing unknown tables would be worse than an error."""
    engine = open_engine(history_url)
    with writing(engine) as connection:
        connection.execute(sa.text("UPDATE alembic_version SET version_num = :new"), {"new": revision})
    engine.dispose()
    database = HistoryDatabase(history_url)
    for ask in (database.max_job_id, lambda: database.apply([], expected=None, epoch="e")):
        with pytest.raises(HistoryUnreachable, match=advice):
            ask()
    database.close()


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("nonsense", "cannot be read"),
        ("mysql://me:secret@localhost/history", "only SQLite and PostgreSQL"),
        ("postgresql+nodriver://me:secret@localhost/history", "no driver"),
        ("postgresql://me:secret@127.0.0.1:1/history?password=secret", "does not answer"),
        ("sqlite:////dev/null/history.db", "is not there yet"),
    ],
)
def test_an_unreachable_history_is_reported_in_one_line(url: str, words: str) -> None:
    """An unreachable history gives one line that names the address without the password."""
    with pytest.raises(HistoryUnreachable, match=words) as caught:
        HistoryDatabase(url).cursor()
    assert (False, 1) == ("secret" in str(caught.value), len(str(caught.value).splitlines()))


def test_a_file_that_is_no_database_is_neither_read_nor_overwritten(tmp_path: Any) -> None:
    path = tmp_path / "history.db"
    path.write_text("this is somebody's letter, not a database. " * 50)
    database = HistoryDatabase(f"sqlite:///{path}")
    with pytest.raises(HistoryUnreachable, match=r"is damaged \(file is not a database\)"):
        database.cursor()
    database.close()
    assert path.read_text().startswith("this is somebody's letter")


def test_a_new_file_is_private(tmp_path: Any) -> None:
    """A new file is readable only by its owner, because specs contain environments and so secrets."""
    path = tmp_path / "deep" / "history.db"
    migrate.upgrade(f"sqlite:///{path}")
    assert (0o600, 0o700) == (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777)


def test_a_label_is_the_name_the_account_and_the_state_of_a_job(database: HistoryDatabase, outbox: Outbox) -> None:
    outbox.submit(1, make_spec(name="one", account=BOB))
    outbox.submit(2)
    outbox.record()
    found = database.summaries([1, 9])
    assert {1: ("one", BOB, JobState.QUEUED)} == {each: (it.name, it.account, it.state) for each, it in found.items()}


def test_the_recorded_members_of_an_array(database: HistoryDatabase, outbox: Outbox) -> None:
    """Those between two indexes that a device has taken, with the figures of their last run."""
    outbox.submit(1, make_spec(array=Array.parse("0-3")))
    for index in (0, 2):
        outbox.claim(2 + index, of="1", index=str(index), left="3")
    outbox.finish(2, Ending.from_status(3), JobState.FAILED)
    outbox.record()
    found = database.recorded_members(1, 0, 1)
    assert {0: (JobState.FAILED, 3, PEAK.bytes, 1.5)} == {
        each: (it.state, it.exit_code, it.peak_bytes, it.duration_s) for each, it in found.items()
    }
    assert {0, 2} == {*database.recorded_members(1, 0, 3)}


def test_the_metrics_of_the_members_of_an_array(database: HistoryDatabase, outbox: Outbox) -> None:
    """The last values of their last runs; those that are no finite number are missing."""
    outbox.submit(1, make_spec(array=Array.parse("0-3")))
    for index, values in ((0, {"loss": 0.5, "acc": 0.75}), (2, {"loss": float("nan")})):
        outbox.claim(2 + index, of="1", index=str(index), left="3")
        metrics = (
            Metric(name=name, count=1, last=Reported(value=plain_number(each), after_s=1.0))
            for name, each in values.items()
        )
        payload = encode_ended(
            ending=Ending.from_status(0), duration_s=1.5, devices=(), values=JobValues(metrics=tuple(metrics))
        )
        outbox.report(2 + index, Act.FINISH, JobState.SUCCEEDED, token=RUN, ended=payload)
    outbox.record()
    assert {0: {"loss": 0.5, "acc": 0.75}} == database.member_metrics(1, range(4))
    assert {0: {"acc": 0.75}} == database.member_metrics(1, [0, 2, 3], "acc")
    assert {} == database.member_metrics(1, [2, 3])
