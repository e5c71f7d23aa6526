"""Start-up cost of the frequent commands: the modules that they import and the requests to the store."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from factories import make_admin, make_offer, make_spec, serve
from own_store import OwnStore

from gpuqueue.client import Client
from gpuqueue.history.database import HistoryDatabase
from gpuqueue.model.job import Job, JobState, WaitReason
from gpuqueue.model.run import Ending, RunDevice
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.queue.resp.client import RespClient
from gpuqueue.queue.resp.connection import Word
from workers.services.recorder import Recorder

#: Modules that are too slow for frequent commands. Most take as long to import as all modules of gpuqueue.
HEAVY = frozenset(
    {
        "alembic",
        "asyncio",
        "celery",
        "concurrent.futures",
        "email",
        "hashlib",
        "importlib.metadata",
        "importlib.resources",
        "kombu",
        "logging",
        "multiprocessing",
        "platformdirs",
        "psutil",
        "pynvml",
        "random",
        "redis",
        "rich",
        "secrets",
        "sqlalchemy",
        "ssl",
        "subprocess",
        "tempfile",
        "textual",
        "torch",
        "typing_extensions",
        "workers",
    }
)
#: Number of modules that a command may import beyond those of click and of Python's start. With fewer than the first
#: number the test measures nothing.
RANGE = range(40, 142)

#: Runs a command line. The last line of stderr lists the imported modules that click alone does not import.
REPORTING = """
import atexit, json, sys
import click
before = set(sys.modules)
atexit.register(lambda: print(json.dumps(sorted(set(sys.modules) - before)), file=sys.stderr))
from gpuqueue.cli.main import main
sys.argv = ["gpuqueue", *sys.argv[1:]]
main()
"""


@pytest.fixture
def queue(own_store: OwnStore) -> JobQueue:
    """Return the queue of a store with one device."""
    opened = JobQueue(own_store.url)
    opened.recovery.open(0)
    make_admin(opened)
    serve(opened, make_offer())
    return opened


@pytest.fixture
def running(queue: JobQueue, own_store: OwnStore) -> Job:
    """Return a job that runs here and has written a line. The next job waits."""
    job = queue.requests.submit(make_spec())
    queue.requests.submit(make_spec())
    claim = queue.runs.claim(make_offer(), worker="w", lease_s=300, nonce="n")
    assert claim is not None
    log = own_store.settings.state_dir / str(job.id) / claim.token / "log"
    log.parent.mkdir(parents=True)
    log.write_text("one line\n")
    assert queue.runs.started(
        job.id,
        claim.token,
        lease_s=300,
        log_path=str(log),
        devices=(RunDevice(uuid=make_offer().device.uuid, lease_bytes=2**30),),
    )
    return job


@pytest.fixture
def ended(running: Job, queue: JobQueue, own_store: OwnStore, migrated_sqlite: Path) -> Job:
    """Return a failed job that only the history still has."""
    shutil.copy(migrated_sqlite, own_store.settings.state_dir / "history.db")
    known = queue.jobs.record(running.id)
    assert known is not None
    assert known.last_run is not None
    queue.runs.finish(
        running.id,
        known.last_run.token,
        state=JobState.FAILED,
        ending=Ending.from_status(7),
        duration_s=1.0,
        devices=(RunDevice(uuid=make_offer().device.uuid, lease_bytes=2**30),),
    )
    with closing(HistoryDatabase(own_store.settings.database_url)) as database:
        recorder = Recorder(own_store.settings, queue, database)
        recorder.mend()
        while recorder.record(0):
            pass
    assert queue.jobs.get(running.id) is None
    return running


def loaded_by(store: OwnStore, *words: str, code: int = 0) -> tuple[str, set[str]]:
    """Return the output of a command that ends with *code*, and the modules that it imports."""
    environ = {**os.environ, "GPUQUEUE_STATE_DIR": str(store.settings.state_dir)}
    environ["GPUQUEUE_HOST"] = make_offer().host
    command = [sys.executable, "-c", REPORTING, *words]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert code == done.returncode, done.stderr
    *errors, reported = done.stderr.splitlines()
    return "\n".join([done.stdout, *errors]) if code else done.stdout, set(json.loads(reported))


@pytest.mark.parametrize(
    "words",
    [
        ("submit", "--help"),
        ("submit", "--mem", "1M", "--", "true"),
        ("queue",),
        ("queue", "--json"),
        ("why", "2"),
        ("hold", "2"),
        ("cancel", "2"),
        ("logs", "1"),
    ],
    ids=" ".join,
)
def test_what_is_typed_all_day_loads_nothing_heavy(running: Job, own_store: OwnStore, words: tuple[str, ...]) -> None:
    """Frequent commands import no heavy module, and no more modules than they need.

    The test counts modules, because a time would depend on the machine.
    """
    assert 1 == running.id

    printed, loaded = loaded_by(own_store, *words)

    assert printed
    assert set() == HEAVY & loaded
    assert len(loaded) in RANGE, sorted(loaded)


def test_the_log_of_a_running_job_needs_no_history(running: Job, own_store: OwnStore) -> None:
    """The log of a running job needs no SQL library, whose import takes longer than all the rest.

    The store has its path.
    """
    printed, _ = loaded_by(own_store, "logs", str(running.id))

    assert "one line\n" == printed


@pytest.mark.parametrize(
    ("words", "code", "output_of"),
    [
        (("logs", "1"), 0, "one line"),
        (("logs", "-f", "1"), 0, "one line"),
        (("wait", "1"), 7, ""),
        (("show", "1"), 0, "exit 7"),
        (("cancel", "1"), 5, "has failed already"),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, tuple) else None,
)
def test_an_ended_job_is_read_without_the_sql_library(
    ended: Job, own_store: OwnStore, words: tuple[str, ...], code: int, output_of: str
) -> None:
    """The history of an ended job is read without the SQL library.

    Most logs are read after the job has ended, when only the history has the path.
    """
    assert 1 == ended.id

    printed, loaded = loaded_by(own_store, *words, code=code)

    assert output_of in printed
    assert set() == HEAVY & loaded
    assert len(loaded) in RANGE, sorted(loaded)


def test_a_list_is_two_questions_to_the_store(
    running: Job, own_store: OwnStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A listing takes two requests to the store. Each is a network round trip, and `top` lists every second."""
    asked: list[int] = []
    ask = RespClient.ask

    def counted(resp_client: RespClient, commands: Sequence[Sequence[Word]]) -> list[object]:
        asked.append(len(commands))
        return ask(resp_client, commands)

    monkeypatch.setattr(RespClient, "ask", counted)
    with Client(replace(own_store.settings, host=make_offer().host)) as client:
        listing = client.jobs.listing(limit=1001)
        client.logs.progress(listing.jobs, listing.logs)
        assert 2 == len(asked)
        assert [running.id, running.id + 1] == [job.id for job in listing.jobs]
        assert WaitReason.MEMORY is client.jobs.get(running.id + 1).reason
        assert 4 == len(asked)
