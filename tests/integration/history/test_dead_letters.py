"""Dead letters: an event that the database refuses stops no later event and is stored completely."""

from __future__ import annotations

import json
import logging
import secrets
from typing import Any

import pytest
import redis
import sqlalchemy as sa
from factories import make_spec, must_claim, serve
from findings import by_check

from gpuqueue.codec.request import encode_ended, encode_spec
from gpuqueue.doctor.history import CHECKS
from gpuqueue.doctor.site import Site
from gpuqueue.history.connect import open_engine, reading
from gpuqueue.history.database import HistoryDatabase
from gpuqueue.history.queries import HistoryQuery
from gpuqueue.model.finding import Grade
from gpuqueue.model.job import JobState
from gpuqueue.model.run import Ending, EndingKind
from gpuqueue.queue import keys
from gpuqueue.queue.connect import connect
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.settings.settings import Settings
from workers.services.recorder import Recorder

AT = 1_700_000_000_000
#: Too long for any index of PostgreSQL, and not compressible.
ENDLESS = "GPU-" + secrets.token_hex(20_000)


def entry(act: str, job: object, **fields: object) -> dict[Any, Any]:
    """Return an outbox entry as a script writes it."""
    known = {"act": act, "job": job, "state": "queued", "at": AT, "attempt": 0, "losses": 0, "reason": ""}
    return {**known, **fields}


def unwritten(url: str) -> list[dict[str, Any]]:
    """Return the dead letters in order."""
    engine = open_engine(url)
    with reading(engine) as connection:
        found = connection.execute(sa.text("SELECT * FROM dead_letters ORDER BY event_id")).mappings().all()
    engine.dispose()
    return [dict(each) for each in found]


POISON = (
    entry("submit", 10**30, spec=encode_spec(make_spec())),
    entry("submit", 5, attempt=-(10**30), spec=encode_spec(make_spec())),
    entry("submit", 6, spec=encode_spec(make_spec(name="half")).encode().replace(b"half", b"\xff")),
    entry("note", 1, attempt=10**12, token="1.a", detail="\0"),
)


def test_what_no_table_takes_is_set_aside_whole(
    store_url: str, database: HistoryDatabase, history_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Events that a table refuses become dead letters completely, and valid events around them are recorded.

    The events have numbers and texts of every kind that one of the databases refuses.
    """
    queue, client = JobQueue(store_url), connect(store_url)
    queue.recovery.open(0)
    first = queue.requests.submit(make_spec(name="first")).id
    for each in POISON:
        client.xadd(keys.OUTBOX, each)
    last = queue.requests.submit(make_spec(name="last", env={"TOKEN": "hunter2"})).id
    recorder = Recorder(Settings.load({}), queue, database)

    while recorder.record(0):
        pass

    assert (0, None) == queue.outbox.backlog()
    assert {first, last} <= {record.job.id for record in database.history(HistoryQuery())}
    kept = unwritten(history_url)
    assert kept
    for each in kept:
        whole = json.loads(each["fields"])
        assert each["error"]
        assert whole["job"] in {10**30, 5, 6, 1}
        assert whole.get("spec", "").isascii() or "\udcff" in whole["spec"]
    assert 10**30 in [json.loads(each["fields"])["job"] for each in kept]
    assert "it is set aside" in caplog.text
    assert "hunter2" not in caplog.text
    queue.close()
    client.close()


@pytest.mark.parametrize("backend", ["postgresql"], indirect=True)
def test_a_report_that_no_table_takes_leaves_no_job_running_for_ever(
    queue: JobQueue, database: HistoryDatabase, history_url: str
) -> None:
    """A refused end report still ends its job.

    PostgreSQL refuses the report with an error that it also uses for its own failures.
    """
    serve(queue)
    bad, good = (queue.requests.submit(make_spec()).id for _ in range(2))
    claimed = must_claim(queue)
    recorder = Recorder(Settings.load({}), queue, database)
    recorder.record(0)
    client = redis.Redis.from_url(queue.url)
    finished = entry("finish", bad, state="failed", attempt=1, token=claimed.token, ended=_ended())
    client.xadd(keys.OUTBOX, finished)
    where = {"host": "h", "worker": "w", "devices": ENDLESS, "lease": 1}
    client.xadd(keys.OUTBOX, entry("claim", good, state="starting", attempt=1, token="1.b", **where))
    client.xadd(keys.OUTBOX, entry("cancel", good, state="cancelled"))
    client.close()

    while recorder.record(0):
        pass

    record, other = database.get(bad), database.get(good)
    assert record is not None
    assert other is not None
    assert (JobState.FAILED, JobState.CANCELLED) == (record.job.state, other.job.state)
    assert record.last_run is not None
    assert record.last_run.ending is not None
    assert EndingKind.LOST is record.last_run.ending.kind
    assert "the history refused the report of its end: " in record.last_run.ending.detail
    report, claim = unwritten(history_url)
    assert (_ended(), ENDLESS) == (json.loads(report["fields"])["ended"], json.loads(claim["fields"])["devices"])
    found = _examined(history_url)
    assert Grade.WARNING is found.grade
    assert f"it refused 2 events, the first of job {bad}: " in found.seen
    assert "dead_letters" in found.remedy


def test_a_history_without_dead_letters_is_sound(database: HistoryDatabase, history_url: str) -> None:
    """The doctor reports a history without dead letters as OK."""
    assert database.cursor() is None
    assert Grade.OK is _examined(history_url).grade


def test_a_database_that_fails_is_no_fault_of_the_event(
    queue: JobQueue, database: HistoryDatabase, history_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lack of memory or file descriptors makes no dead letter: the event is written later."""
    queue.requests.submit(make_spec())
    recorder = Recorder(Settings.load({}), queue, database)
    for error in (MemoryError(), OSError(24, "Too many open files")):

        def fail(*_: object, error: Exception = error, **__: object) -> bool:
            raise error

        with monkeypatch.context() as short:
            short.setattr("gpuqueue.history.writer.write", fail)
            with pytest.raises(type(error)):
                recorder.record(0)

    assert 1 == recorder.record(0)
    assert [] == unwritten(history_url)


def test_the_error_of_a_refused_row_shows_no_secret(
    queue: JobQueue, database: HistoryDatabase, history_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The log and the dead letter contain no secrets. The letter has the rest of the request.

    A site added its own constraint, and the server quotes the whole row, with the job's environment.
    """
    engine = open_engine(history_url)
    with engine.begin() as connection:
        if engine.dialect.name == "postgresql":
            connection.exec_driver_sql("ALTER TABLE jobs ADD CONSTRAINT ours CHECK (name <> 'nobody')")
        else:
            no = "SELECT RAISE(ABORT, 'ours')"
            connection.exec_driver_sql(
                f"CREATE TRIGGER t BEFORE INSERT ON jobs WHEN NEW.name = 'nobody' BEGIN {no}; END"
            )
    engine.dispose()
    queue.requests.submit(make_spec(name="nobody", env={"TOKEN": "hunter2"}))
    queue.requests.submit(make_spec(name="somebody"))

    with caplog.at_level(logging.DEBUG, "workers"):
        Recorder(Settings.load({}), queue, database).record(0)

    assert ["somebody"] == [record.job.spec.name for record in database.history(HistoryQuery())]
    (kept,) = unwritten(history_url)
    assert "ours" in kept["error"]
    assert json.loads(json.loads(kept["fields"])["spec"])["name"] == "nobody"
    assert "hunter2" not in caplog.text + kept["error"] + kept["fields"]


def _examined(url: str) -> Any:
    settings = Settings.load({"GPUQUEUE_CONFIG": "/dev/null", "GPUQUEUE_STATE_DIR": "/s", "GPUQUEUE_DATABASE_URL": url})
    return by_check(CHECKS, Site(settings))["events"]


def _ended() -> str:
    return encode_ended(ending=Ending(kind=EndingKind.EXITED, exit_code=2**40), duration_s=1.0, devices=())
