"""Migrations give the declared tables, up and down, also when several processes migrate at once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from gpuqueue.errors import HistoryUnreachable
from gpuqueue.history import migrate, text_index
from gpuqueue.history.connect import open_engine, reading, writing
from gpuqueue.history.indexes import METADATA
from gpuqueue.history.revision import REVISION

TIME = "2026-11-01 12:00:00"
JOB: dict[str, Any] = {
    "id": 1,
    "name": "job",
    "user_name": "ada",
    "user_uid": 1000,
    "submit_host": "laptop",
    "state": "queued",
    "priority": 1,
    "command": "true",
    "cwd": "/",
    "mem_bytes": 1,
    "gpus": 1,
    "pool": "",
    "attempt": 0,
    "losses": 0,
    "submitted_at": TIME,
    "spec": "{}",
}
RUN: dict[str, Any] = {"job_id": 1, "attempt": 1, "token": "1.a", "host": "h", "worker": "w", "claimed_at": TIME}
DEVICE: dict[str, Any] = {
    "job_id": 1,
    "attempt": 1,
    "device_uuid": "GPU-0",
    "device_index": 0,
    "lease_bytes": 1,
    "peak_source": "none",
    "samples": 0,
    "na_samples": 0,
}
CURSOR: dict[str, Any] = {"id": 1, "epoch": "e", "last_id": "0-0"}


def insert(connection: sa.Connection, table: str, row: dict[str, Any]) -> None:
    """Insert *row* directly into the database, without our code."""
    columns = ", ".join(row)
    marks = ", ".join(f":{name}" for name in row)
    connection.execute(sa.text(f"INSERT INTO {table} ({columns}) VALUES ({marks})"), row)


def table_names(url: str) -> set[str]:
    """Return the names of our tables."""
    engine = open_engine(url)
    with reading(engine) as connection:
        names = set(sa.inspect(connection).get_table_names())
    engine.dispose()
    return {name for name in names if not text_index.belongs(name)} - {"alembic_version"}


def constraints(url: str) -> dict[str, dict[str | None, str]]:
    """Return every check and foreign key by table and name, as the database reports them."""
    engine = open_engine(url)
    with reading(engine) as connection:
        inspector = sa.inspect(connection)
        found = {
            table: {
                **{check["name"]: check["sqltext"] for check in inspector.get_check_constraints(table)},
                **{key["name"]: str(sorted(key.items(), key=str)) for key in inspector.get_foreign_keys(table)},
                "pk": str(inspector.get_pk_constraint(table)),
            }
            for table in METADATA.tables
        }
    engine.dispose()
    return found


def test_an_empty_database_becomes_what_is_declared(empty_url: str) -> None:
    """A migrated empty database matches the declared tables, according to Alembic."""
    migrate.upgrade(empty_url)
    engine = open_engine(empty_url)
    with reading(engine) as connection:
        opts = {"compare_type": True, "include_name": lambda name, *_: not text_index.belongs(name)}
        context = MigrationContext.configure(connection, opts=opts)
        differences = compare_metadata(context, METADATA)
    engine.dispose()
    assert [] == differences


def test_constraints_are_those_declared(empty_url: str, history_url: str) -> None:
    """The constraints match those of the declared tables. Alembic does not compare checks."""
    engine = open_engine(empty_url, make=True)
    with writing(engine) as connection:
        METADATA.create_all(connection)
    engine.dispose()
    assert constraints(empty_url) == constraints(history_url)


def test_an_upgrade_makes_all_tables(empty_url: str) -> None:
    """An empty database has no revision; an upgrade makes every table and sets the newest revision."""
    assert migrate.current(empty_url) is None
    migrate.upgrade(empty_url)
    assert (set(METADATA.tables), REVISION) == (table_names(empty_url), migrate.current(empty_url))


def test_upgrade_twice_changes_nothing(history_url: str) -> None:
    """A database that is up to date keeps its rows."""
    engine = open_engine(history_url)
    with writing(engine) as connection:
        insert(connection, "jobs", JOB)
    migrate.upgrade(history_url)
    with reading(engine) as connection:
        assert 1 == connection.scalar(sa.text("SELECT count(*) FROM jobs"))
    engine.dispose()


def test_the_code_knows_the_newest_revision() -> None:
    """The revision in the code is Alembic's newest, because the history checks it without Alembic."""
    scripts = ScriptDirectory(str(Path(__file__).parents[3] / "migrations"))
    assert [REVISION] == scripts.get_heads()


def test_a_newer_database_is_left_alone(history_url: str) -> None:
    """A database with an unknown newer revision is left unchanged."""
    engine = open_engine(history_url)
    with writing(engine) as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    engine.dispose()
    with pytest.raises(HistoryUnreachable, match="is newer than this gpuqueue: upgrade gpuqueue"):
        migrate.upgrade(history_url)
    assert "9999" == migrate.current(history_url)


def test_an_upgrade_fills_the_programs_of_old_jobs(empty_url: str) -> None:
    """Jobs of the first version get their programs, as far as their runs show how much memory they need."""
    with migrate._configured(empty_url) as config:
        command.upgrade(config, "0001")
    ended = {**JOB, "state": "succeeded", "ended_at": TIME, "cwd": "/home/ada"}
    well, script = {"ending": "exited", "exit_code": 0}, {"script": "a/../train.py", "interpreter": "/py"}
    rows = [
        {**ended, **well, **script, "id": 1, "command": "/py a/../train.py --lr 1"},
        {**ended, **well, "id": 2, "command": "torchrun --name 'a b' train.py"},
        {**ended, **script, "id": 3, "state": "failed", "ending": "exited", "exit_code": 1, "command": "/py train.py"},
        {**ended, **well, "id": 4, "command": "sh 'not closed"},
        {**JOB, **script, "id": 5},
    ]
    engine = open_engine(empty_url)
    with writing(engine) as connection:
        for row in rows:
            insert(connection, "jobs", row)
    migrate.upgrade(empty_url)
    with reading(engine) as connection:
        programs = connection.scalars(sa.text("SELECT program FROM jobs ORDER BY id")).all()
    engine.dispose()
    assert ["/home/ada/train.py", "/home/ada torchrun train.py", None, None, None] == programs


@pytest.mark.parametrize(("before", "ending"), [("0003", "idle"), ("0006", "wrong_device"), ("0008", "nan")])
def test_an_upgrade_allows_another_ending_and_keeps_all_runs(empty_url: str, before: str, ending: str) -> None:
    """Runs and their devices survive the change of the check, for which SQLite copies the table."""
    with migrate._configured(empty_url) as config:
        command.upgrade(config, before)
    engine = open_engine(empty_url)
    with writing(engine) as connection:
        for table, row in (("jobs", JOB), ("runs", RUN), ("run_devices", DEVICE)):
            insert(connection, table, row)
    migrate.upgrade(empty_url)
    with writing(engine) as connection:
        insert(connection, "runs", {**RUN, "attempt": 2, "token": "2.a", "ending": ending, "ended_at": TIME})
        runs = connection.execute(sa.text("SELECT token, ending FROM runs ORDER BY attempt")).all()
        assert [("1.a", None), ("2.a", ending)] == [tuple(row) for row in runs]
        assert 1 == connection.scalar(sa.text("SELECT count(*) FROM run_devices"))
    with reading(engine) as connection:
        assert ["ix_runs_ended_at"] == [index["name"] for index in sa.inspect(connection).get_indexes("runs")]
    engine.dispose()


@pytest.mark.full
def test_many_upgrade_at_once(empty_url: str) -> None:
    """Processes that migrate an empty database at the same time all succeed without output."""
    code = "import sys; from gpuqueue.history import migrate; sys.stdin.read(); migrate.upgrade(sys.argv[1])"
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code, empty_url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for _ in range(6)
    ]
    for process in processes:
        assert process.stdin is not None
        process.stdin.close()
        process.stdin = None
    ends = [(process.communicate(timeout=60)[0], process.returncode) for process in processes]
    assert [("", 0)] * 6 == ends
    assert (set(METADATA.tables), REVISION) == (table_names(empty_url), migrate.current(empty_url))


@pytest.mark.parametrize(
    ("check", "table", "row"),
    [
        ("state_known", "jobs", {**JOB, "state": "asleep"}),
        ("end_has_time", "jobs", {**JOB, "state": "succeeded"}),
        ("end_has_time", "jobs", {**JOB, "ended_at": TIME}),
        ("mem_positive", "jobs", {**JOB, "mem_bytes": 0}),
        ("gpus_positive", "jobs", {**JOB, "gpus": 0}),
        ("attempt_counts", "jobs", {**JOB, "attempt": -1}),
        ("losses_count", "jobs", {**JOB, "losses": -1}),
        ("ending_known", "runs", {**RUN, "ending": "vanished", "ended_at": TIME}),
        ("ending_has_time", "runs", {**RUN, "ending": "exited"}),
        ("ending_has_time", "runs", {**RUN, "ended_at": TIME}),
        ("code_or_signal", "runs", {**RUN, "ending": "exited", "ended_at": TIME, "exit_code": 1, "signal": 9}),
        ("attempt_counts", "runs", {**RUN, "attempt": 0}),
        ("peak_source_known", "run_devices", {**DEVICE, "peak_source": "guessed", "peak_bytes": 1}),
        ("peak_has_source", "run_devices", {**DEVICE, "peak_bytes": 1}),
        ("peak_has_source", "run_devices", {**DEVICE, "peak_source": "host_rss"}),
        ("single_row", "outbox_cursor", {**CURSOR, "id": 2}),
    ],
)
def test_an_impossible_row_is_refused(history_url: str, check: str, table: str, row: dict[str, Any]) -> None:
    """The constraints refuse impossible rows, even if a bug writes them."""
    good = {"jobs": JOB, "runs": RUN, "run_devices": DEVICE, "outbox_cursor": CURSOR}
    engine = open_engine(history_url)
    with writing(engine) as connection:
        for name in list(good)[: list(good).index(table)]:
            insert(connection, name, good[name])
    with pytest.raises(sa.exc.IntegrityError, match=f"ck_{table}_{check}"), writing(engine) as connection:
        insert(connection, table, row)
    with writing(engine) as connection:
        insert(connection, table, good[table])
    engine.dispose()


def test_rows_that_refer_to_a_job_go_with_it(history_url: str) -> None:
    """A run without a job is refused, and a deleted job takes its runs with it."""
    engine = open_engine(history_url)
    with pytest.raises(sa.exc.IntegrityError), writing(engine) as connection:
        insert(connection, "runs", RUN)
    with writing(engine) as connection:
        insert(connection, "jobs", JOB)
        insert(connection, "runs", RUN)
        insert(connection, "run_devices", DEVICE)
        connection.execute(sa.text("DELETE FROM jobs"))
        assert 0 == connection.scalar(sa.text("SELECT count(*) FROM run_devices"))
    engine.dispose()
