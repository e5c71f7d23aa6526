"""The files of runs on other hosts: through their relays, and from what they have delivered."""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.client import IncompleteRead
from pathlib import Path

import pytest
from bounded import until
from fake_relay import FakeRelay
from fetched_files import archive_of, fetched, files_in, opened, packing, submitted
from service_fixtures import ServedSite

from gpuqueue.client import Client
from gpuqueue.model.run_files import KeptState
from gpuqueue.text.units import MIB


@pytest.fixture(scope="module")
def served() -> Iterator[ServedSite]:
    """Return a site whose service packs files with a small program of the tests."""
    with packing() as site:
        yield site


@pytest.fixture
def owner(served: ServedSite) -> Iterator[Client]:
    """Return a client of this account whose code travels. Nothing is open."""
    with opened(served) as client:
        yield client


def answer_files(relay: FakeRelay, content: bytes | str) -> dict[str, object]:
    """Answer one request for files with *content*; a text is why they cannot be sent. Return the request."""
    (request,) = until(lambda: relay.poll(5), what="a request")
    if isinstance(content, str):
        assert 204 == relay.done(request, content.encode()).status
    else:
        parts = (content[begin : begin + 100_000] for begin in range(0, len(content), 100_000))
        assert 204 == relay.ask("PUT", f"/requests/{request['id']}/content", parts).status
        assert 204 == relay.done(request).status
    return request


def test_files_of_another_host_come_through_its_relay(
    owner: Client, relay: FakeRelay, served: ServedSite, tmp_path: Path
) -> None:
    """Many megabytes pass through the service, and the relay gets the patterns."""
    job = submitted(owner, tmp_path)
    claim = relay.runs(job)
    files = {"a": os.urandom(20 * MIB), "b": b"text"}
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(fetched, served, job, "?pattern=*.pt&pattern=b")
        request = answer_files(relay, archive_of(files))
        answer = asking.result(timeout=60)

    assert files == files_in(answer)
    assert ("1", "directory") == (answer.headers["gpuqueue-run"], answer.headers["gpuqueue-source"])
    assert ("files", job.id, claim.token, ["*.pt", "b"]) == tuple(
        request[each] for each in ("kind", "job", "token", "patterns")
    )
    assert not (served.settings.delivered_dir / str(job.id)).exists()


def test_delivered_files_come_when_the_host_has_none_or_is_away(
    owner: Client, relay: FakeRelay, served: ServedSite, tmp_path: Path
) -> None:
    """Without these the answer has the reason of the host, or that it does not answer."""
    job = submitted(owner, tmp_path)
    claim = relay.runs(job)
    relay.finish(claim)
    away = fetched(served, job)
    with ThreadPoolExecutor(1) as pool:
        assert [] == relay.poll(0)
        asking = pool.submit(fetched, served, job)
        answer_files(relay, "the copy of the code was deleted: setting keep_code")
        gone = asking.result(timeout=60)
        relay.put(claim, "results-failed", b"no room")
        asking = pool.submit(fetched, served, job)
        answer_files(relay, "it was deleted")
        failed = asking.result(timeout=60)
        relay.put(claim, "results", archive_of({"out": b"kept"}))
        asking = pool.submit(fetched, served, job)
        answer_files(relay, "it was deleted")
        kept = asking.result(timeout=60)
        only_kept = fetched(served, job, "?kept=true")
        assert [] == relay.poll(0)
    delivered = served.settings.delivered_dir / str(job.id) / claim.token / "results.tar"
    known = owner.files.kept(job.id)
    assert (KeptState.KEPT, delivered.stat().st_size) == (known.state, known.size_bytes)
    assert {"out": b"kept"} == files_in(only_kept)

    words = f"the files of job {job.id} cannot be had from host nodeB: "
    assert (404, words + "host nodeB does not answer") == (away.status, away.detail)
    assert (404, words + "the copy of the code was deleted: setting keep_code") == (gone.status, gone.detail)
    assert (404, f"the files that job {job.id} asked to keep were not kept: no room") == (failed.status, failed.detail)
    assert ({"out": b"kept"}, "kept") == (files_in(kept), kept.headers["gpuqueue-source"])


def _begin(site: ServedSite, words: str) -> ssl.SSLSocket:
    """Return a connection on which a request was begun."""
    context = ssl.create_default_context(cafile=site.directory / "cert.pem")
    made = context.wrap_socket(
        socket.create_connection(("127.0.0.1", site.port), timeout=20), server_hostname="127.0.0.1"
    )
    made.sendall(words.encode())
    return made


def test_a_host_that_dies_while_it_sends_cuts_the_archive_short(
    owner: Client, relay: FakeRelay, served: ServedSite, tmp_path: Path
) -> None:
    """The client gets no whole answer."""
    job = submitted(owner, tmp_path)
    relay.runs(job)
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(fetched, served, job)
        (request,) = until(lambda: relay.poll(5), what="a request")
        path = f"/api/v1/host/requests/{request['id']}/content"
        head = f"PUT {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {relay.token}\r\n"
        with closing(_begin(served, f"{head}Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n")):
            until(lambda: 404 == relay.ask("PUT", path.removeprefix("/api/v1/host"), b"").status, what="its beginning")
        with pytest.raises(IncompleteRead):
            asking.result(timeout=60)


@pytest.mark.full
def test_a_client_that_leaves_ends_the_request_of_the_host(
    owner: Client, relay: FakeRelay, served: ServedSite, tmp_path: Path
) -> None:
    """The host need not send the rest."""
    job = submitted(owner, tmp_path)
    relay.runs(job)
    token = (served.directory / "mine").read_text()
    head = f"GET /api/v1/jobs/{job.id}/files HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n"
    with closing(_begin(served, head)) as client:
        (request,) = until(lambda: relay.poll(5), what="a request")

        def endless() -> Iterator[bytes]:
            yield b"x" * MIB
            client.recv(10)
            client.close()
            while True:
                yield b"x" * MIB

        answer = relay.ask("PUT", f"/requests/{request['id']}/content", endless())

    assert (404, "nobody waits for this request any more") == (answer.status, answer.detail)


def test_an_account_fetches_so_many_at_a_time(
    owner: Client, relay: FakeRelay, served: ServedSite, tmp_path: Path
) -> None:
    """More are refused until one ends. Another account is served meanwhile."""
    job = submitted(owner, tmp_path)
    relay.runs(job)
    assert [] == relay.poll(0)
    with ThreadPoolExecutor(4) as pool:
        asking = [pool.submit(fetched, served, job) for _ in range(4)]
        requests: list[dict[str, object]] = []
        until(lambda: requests.extend(relay.poll(1)) or len(requests) == 4, what="four requests")
        refused = fetched(served, job)
        assert 403 == fetched(served, job, token="bobs").status
        for each in requests:
            relay.done(each, b"enough")
        assert [404] * 4 == [each.result(timeout=60).status for each in asking]

    assert (429, True) == (refused.status, "retry-after" in refused.headers)
