"""Tests that commands which follow a job wait while the store is away.

The documented upgrade restarts the store, and it must not end these commands.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from bounded import until
from own_store import OwnStore
from site_of_one import BIN, Site

from gpuqueue.client import Client, patience
from gpuqueue.errors import StoreUnreachable, Unreachable
from gpuqueue.model.job import JobState
from gpuqueue.settings.settings import Settings


@pytest.fixture
def working(own_store: OwnStore, tmp_path: Path) -> Iterator[Site]:
    """Return a site with a worker and a recorder, on a store that a test may kill."""
    site = Site(tmp_path / "state", own_store.url)
    try:
        site.start_recorder()
        site.start_worker()
        yield site
    finally:
        site.stop()


@pytest.mark.full
def test_followers_wait_for_the_store_and_go_on(working: Site, own_store: OwnStore, tmp_path: Path) -> None:
    """`logs -f`, `attach` and `wait` continue after the store is back.

    They used to end with exit code 4, which is also the job's own exit code here, while the job went on.
    """
    go, out = tmp_path / "go", {}
    script = f"echo one; while ! test -e {go}; do sleep 0.05; done; echo two; exit 4"
    job = str(working.client.jobs.submit(["sh", "-c", script], mem="1M").id)
    working.until_state(int(job), JobState.RUNNING)
    followers = {}
    for words in (("logs", "-f", job), ("attach", job), ("wait", job)):
        out[words[0]] = tmp_path / words[0]
        with out[words[0]].open("wb") as file:
            command = [str(BIN / "gpuqueue"), *words]
            followers[words[0]] = subprocess.Popen(
                command, env=working.environ, stdout=file, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL
            )
    for name in ("logs", "attach"):
        until(lambda name=name: b"one" in out[name].read_bytes(), what=f"{name} shows the log")  # type: ignore[misc]
    until(lambda: _listens(working, followers["wait"].pid), what="wait listens")

    own_store.kill()
    for name, file in out.items():
        until(lambda file=file: b"Waiting for it" in file.read_bytes(), what=f"{name} stays")  # type: ignore[misc]
    go.touch()
    until(lambda: b"two" in out["logs"].read_bytes(), what="the log goes on while the store is away")
    own_store.start()

    ended = {name: process.wait(60) for name, process in followers.items()}
    assert {"logs": 0, "attach": 4, "wait": 4} == ended
    assert 1 == out["logs"].read_bytes().count(b"two")
    assert b"failed (exit 4)" in out["attach"].read_bytes()


class Stopped(Exception):
    """Ends a test as soon as the follower waits."""


@pytest.mark.parametrize("door", ["store", "service"])
def test_a_log_of_which_a_part_is_shown_is_followed_through_an_absence(
    own_store: OwnStore, tmp_path: Path, door: str
) -> None:
    """The store dies after `logs -f` has read the job and before it follows: it ended with exit code 4."""
    environ = {"GPUQUEUE_STATE_DIR": str(own_store.settings.state_dir), "GPUQUEUE_CONFIG": os.devnull}
    if door == "service":
        environ["GPUQUEUE_SERVICE_URL"] = f"unix:{tmp_path}/service.sock"

    def away(_error: Unreachable) -> None:
        raise Stopped

    with Client(Settings.load(environ)) as client:
        own_store.kill()
        with pytest.raises(Stopped):
            list(client.logs.follow(1, client.logs.tail(), away=away))
        with pytest.raises(Unreachable):
            list(client.logs.follow(1, away=away))


def _listens(site: Site, pid: int) -> bool:
    """Return whether this process has asked the store for its job; it does so only after it has subscribed."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir())) > 4 and site.queue.jobs.live() != []


def test_a_store_that_never_answered_is_reported_at_once() -> None:
    """A store that never answered raises at once.

    A typing error in the address must not cost ten minutes.
    """
    patient = patience.Patience(None)

    with pytest.raises(StoreUnreachable):
        patient.bear(StoreUnreachable("it does not answer"))


def test_patience_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that does not come back is reported once at the start, and raises in the end."""
    monkeypatch.setattr(patience, "BEAR_S", 0.0)
    monkeypatch.setattr(patience, "POLL_S", 0.0)
    reported: list[str] = []
    patient = patience.Patience(lambda error: reported.append(str(error)))
    patient.answered()

    with pytest.raises(StoreUnreachable):
        for _ in range(1000):
            patient.bear(StoreUnreachable("it does not answer"))

    assert ["it does not answer"] == reported
