"""A text in a command or note is found with and without an index, on both databases, for any change of the jobs."""

from __future__ import annotations

import os
from typing import Any

import pytest
import sqlalchemy as sa
from factories import ADA, BOB, make_spec
from hypothesis import given
from hypothesis import strategies as st
from odd import few_examples
from outbox import Outbox, ids
from private_postgres import Server

from gpuqueue.codec.request import encode_spec
from gpuqueue.history import filters, migrate, text_index
from gpuqueue.history.connect import open_engine, reading, writing
from gpuqueue.history.database import HistoryDatabase
from gpuqueue.history.tables import jobs
from gpuqueue.model.event import Act
from gpuqueue.model.history_query import HistoryQuery, Sort
from gpuqueue.model.job import JobState

#: Characters special to LIKE, FTS5 or a shell, letters with more than one case, and non-letters.
SIGNS = (
    "%",
    "_",
    "/",
    "\\",
    '"',
    "'",
    "*",
    "^",
    "-",
    " ",
    "a",
    "A",
    "b",
    "0",
    "é",
    "É",
    "K",
    "ß",
    "İ",
    "日",
    "😀",
    "\x00",
)
odd_texts = st.lists(st.sampled_from(SIGNS), min_size=1, max_size=6).map("".join)
COMMANDS = (
    "python train.py --lr 1e-3",
    "Python eval_100%.py",
    "bash -c \"echo 'a/b\\c'\"",
    "aaaaabaaaa",
    "éÉ 日日日 😀😀😀",
)


@pytest.fixture
def near(monkeypatch: pytest.MonkeyPatch) -> None:
    """Search at most one job before the index is used, because a test's history is small."""
    monkeypatch.setattr(filters, "NEAR", 1)


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a query function that uses no index."""

    def ask(database: HistoryDatabase, **query: Any) -> list[int]:
        with monkeypatch.context() as patch:
            patch.setattr(text_index, "is_there", lambda _connection: False)
            return ids(database, **query)

    return ask


def is_there(database: HistoryDatabase) -> bool:
    with reading(database._engine) as connection:
        return text_index.is_there(connection)


def named(database: HistoryDatabase, text: str) -> list[int]:
    """Return the jobs that the index gives for *text*, newest first."""
    with reading(database._engine) as connection:
        return sorted(filters._ids_with_text(connection, HistoryQuery(text=text), None, 99), reverse=True)


def note(outbox: Outbox, job_id: int, text: str) -> None:
    outbox.report(job_id, Act.MARK, JobState.QUEUED, attempt=0, note=text)


@pytest.fixture
def furnished(database: HistoryDatabase, outbox: Outbox) -> HistoryDatabase:
    """Return a history with twelve jobs, two or more for each command, of two users, and some notes."""
    if not is_there(database):
        pytest.skip("this database cannot have the index")
    for job_id in range(1, 13):
        outbox.submit(job_id, make_spec(account=(ADA, BOB)[job_id % 2], argv=("x",)))
    for job_id, text in ((3, "100% of it"), (4, "like the Train of job 3"), (9, "")):
        note(outbox, job_id, text)
    outbox.record()
    with writing(database._engine) as connection:  # these texts are odder than a submitted command could be
        for job_id in range(1, 13):
            connection.execute(jobs.update().where(jobs.c.id == job_id).values(command=COMMANDS[job_id % 5]))
    return database


#: Any part of a command in the history.
parts = st.tuples(st.sampled_from(COMMANDS), st.integers(0, 20), st.integers(1, 12)).map(
    lambda drawn: drawn[0][drawn[1] : drawn[1] + drawn[2]] or drawn[0]
)
queries = st.fixed_dictionaries(
    {
        "text": st.one_of(odd_texts, parts, parts.map(str.upper)),
        "sort": st.sampled_from(Sort),
        "reverse": st.booleans(),
        "limit": st.sampled_from((1, 3, 50)),
    }
)


@pytest.mark.usefixtures("near")
@pytest.mark.parametrize("few", [0, 2, filters.FEW])
@few_examples
@given(query=queries)
def test_an_index_changes_no_answer(
    furnished: HistoryDatabase, without: Any, monkeypatch: pytest.MonkeyPatch, few: int, query: dict[str, Any]
) -> None:
    """The index changes no result, for special characters of LIKE and FTS5 and other signs, in each order."""
    # That holds for texts in few and in many jobs.
    monkeypatch.setattr(filters, "FEW", few)

    assert without(furnished, **query) == ids(furnished, **query)


@pytest.mark.usefixtures("near")
@pytest.mark.parametrize("few", [0, filters.FEW])
@pytest.mark.parametrize("which", range(len(COMMANDS)))
def test_each_part_of_a_command_is_found(
    furnished: HistoryDatabase, monkeypatch: pytest.MonkeyPatch, few: int, which: int
) -> None:
    monkeypatch.setattr(filters, "FEW", few)
    command = COMMANDS[which]
    its_own = {job_id for job_id in range(1, 13) if job_id % 5 == which}
    for start in range(0, len(command), 2):
        assert its_own <= set(ids(furnished, text=command[start : start + 5])), command[start : start + 5]


@pytest.mark.usefixtures("near")
@pytest.mark.parametrize("few", [0, 2, filters.FEW])
@pytest.mark.parametrize(
    "query",
    [
        {"text": "train"},
        {"text": "TRAIN", "user": "ada"},
        {"text": "train", "user": "bob", "reverse": True},
        {"text": "100%", "limit": 1},
        {"text": "100%", "limit": 1, "after_id": 11},
        {"text": "100%", "after_id": 3},
        {"text": "100%", "before_id": 5},
        {"text": "aaa", "sort": Sort.USER},
        {"text": "aaa" * 3},
        {"text": "nowhere"},
        {"text": "nowhere", "sort": Sort.PEAK},
        {"text": "y" * 1000},
        {"text": "\udcff\udc80\udcff"},
    ],
)
def test_beside_other_filters_an_index_changes_no_answer(
    furnished: HistoryDatabase, without: Any, monkeypatch: pytest.MonkeyPatch, few: int, query: dict[str, Any]
) -> None:
    """The index changes no result together with other filters, also on later pages."""
    monkeypatch.setattr(filters, "FEW", few)

    assert without(furnished, **query) == ids(furnished, **query)


@pytest.mark.usefixtures("near")
def test_the_index_follows_each_change(furnished: HistoryDatabase, outbox: Outbox) -> None:
    # A job that is edited, annotated, submitted again or deleted is found by its current text only.
    assert [4] == named(furnished, "the train of")
    outbox.report(5, Act.EDIT, JobState.QUEUED, attempt=0, spec=encode_spec(make_spec(argv=("python", "edited.py"))))
    note(outbox, 3, "")
    note(outbox, 4, "quite another")
    note(outbox, 5, "noted twice")
    note(outbox, 5, "noted again")
    outbox.submit(6, make_spec(argv=("python", "told_anew.py")))
    outbox.record()
    with writing(furnished._engine) as connection:
        connection.execute(jobs.delete().where(jobs.c.id == 10))

    words = ("the train of", "edited", "quite another", "noted twice", "noted again", "told_anew", "of it")
    assert {word: found for word in words if (found := named(furnished, word))} == {
        "edited": [5],
        "quite another": [4],
        "noted again": [5],
        "told_anew": [6],
    }
    assert 10 not in named(furnished, "python")


@pytest.mark.parametrize("backend", ["sqlite"], indirect=True)
def test_without_fts5_jobs_are_written_and_found_all_the_same(
    furnished: HistoryDatabase, outbox: Outbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The recorder of an older Python drops the index. With a newer one ``db upgrade`` builds it again for all jobs.
    url = furnished._engine.url.render_as_string()
    with monkeypatch.context() as patch:
        patch.setattr(text_index, "known_to_sqlite", lambda: False)
        outbox.submit(13, make_spec(argv=("written", "without")))
        outbox.record()
        migrate.upgrade(url)
        assert (False, [13]) == (is_there(furnished), ids(furnished, text="written without"))

    assert (False, [13]) == (is_there(furnished), ids(furnished, text="written without"))
    migrate.upgrade(url)

    assert (True, [13]) == (is_there(furnished), named(furnished, "written without"))
    assert [10, 5, 4] == named(furnished, "train")  # job 4 by its note


def test_without_the_extension_texts_are_found_by_reading(postgres_server: Server) -> None:
    # The tables belong to an account that may not create the extension. Once it exists, ``db upgrade`` builds the
    # index.
    name = f"plain_{os.getpid()}"
    postgres_server.run(f"CREATE ROLE {name} LOGIN PASSWORD 'x'")
    try:
        with postgres_server.database() as url:
            theirs = sa.make_url(url).set(username=name, password="x").render_as_string(hide_password=False)
            run_sql(url, f"GRANT ALL ON SCHEMA public TO {name}")
            migrate.upgrade(theirs)
            database = HistoryDatabase(theirs)
            outbox = Outbox(database)
            outbox.submit(1, make_spec(argv=("python", "train.py")))
            outbox.record()
            assert (False, [1]) == (is_there(database), ids(database, text="TRAIN"))
            try:
                run_sql(url, "CREATE EXTENSION pg_trgm")
            except Exception as error:  # noqa: BLE001 - it is not installed with this server
                pytest.skip(str(error))
            migrate.upgrade(theirs)
            assert (True, [1]) == (is_there(database), ids(database, text="TRAIN"))
            database.close()
    finally:
        postgres_server.run(f"DROP ROLE {name}")


def run_sql(url: str, statement: str) -> None:
    engine = open_engine(url)
    with writing(engine) as connection:
        connection.exec_driver_sql(statement)
    engine.dispose()


def plans(database: HistoryDatabase, **query: Any) -> list[str]:
    """Return the query plan for a page of jobs, step by step."""
    engine = database._engine
    asked: list[tuple[str, Any]] = []

    def listen(*call: Any) -> None:
        asked.append((call[2], call[3]))

    sa.event.listen(engine, "before_cursor_execute", listen)
    word = "EXPLAIN QUERY PLAN" if engine.dialect.name == "sqlite" else "EXPLAIN"
    with reading(engine) as connection:
        filters.page(connection, HistoryQuery(**query))
        sa.event.remove(engine, "before_cursor_execute", listen)
        found = [connection.exec_driver_sql(f"{word} {each}", given).all() for each, given in asked if "LIMIT" in each]
    return [str(row[-1]) for rows in found for row in rows]


@pytest.mark.parametrize("backend", ["sqlite"], indirect=True)
@pytest.mark.usefixtures("near")
def test_sqlite_searches_a_rare_text_by_its_index(furnished: HistoryDatabase) -> None:
    # Regression: it scanned all jobs for a text that is missing.
    for query in ({"sort": Sort.ID}, {"sort": Sort.PEAK}, {"user": "ada"}):
        steps = plans(furnished, text="100% of", **query)
        assert any("jobs_text VIRTUAL TABLE" in step for step in steps), steps
        assert not any(
            step.startswith("SCAN jobs") and "VIRTUAL" not in step and "COVERING" not in step for step in steps
        ), steps


@pytest.mark.parametrize("backend", ["sqlite"], indirect=True)
def test_a_common_text_needs_no_index(furnished: HistoryDatabase) -> None:
    """A common text needs no index: the newest jobs have enough matches for a page."""
    assert not any("VIRTUAL TABLE" in step for step in plans(furnished, text="train", limit=1))
    assert not any("VIRTUAL TABLE" in step for step in plans(furnished, text="tr"))


@pytest.mark.parametrize("backend", ["postgresql"], indirect=True)
def test_postgresql_chooses_by_how_common_a_text_is(furnished: HistoryDatabase) -> None:
    """PostgreSQL uses the index for a rare text and the order of ids for a common one."""
    columns = [column.name for column in jobs.columns if column.name not in ("id", "command")]
    as_it_is = ", ".join(columns)
    with writing(furnished._engine) as connection:
        connection.exec_driver_sql(
            f"INSERT INTO jobs (id, command, {as_it_is}) "
            f"SELECT n, 'python job' || mod(n, 97) || '.py --seed ' || n, {as_it_is} "
            "FROM jobs, generate_series(100, 20099) AS n WHERE id = 1"
        )
        connection.exec_driver_sql("ANALYZE jobs")

    rare, common = plans(furnished, text="--seed 10234"), plans(furnished, text="python job")

    assert any("ix_jobs_command_trigrams" in step for step in rare), rare
    assert not any("trigrams" in step for step in common), common
    assert not any("Seq Scan on jobs" in step for step in [*rare, *common]), [*rare, *common]
