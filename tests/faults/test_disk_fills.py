"""A disk that fills, and a store that is killed, while jobs are submitted and run: ``up`` on a small disk."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp

import pytest
from bounded import until
from own_home import BIN, Home
from short_host import fill, own_disk

from gpuqueue.embedded.store import RESERVE_BYTES
from gpuqueue.queue.absence import StoreState, StoreTrouble
from gpuqueue.settings.settings import Settings
from gpuqueue.system.process import ProcessIdentity

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]

#: Writes 16 KiB to its log every 2 ms until a file is there: up to 8 MB/s.
PRINTS = """
import os, pathlib, sys, time
while not pathlib.Path(sys.argv[1]).exists():
    os.write(1, b"x" * 16383 + b"\\n")
    time.sleep(0.002)
print("the last line")
"""
#: Goes on until a file is there. It prints nothing: a job that writes on a full disk gets the error from the kernel.
SILENT = """
import pathlib, sys, time
while not pathlib.Path(sys.argv[1]).exists():
    time.sleep(0.05)
"""


class Load:
    """Submits short jobs until it is stopped, and keeps the ids that were printed."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._submit, daemon=True)
        self.ids: list[int] = []
        self.failures = 0
        self._thread.start()

    def _submit(self) -> None:
        words = [str(BIN / "gpuqueue"), "submit", "--mem", "1M", "--no-snapshot", "--", "true"]
        while not self._stopping.is_set():
            done = subprocess.run(words, env=self._home.environ, capture_output=True, text=True, check=False, cwd="/")
            if done.returncode == 0:
                self.ids.append(int(done.stdout))
            else:
                self.failures += 1
                assert "Traceback" not in done.stderr, done.stderr

    def until_more(self) -> None:
        """Wait until further jobs are accepted."""
        number = len(self.ids)
        until(lambda: len(self.ids) > number + 1, what="the queue accepts jobs", timeout_s=120)

    def until_refused(self) -> None:
        """Wait until a submit fails."""
        number = self.failures
        until(lambda: self.failures > number, what="a submit fails", timeout_s=120)

    def stop(self) -> list[int]:
        """Stop, and return the ids of all jobs that were accepted."""
        self._stopping.set()
        self._thread.join()
        return self.ids


@pytest.fixture
def home() -> Iterator[Home]:
    """Return a person's machine whose state directory is a disk of 320 MiB."""
    place = Path(mkdtemp(prefix="gpuqueue-disk-"))
    with own_disk(place, options="size=320m"):
        made = Home(place)
        made.environ.update(GPUQUEUE_HEADROOM="0", GPUQUEUE_HEARTBEAT="1s", GPUQUEUE_SLOTS="4")
        made("up", "--devices", "sim:1x8G")
        yield made
        (place / ".filler").unlink(missing_ok=True)
        made("down", "--cancel-jobs")
    place.rmdir()


@contextmanager
def running(home: Home, program: str) -> Iterator[int]:
    """Run a job that goes on until the end of this context. It must end well, and once."""
    gate = home.state / "gate"
    job = int(home("submit", "--mem", "1M", "--", sys.executable, "-c", program, str(gate)))
    until(lambda: list(home.state.glob(f"runs/{job}/*/pid")), what="the job runs")
    yield job
    gate.touch()
    home("wait", str(job))
    assert 1 == json.loads(home("show", str(job), "--json"))["job"]["attempt"]


def nothing_is_lost(home: Home, ids: list[int]) -> None:
    """Check that each job ended well, after one run, and that no id was used twice."""
    assert len(ids) == len(set(ids))
    home("wait", *map(str, ids))

    def recorded() -> dict[int, tuple[str, int]]:
        rows = json.loads(home("history", "--limit", "100000", "--json"))
        found = {row["job"]["id"]: (row["job"]["state"], len(row["runs"])) for row in rows}
        return found if set(ids) <= set(found) else {}

    found = until(recorded, what="all are recorded", timeout_s=120)
    assert {("succeeded", 1)} == {found[job] for job in ids}


def server(home: Home) -> ProcessIdentity | None:
    """Return the store's server."""
    return ProcessIdentity.parse((home.state / "store" / "pid").read_text())


def trouble(home: Home) -> StoreTrouble | None:
    """Return the record of the store's last death."""
    return StoreTrouble.read(Settings.load(home.environ))


def test_a_job_that_prints_too_much_loses_its_log_and_not_the_store(home: Home) -> None:
    """Its log is cut before the disk is full. It goes on, and so does the queue; doctor and log name it."""
    home.environ["GPUQUEUE_LOG_LIMIT"] = "none"
    before = server(home)
    load = Load(home)
    with running(home, PRINTS) as job:
        (log,) = home.state.glob(f"runs/{job}/*/log")
        until(lambda: log.stat().st_size > 2**28 and log.stat().st_blocks * 512 < 2**24, what="the cut", timeout_s=300)
        load.until_more()
        assert f"job {job}" in home.output_of("doctor")
        assert f"the log of job {job} of " in (home.state / "log" / "host.log").read_text()
    ids = load.stop()

    assert before == server(home), "the store has not died"
    text = home("logs", str(job))
    assert "bytes are missing here: the disk of this host was nearly full\n" in text
    assert text.endswith("the last line\n")
    nothing_is_lost(home, ids)


def test_a_full_disk_stops_the_queue_only_while_it_is_full(home: Home) -> None:
    """The store takes its reserve first, and then waits for room. No job is lost, and a running one goes on."""
    reserve = home.state / "store" / "reserve"
    until(lambda: reserve.exists() and reserve.stat().st_blocks * 512 == RESERVE_BYTES, what="the reserve")
    load = Load(home)
    with running(home, SILENT):
        load.until_more()
        first = fill(home.state)
        until(lambda: not reserve.exists(), what="the reserve is released", timeout_s=120)
        load.until_more()
        assert trouble(home) is not None

        first = first.rename(home.state / "first")
        second = fill(home.state)
        until(lambda: (found := trouble(home)) and found.state is StoreState.NO_ROOM, what="no room", timeout_s=120)
        load.until_refused()
        assert "make room there" in home.output_of("status")
        for each in (first, second):
            each.unlink()
        load.until_more()
    ids = load.stop()

    nothing_is_lost(home, ids)
    until(reserve.exists, what="the reserve is made again")


def test_a_store_that_is_killed_again_and_again_loses_nothing(home: Home) -> None:
    """Each time it is back by itself, while jobs are submitted and run."""
    load = Load(home)
    with running(home, SILENT):
        for _ in range(4):
            load.until_more()
            before = server(home)
            assert before is not None
            before.send(signal.SIGKILL)
            until(lambda old=before: server(home) not in {None, old}, what="the next store")  # type: ignore[misc]
        load.until_more()
    nothing_is_lost(home, load.stop())
