"""The findings about a real history database, healthy and broken."""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
import sqlalchemy as sa
from factories import make_spec
from findings import by_check
from outbox import RUN, Outbox
from private_postgres import Server

from gpuqueue.doctor.examination import begin
from gpuqueue.doctor.history import CHECKS
from gpuqueue.doctor.site import Site
from gpuqueue.history import diagnostics as diagnostics_module
from gpuqueue.history import notifications
from gpuqueue.history.connect import open_engine, writing
from gpuqueue.history.database import HistoryDatabase
from gpuqueue.model.event import Act
from gpuqueue.model.finding import Finding, Grade
from gpuqueue.model.job import JobState, WaitReason
from gpuqueue.model.notification import Notification, Outcome
from gpuqueue.settings.settings import Settings


def settings_for(url: str) -> Settings:
    return Settings.load({"GPUQUEUE_CONFIG": os.devnull, "GPUQUEUE_STATE_DIR": "/s", "GPUQUEUE_DATABASE_URL": url})


def of(url: str, *, integrity_s: float = 10.0) -> dict[str, Finding]:
    """Return the finding of each check."""
    return dict(by_check(CHECKS, Site(settings_for(url), integrity_s=integrity_s)))


def away(url: str) -> Finding:
    """Return the finding for a history that cannot be read."""
    (finding,) = begin("history", Site(settings_for(url)), 30)()
    return finding


def run_sql(url: str, statement: str) -> None:
    engine = open_engine(url)
    with writing(engine) as connection:
        connection.exec_driver_sql(statement)
    engine.dispose()


def test_a_sound_history_needs_nothing(history_url: str) -> None:
    """A healthy history has no bad findings on either database.

    Integrity and disk are checked only for a SQLite file.
    """
    found = of(history_url)

    of_a_file = {"integrity", "disk"} if history_url.startswith("sqlite") else set()
    assert {"answers", "tables", "writing", "lost jobs", "events", "messages", "texts"} | of_a_file == set(found)
    assert {Grade.OK} == {each.grade for name, each in found.items() if name != "disk"}


def test_late_and_given_up_notifications_are_reported(
    database: HistoryDatabase, history_url: str, outbox: Outbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Late and given-up notifications are reported with the job and the reason. Sent ones and old failures are not.

    A site may have a million of them: a bounded number is read.
    """
    for job_id in (1, 2, 3):
        outbox.submit(job_id, make_spec(notifications=(Notification("team"),)))
        outbox.report(job_id, Act.CANCEL, JobState.CANCELLED, attempt=0)
    outbox.record()
    now = datetime.now(timezone.utc)
    due = database.due_notifications(now=now, most=9)
    assert all(database.take_notification(each, until=now) for each in due)
    first, second, third = due

    assert "3 messages are still to be sent, the first about job 1" == of(history_url)["messages"].seen
    with monkeypatch.context() as small:
        small.setattr(notifications, "MAX_READ", 2)
        found = of(history_url)["messages"]
        assert "at least 2 messages are still to be sent, the first about job 1" == found.seen
    database.settle_notification(first, Outcome.SENT, at=now)
    database.put_off_notification(second, until=now, trouble="HTTP 500")
    assert "2 messages are still to be sent, the first about job 2: HTTP 500" == of(history_url)["messages"].seen
    database.settle_notification(second, Outcome.GIVEN_UP, at=now, trouble="HTTP 500")
    assert "1 message is still to be sent, the first about job 3" == of(history_url)["messages"].seen
    database.settle_notification(third, Outcome.GIVEN_UP, at=now - timedelta(days=8), trouble="HTTP 404")
    found = of(history_url)["messages"]
    assert "1 message was given up this week, the last about job 2: HTTP 500" == found.seen
    assert (Grade.WARNING, "gpuqueue notify --test WHAT") == (found.grade, found.remedy.partition(",")[0])


def test_the_url_of_a_job_that_fails_is_no_trouble_of_the_site(
    database: HistoryDatabase, history_url: str, outbox: Outbox
) -> None:
    """Only its submitter can correct it. It kept ``doctor`` at exit code 6 for a week."""
    outbox.submit(1, make_spec(notifications=(Notification("team"), Notification("json://127.0.0.1/x"))))
    outbox.report(1, Act.CANCEL, JobState.CANCELLED, attempt=0)
    outbox.record()
    now = datetime.now(timezone.utc)
    to_target, to_url = database.due_notifications(now=now, most=9)

    assert "2 messages are still to be sent, the first about job 1" == of(history_url)["messages"].seen  # nobody tries
    assert database.take_notification(to_target, until=now)
    database.settle_notification(to_target, Outcome.SENT, at=now)
    assert database.take_notification(to_url, until=now)
    database.put_off_notification(to_url, until=now, trouble="it leads to an address that is not public")
    late = of(history_url)["messages"]
    database.settle_notification(to_url, Outcome.GIVEN_UP, at=now, trouble="it leads to an address that is not public")
    given_up = of(history_url)["messages"]

    words = "1 message to URLs of jobs could not be sent this week, one about job 1: it leads to an address that is not"
    assert (Grade.NOTE, Grade.NOTE) == (late.grade, given_up.grade)
    assert (words, words) == (late.seen[: len(words)], given_up.seen[: len(words)])


@pytest.mark.parametrize(("revision", "remedy"), [("0000", "gpuqueue db upgrade"), ("9999", "upgrade gpuqueue here")])
def test_tables_of_another_version_are_reported_with_the_command(history_url: str, revision: str, remedy: str) -> None:
    """Older and newer tables are problems with opposite remedies. Nothing is read from tables of another version."""
    run_sql(history_url, f"UPDATE alembic_version SET version_num = '{revision}'")

    found = of(history_url)

    assert (Grade.PROBLEM, remedy) == (found["tables"].grade, found["tables"].remedy)
    assert Grade.UNKNOWN is found["lost jobs"].grade


def test_a_database_without_tables_is_reported_with_the_command(empty_url: str) -> None:
    """A database without tables is a problem that names the command to type.

    Any access creates a SQLite file, and a new PostgreSQL database is empty.
    """
    if empty_url.startswith("sqlite"):
        sqlite3.connect(empty_url.removeprefix("sqlite:///")).execute("CREATE TABLE other (x)").connection.close()

    found = of(empty_url)["tables"]

    assert (Grade.PROBLEM, "gpuqueue up, or gpuqueue db upgrade") == (found.grade, found.remedy)


@pytest.mark.parametrize(
    ("url", "words", "remedy"),
    [
        # The check creates no file, although opening a SQLite database normally does.
        (
            "sqlite:///{}/no/history.db",
            "there is no queue in",
            "start one with gpuqueue up; if yours is elsewhere, correct GPUQUEUE_STATE_DIR",
        ),
        # An overwrite, or a wrong path in the settings.
        ("sqlite:///{}/text", "file is not a database", "gpuqueue down --leave-jobs"),
        ("postgresql://ada:hunter2@127.0.0.1:1/db", "does not answer", ""),
        ("postgresql://ada:hunter2@h:port/db", "cannot be read", ""),
        ("mysql://ada:hunter2@h/db", "only SQLite and PostgreSQL", ""),
    ],
)
def test_a_database_that_cannot_be_read_is_reported(tmp_path: Path, url: str, words: str, remedy: str) -> None:
    """It is a problem with the reason and without the password."""
    (tmp_path / "text").write_text("no database at all" * 100)

    found = away(url.format(tmp_path))

    assert (Grade.PROBLEM, True) == (found.grade, words in found.seen)
    assert found.remedy.startswith(remedy)
    assert "hunter2" not in found.seen + found.remedy
    assert [tmp_path / "text"] == list(tmp_path.iterdir())


@pytest.mark.parametrize("backend", ["sqlite"], indirect=True)
def test_a_damaged_file_is_found(history_url: str, outbox: Outbox) -> None:
    """Overwritten pages in the middle of the file are found, although most queries may still succeed."""
    for job_id in range(1, 400):
        outbox.submit(job_id)
    outbox.record()
    outbox.database.close()
    path = Path(history_url.removeprefix("sqlite:///"))
    pages = path.stat().st_size // 4096
    with path.open("r+b") as file:
        for page in range(pages // 2, pages):
            file.seek(page * 4096 + 200)
            file.write(b"\xff" * 400)

    found = of(history_url)["integrity"]

    assert Grade.PROBLEM is found.grade
    assert ".recover" in found.remedy


@pytest.mark.parametrize("backend", ["sqlite"], indirect=True)
def test_a_large_file_is_left_to_deep_checks(history_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the integrity check takes too long, a note recommends ``--deep``. The check has to read the whole file."""
    monkeypatch.setattr(diagnostics_module, "_STEPS", 1)

    found = of(history_url, integrity_s=-1)["integrity"]

    assert Grade.NOTE is found.grade
    assert "--deep" in found.remedy


@pytest.mark.parametrize("backend", ["sqlite"], indirect=True)
def test_a_writer_that_never_ends_is_found(history_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A transaction that holds the write lock is a problem, as when a user has opened the file by hand.

    The recorder cannot write.
    """
    monkeypatch.setattr(diagnostics_module, "_LOCKED_S", 0.05)
    other = sqlite3.connect(history_url.removeprefix("sqlite:///"), isolation_level=None)
    other.execute("BEGIN IMMEDIATE")

    locked = of(history_url)["writing"]
    other.close()

    assert Grade.PROBLEM is locked.grade
    assert "database is locked" in locked.seen
    assert Grade.OK is of(history_url)["writing"].grade


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another account")
@pytest.mark.parametrize("backend", ["sqlite"], indirect=True)
def test_a_directory_that_may_not_be_written_is_found(history_url: str) -> None:
    """A directory without write permission is found.

    SQLite creates files beside the database, so access to the file is not enough.
    """
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        shutil.copy(history_url.removeprefix("sqlite:///"), f"{directory}/history.db")
        Path(directory, "history.db").chmod(0o666)
        os.setresuid(65534, 65534, 0)
        try:
            reason = diagnostics_module._refusal(
                open_engine(f"sqlite:///{directory}/history.db"), Path(directory, "history.db")
            )
        finally:
            os.setresuid(0, 0, 0)

    assert reason is not None
    assert "may not be written" in reason


def test_a_standby_is_found(postgres_server: Server, request: pytest.FixtureRequest) -> None:
    """A read-only PostgreSQL database is a problem, because the recorder cannot write.

    It may be a standby or a read-only account.
    """
    with postgres_server.database(request.getfixturevalue("_migrated_postgres")) as url:
        name = sa.make_url(url).database
        run_sql(url, f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')

        found = of(url)["writing"]

    assert Grade.PROBLEM is found.grade
    assert "read-only" in found.seen


def test_an_account_without_rights_is_found(postgres_server: Server, request: pytest.FixtureRequest) -> None:
    """An account that may only read is found. Its queries succeed, so clients may report no fault."""
    with postgres_server.database(request.getfixturevalue("_migrated_postgres")) as url:
        reader = f"reader_{os.getpid()}"
        run_sql(url, f"CREATE ROLE {reader} LOGIN PASSWORD 'x'")
        run_sql(url, f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {reader}")
        try:
            theirs = sa.make_url(url).set(username=reader, password="x").render_as_string(hide_password=False)
            found = of(theirs)
        finally:
            run_sql(url, f"DROP OWNED BY {reader}")
            run_sql(url, f"DROP ROLE {reader}")

    assert Grade.OK is found["tables"].grade
    assert "may not write" in found["writing"].seen


def test_jobs_that_were_lost_too_often_are_named(history_url: str, outbox: Outbox) -> None:
    """Jobs that are held because they were lost too often are named. They wait until a user releases them."""
    for job_id in (3, 4):
        outbox.submit(job_id)
        outbox.claim(job_id)
    lost = {"token": RUN, "detail": "its shim vanished", "losses": 3}
    outbox.report(3, Act.LOSE, JobState.HELD, reason=WaitReason.LOST_TOO_OFTEN, **lost)
    outbox.record()

    found = of(history_url)["lost jobs"]

    assert Grade.WARNING is found.grade
    assert found.remedy.endswith("gpuqueue release 3")
