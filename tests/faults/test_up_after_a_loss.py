"""Tests that ``gpuqueue up`` is all that a user has to run after the store or the database has lost its data."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bounded import until
from own_home import Home

from gpuqueue.embedded.store import UNREACHABLE_S
from gpuqueue.recovery import ID_GAP
from gpuqueue.system.process import ProcessIdentity, age_s


@pytest.fixture
def up(home: Home) -> Home:
    """Return a machine with two simulated devices that are up, with leases that end within a test."""
    home.environ.update(GPUQUEUE_HOST_LOST_AFTER="15s", GPUQUEUE_HEARTBEAT="0.5s", GPUQUEUE_HEADROOM="0")
    home("up", "--devices", "sim:2x24G")
    return home


@pytest.fixture
def submit(up: Home) -> Callable[[str], int]:
    """Return a function that submits a shell script on a whole device and returns the job's id."""
    return lambda script: int(up("submit", "--mem", "20G", "--", "sh", "-c", script))


def patient(submit: Callable[[str], int], place: Path, code: int) -> int:
    """Submit a job that writes its pid and exits with *code* once the file ``go`` exists; return when it runs."""
    output = place / f"said-{code}"
    job_id = submit(f"echo $$ >> {output}; while [ ! -e {place}/go ]; do sleep 0.1; done; exit {code}")
    until(lambda: output.exists() and output.read_text(), what=f"job {job_id} runs")
    return job_id


def until_in_history(home: Home, held: int) -> None:
    """Wait until the history output_of that the last job is held: then it has all earlier events too."""
    until(lambda: (held, "held") in states(home, "history"), what=f"job {held} is held in the history")


def states(home: Home, what: str) -> list[tuple[int, str]]:
    """Return the id and state of each job that ``gpuqueue queue`` or ``gpuqueue history`` lists, by id."""
    plain = json.loads(home.output_of(what, "--json"))
    jobs = plain["jobs"] if what == "queue" else [row["job"] for row in plain]
    return sorted((job["id"], job["state"]) for job in jobs)


def ended(home: Home, job_ids: list[int]) -> dict[int, dict[str, Any]]:
    """Wait until these jobs have ended in the history, and return the history's row of each."""
    home.output_of("wait", *map(str, job_ids))
    rows = {row["job"]["id"]: row for row in json.loads(home("history", "--json"))}
    return {job_id: rows[job_id] for job_id in job_ids}


def endings(rows: dict[int, dict[str, Any]]) -> list[tuple[int, int | None]]:
    """Return the number of runs of each job, and the exit code of its last run."""
    return [(len(row["runs"]), row["runs"][-1]["ending"]["exit_code"]) for row in rows.values()]


@pytest.mark.full
@pytest.mark.parametrize("killed", [True, False])
def test_a_store_without_its_data(up: Home, submit: Callable[[str], int], tmp_path: Path, *, killed: bool) -> None:
    """Running jobs end with their own exit codes, waiting ones run once, held ones stay held, and ids grow.

    A store that lived on without its files was never replaced. Its workers stayed with it, all other processes used the
    new store, and a job ran twice.
    """
    running = [patient(submit, tmp_path, code) for code in (3, 4)]
    waiting = [submit(f"echo {number} >> {tmp_path}/done") for number in range(3)]
    held = submit(f"echo held >> {tmp_path}/done")
    up("hold", str(held))
    tokens = [[path.name for path in (up.state / "runs" / str(each)).iterdir()] for each in running]
    until_in_history(up, held)
    store = ProcessIdentity.parse((up.state / "store" / "pid").read_text())
    assert store is not None

    if not killed:
        until(lambda: (age_s(store.pid) or 0) > UNREACHABLE_S, what="a store that is no newcomer")
    shutil.rmtree(up.state / "store")  # first: the host process starts a killed store again, if its directory is there
    if killed:
        assert store.send(signal.SIGKILL)
        assert store.wait(30)
    output = up("up")

    assert "queue    rebuilt      the store had lost its data: " in output
    assert states(up, "queue") == [
        *((each, "running") for each in running),
        *((each, "queued") for each in waiting),
        (held, "held"),
    ]
    until(lambda: json.loads(up("gpus", "--json")), what="a worker that has said again what it serves")
    late = submit(f"echo late >> {tmp_path}/done")
    assert late > held + ID_GAP
    (tmp_path / "go").touch()
    assert [(1, 3), (1, 4), (1, 0), (1, 0), (1, 0), (1, 0)] == endings(ended(up, [*running, *waiting, late]))
    assert [1, 1] == [len((tmp_path / f"said-{code}").read_text().split()) for code in (3, 4)]
    assert tokens == [[path.name for path in (up.state / "runs" / str(each)).iterdir()] for each in running]
    assert ["0", "1", "2", "late"] == sorted((tmp_path / "done").read_text().split())
    assert [(held, "held")] == states(up, "queue")


@pytest.mark.full
def test_a_database_file_that_was_deleted(up: Home, submit: Callable[[str], int], tmp_path: Path) -> None:
    """`gpuqueue up` creates a deleted database file again, and the live jobs are recorded in it.

    The error message used to recommend ``gpuqueue up``, which made no tables while the workers were up.
    """
    running = [patient(submit, tmp_path, code) for code in (5, 6)]
    waiting, held = (submit(f"echo {name} >> {tmp_path}/done") for name in ("waiting", "held"))
    up("hold", str(held))
    until_in_history(up, held)

    for file in up.state.glob("history.db*"):
        file.unlink()
    assert "run gpuqueue up" in up("history", code=4)
    assert "history  created" in up("up")

    alive = [*((each, "running") for each in running), (waiting, "queued"), (held, "held")]
    until(lambda: states(up, "history") == alive, what="they are back")
    (tmp_path / "go").touch()
    assert [(1, 5), (1, 6), (1, 0)] == endings(ended(up, [*running, waiting]))
    assert ["waiting"] == (tmp_path / "done").read_text().split()
    assert held + 1 == submit("true")
