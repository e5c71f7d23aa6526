"""Keys for jobs on other hosts: a real service, and a relay that is written in this test."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from bounded import until
from fake_relay import Answer, FakeRelay, ask
from host_deliveries import submitted
from service_fixtures import ServedSite, mine

from gpuqueue.client import Client
from gpuqueue.client.remote.link import Link
from gpuqueue.errors import GpuQueueError, HostUnreachable, Refused
from gpuqueue.model.api import TerminalInput, Whether
from gpuqueue.model.job import Job, JobState
from gpuqueue.model.terminal_size import Window
from gpuqueue.system.terminal_socket import size_frame, typed_frames


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    """Return threads for the users."""
    with ThreadPoolExecutor(4) as made:
        yield made


def typed(client: Client, job: Job, wanted: TerminalInput) -> bool:
    """Type on the terminal of *job*, and return whether it has one."""
    link = client.logs._link  # type: ignore[attr-defined]
    assert isinstance(link, Link)
    return link.send("POST", f"/jobs/{job.id}/terminal", wanted, kind=Whether).answer


def asked(relay: FakeRelay) -> str:
    """Return the id of the next request, which is for a terminal."""
    (request,) = until(lambda: relay.poll(5), what="a request")
    assert "terminal" == request["kind"]
    return str(request["id"])


def keys(relay: FakeRelay, request: str, offset: int, timeout_s: float = 5) -> Answer:
    """Return the answer to a poll for keys."""
    return relay.ask("GET", f"/requests/{request}/keys?offset={offset}&timeout_s={timeout_s:g}")


def error_of(future: Future[bool]) -> GpuQueueError:
    """Return the error of a user."""
    error = future.exception(timeout=30)
    assert isinstance(error, GpuQueueError), error
    return error


def test_keys_wait_until_the_relay_has_passed_them_on(
    owner: Client, relay: FakeRelay, pool: ThreadPoolExecutor
) -> None:
    """Bytes that are no UTF-8 arrive, too. The end of the run is the answer to what comes later."""
    job = submitted(owner)
    relay.runs(job)
    size = Window(columns=90, rows=20)
    first = pool.submit(
        typed, owner, job, TerminalInput(window=size, typed=b"\xff\r".decode("utf-8", "surrogateescape"))
    )
    request = asked(relay)
    expected = size_frame(size) + typed_frames(b"\xff\r")
    assert (200, expected) == ((answer := keys(relay, request, 0)).status, answer.content)
    assert not first.done()
    polling = pool.submit(keys, relay, request, len(expected))
    assert first.result(timeout=30)
    second = pool.submit(typed, owner, job, TerminalInput(typed="x"))
    assert typed_frames(b"x") == polling.result(timeout=30).content
    assert 400 == keys(relay, request, 0).status
    assert 204 == relay.ask("PUT", f"/requests/{request}/done").status
    assert not second.result(timeout=30)
    assert 404 == keys(relay, request, len(expected)).status


def test_nobody_else_gets_or_types_keys(
    owner: Client, relay: FakeRelay, served: ServedSite, pool: ThreadPoolExecutor
) -> None:
    """Another user is refused before the host is asked, and another host finds no request."""
    job, other = submitted(owner), FakeRelay(served, "nodeC", "GPU-C")
    relay.runs(job)
    answer = ask(served, "POST", f"/jobs/{job.id}/terminal", mine(served, "bobs"), b'{"typed": "x"}')
    assert 403 == answer.status
    assert [] == relay.poll(0)
    typing = pool.submit(typed, owner, job, TerminalInput(typed="secret"))
    request = asked(relay)
    assert 404 == keys(other, request, 0).status
    assert 403 == ask(served, "GET", f"/host/requests/{request}/keys?offset=0", mine(served)).status
    assert b"secret" in keys(relay, request, 0).content
    relay.ask("PUT", f"/requests/{request}/done", b"it belongs to\n\x1b[31manother account")
    error = error_of(typing)
    assert isinstance(error, Refused)
    assert str(error).endswith("cannot be used: it belongs to \N{REPLACEMENT CHARACTER}[31manother account")


def test_a_job_that_has_ended_has_no_terminal_anywhere(owner: Client, relay: FakeRelay) -> None:
    """Its host is not asked."""
    job = submitted(owner)
    relay.finish(relay.runs(job))
    until(lambda: owner.jobs.get(job.id).state is JobState.SUCCEEDED, what="the end")
    assert not typed(owner, job, TerminalInput(typed="x"))
    assert [] == relay.poll(0)


def test_a_relay_that_is_killed_loses_keys_at_once(
    owner: Client, relay: FakeRelay, served: ServedSite, pool: ThreadPoolExecutor
) -> None:
    """The user does not wait. The next relay gets only what is typed from then on."""
    job = submitted(owner)
    relay.runs(job)
    first = pool.submit(typed, owner, job, TerminalInput(typed="one"))
    request = asked(relay)
    sent = typed_frames(b"one")
    assert sent == keys(relay, request, 0).content
    context = ssl.create_default_context(cafile=served.directory / "cert.pem")
    with (
        socket.create_connection(("127.0.0.1", served.port)) as line,
        context.wrap_socket(line, server_hostname="127.0.0.1") as link,
    ):
        path = f"/api/v1/host/requests/{request}/keys?offset={len(sent)}"
        link.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {relay.token}\r\n\r\n".encode())
        assert first.result(timeout=30)  # the service has got the poll
    until(lambda: 404 == keys(relay, request, len(sent), 0).status, what="the end of the request")
    second = pool.submit(typed, owner, job, TerminalInput(typed="two"))
    request = asked(relay)
    assert typed_frames(b"two") == keys(relay, request, 0).content
    keys(relay, request, len(typed_frames(b"two")), 0)
    assert second.result(timeout=30)


@pytest.mark.full
def test_a_host_without_a_relay_is_named(owner: Client, relay: FakeRelay) -> None:
    """The user learns which host does not answer, and the audit log has it as a failure."""
    job = submitted(owner)
    relay.runs(job)
    for _ in range(2):
        with pytest.raises(HostUnreachable, match=r"^host nodeB does not answer$"):
            owner.logs.terminal(job.id, owner.logs.tail())

    def outcomes() -> set[str]:
        return {str(each.outcome) for each in owner.access.audit(action="attach") if each.jobs == (str(job.id),)}

    until(lambda: {"failed"} == outcomes(), what="the entries")
