"""Archives whose first byte takes long, because the program that packs them searches many files."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from bounded import until
from fake_relay import FakeRelay
from fetched_files import archive_of, fetched, files_in, opened, packing, submitted
from service_fixtures import ServedSite

from gpuqueue.client import Client
from gpuqueue.client.remote import link

#: The longest silence within an archive here, and a search that is longer, in seconds.
SILENCE_S, SEARCH_S = 1.0, 3.0


@pytest.fixture(scope="module")
def served() -> Iterator[ServedSite]:
    """Return a site whose service has little patience within an archive."""
    with packing(
        {f"gpuqueue.service.{each}:SILENCE_S": SILENCE_S for each in ("routes.files", "routes.host", "relay_requests")}
    ) as site:
        yield site


@pytest.fixture
def owner(served: ServedSite) -> Iterator[Client]:
    """Return a client of this account whose code travels. Nothing is open."""
    with opened(served) as client:
        yield client


@pytest.mark.full
def test_a_search_on_another_host_may_take_long(
    owner: Client, served: ServedSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host says that it has begun, and sends nothing until the search is over. The client waits as well."""
    monkeypatch.setattr(link, "ANSWER_S", SILENCE_S)
    relay = FakeRelay(served)
    job = submitted(owner, tmp_path)
    relay.runs(job)

    def searched() -> Iterator[bytes]:
        threading.Event().wait(SEARCH_S)
        yield archive_of({"out": b"found"})

    with ThreadPoolExecutor(1) as pool:
        fetching = pool.submit(owner.files.fetch, job.id, to=tmp_path / "here")
        (request,) = until(lambda: relay.poll(5), what="a request")
        answer = relay.ask("PUT", f"/requests/{request['id']}/content", searched())
        assert (204, 1) == (answer.status, fetching.result(timeout=60).files), answer.content

    assert "found" == (tmp_path / "here" / "out").read_text()


def test_a_search_on_this_host_may_take_long(owner: Client, served: ServedSite, tmp_path: Path) -> None:
    """The program that packs writes nothing until its search is over."""
    here = FakeRelay(served, served.settings.host, "GPU-0")
    job = submitted(owner, tmp_path)
    claim = here.runs(job, runs=served.settings.runs_dir)
    directory = served.settings.runs_dir / str(job.id) / claim.token
    (directory / "code" / "tree").mkdir(parents=True)
    (directory / "code" / "tree" / "out").write_text("found")
    (directory / "search").touch()

    over = threading.Timer(SEARCH_S, (directory / "search").unlink)
    over.start()
    answer = fetched(served, job)
    over.join()

    assert {"out": b"found"} == files_in(answer)
