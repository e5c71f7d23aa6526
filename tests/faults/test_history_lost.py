"""Tests of a database that is lost under a running recorder: live jobs are recorded again and are not disturbed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from bounded import until
from factories import make_spec
from private_postgres import Server
from site_of_one import Site

from gpuqueue.errors import HistoryUnreachable
from gpuqueue.model.job import JobState
from gpuqueue.text.units import MIB


@pytest.fixture
def robbed(
    store_url: str, tmp_path: Path, request: pytest.FixtureRequest, backend: str
) -> Iterator[tuple[Site, Callable[[], None]]]:
    """Return a site, and a function that removes its database: deletes the file, or recreates it empty."""
    if backend == "sqlite":
        site = Site(tmp_path / "state", store_url)

        def rob() -> None:
            for file in site.settings.state_dir.glob("history.db*"):
                file.unlink()

        yield site, rob
        site.stop()
        return
    server: Server = request.getfixturevalue("postgres_server")
    with server.database() as url:
        site = Site(tmp_path / "state", store_url, GPUQUEUE_DATABASE_URL=url)
        yield site, lambda: server.remake(url)
        site.stop()


@pytest.mark.full
def test_a_database_lost_under_a_running_recorder(robbed: tuple[Site, Callable[[], None]], tmp_path: Path) -> None:
    """A recorder notices the loss of its database and records live jobs in the new one.

    It used to write on into a file that no reader could reach, and then let the queue forget these events.
    """
    site, rob = robbed
    site.start_recorder()
    site.start_worker()
    before = site.until_recorded(site.queue.requests.submit(make_spec(mem_bytes=MIB)).id).job.id
    gate = tmp_path / "gate"
    script = f"while [ ! -e {gate} ]; do sleep 0.05; done; exit 4"
    runs_on = site.queue.requests.submit(make_spec(argv=("sh", "-c", script), mem_bytes=MIB)).id
    until(lambda: site.client.database.get(runs_on) is not None, what="the history knows the job")

    rob()
    ends_meanwhile = site.queue.requests.submit(make_spec(argv=("sh", "-c", "exit 9"), mem_bytes=MIB)).id
    site.until_state_in_queue(ends_meanwhile, JobState.FAILED)
    lost = ("has no tables yet: run gpuqueue up, or gpuqueue db upgrade", "is not there yet: run gpuqueue up")
    until(lambda: any(words in site.log() for words in lost), what="it is said")
    with pytest.raises(HistoryUnreachable, match="gpuqueue db upgrade"):
        site.client.database.get(before)
    site.make_tables()

    assert "exit 9" == str(site.until_recorded(ends_meanwhile).runs[-1].ending)
    assert JobState.RUNNING is site.client.database.get(runs_on).job.state  # type: ignore[union-attr]
    gate.touch()
    assert "exit 4" == str(site.until_recorded(runs_on).runs[-1].ending)
    assert site.client.database.get(before) is None
    assert 1 == site.log().count("the history database lost its history: ")
    assert site.queue.requests.submit(make_spec()).id == ends_meanwhile + 1
