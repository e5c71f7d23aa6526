"""Large bodies that worker hosts send: they arrive, are bounded, and cost nobody else anything."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from contextlib import closing, suppress

import pytest
from bounded import until
from fake_relay import FakeRelay, ask
from host_deliveries import delivered, submitted
from service_fixtures import ServedSite, serving

from gpuqueue.client import Client
from gpuqueue.text.units import MIB

#: The bounds of this service are small, so that a test need not wait for them.
SILENCE_S = 1.0


@pytest.fixture(scope="module")
def served() -> Iterator[ServedSite]:
    """Return a site whose results are small, and whose service has little patience."""
    bounds = {"SILENCE_S": SILENCE_S, "GRACE_S": 0.5, "LEAST_RATE": MIB}
    with serving(
        bounds={f"gpuqueue.service.routes.host:{name}": value for name, value in bounds.items()},
        GPUQUEUE_RESULTS_LIMIT="20M",
    ) as site:
        yield site


@pytest.mark.full
@pytest.mark.parametrize("whole", [True, False], ids=["with a length", "in chunks"])
def test_large_results_arrive(owner: Client, relay: FakeRelay, served: ServedSite, *, whole: bool) -> None:
    """They may be larger than other bodies, and are there once they are whole."""
    job = submitted(owner)
    claim = relay.runs(job)
    assert 204 == relay.put(claim, "results-failed", b"no\nroom").status
    assert "no room" == (delivered(served, job) / "results.failed").read_text()
    parts = [bytes([number]) * MIB for number in range(9)]
    answer = relay.put(claim, "results", b"".join(parts) if whole else iter(parts))

    assert 204 == answer.status
    assert b"".join(parts) == (delivered(served, job) / "results.tar").read_bytes()
    assert ["results.tar", "user"] == sorted(each.name for each in delivered(served, job).iterdir())


@pytest.mark.full
def test_results_above_the_limit_are_refused(owner: Client, relay: FakeRelay, served: ServedSite) -> None:
    """Before they are read if their length is known, else when they are above it. Nothing of them stays."""
    job = submitted(owner)
    claim = relay.runs(job)
    path = f"/runs/{claim.job_id}/{claim.token}/results"
    announced = _early(served, "PUT", path, relay.token, b"Content-Length: 30000000\r\n", b"x")
    chunked = relay.put(claim, "results", (b"x" * MIB for _ in range(100)))

    assert announced.startswith(b"HTTP/1.1 413 ")
    assert b"results_limit" in announced
    assert (413, True) == (chunked.status, "results_limit" in chunked.detail)
    until(lambda: ["user"] == [each.name for each in delivered(served, job).iterdir()], what="the end of the results")


def test_results_that_are_cut_short_are_not_kept(owner: Client, relay: FakeRelay, served: ServedSite) -> None:
    """A host that dies while it sends leaves the results of before."""
    job = submitted(owner)
    claim = relay.runs(job)
    relay.put(claim, "results", b"whole")
    head = f"PUT /api/v1/host/runs/{claim.job_id}/{claim.token}/results HTTP/1.1\r\nHost: x\r\n"
    with closing(_connected(served)) as link:
        words = f"{head}Authorization: Bearer {relay.token}\r\nContent-Length: 8000000\r\n\r\n".encode()
        link.sendall(words + b"x" * 3 * MIB)
        partial = delivered(served, job) / "results.partial"
        until(partial.exists, what="the beginning of the results")
        assert 409 == relay.put(claim, "results", b"other").status
    until(lambda: not partial.exists(), what="the end of the results")

    assert b"whole" == (delivered(served, job) / "results.tar").read_bytes()


@pytest.mark.parametrize("again", [b"", b"x"], ids=["silent", "slow"])
def test_results_that_come_too_slowly_are_ended(
    owner: Client, relay: FakeRelay, served: ServedSite, again: bytes
) -> None:
    """Neither silence nor single bytes keep a connection and a file open."""
    claim = relay.runs(submitted(owner))
    path = f"/runs/{claim.job_id}/{claim.token}/results"
    answer = _early(served, "PUT", path, relay.token, b"Content-Length: 8000000\r\n", b"x", again)

    assert answer.startswith(b"HTTP/1.1 408 ")
    assert 204 == relay.put(claim, "results", b"whole").status


@pytest.mark.parametrize("path", ["/runs/1/1.a/results", "/requests/x/content"])
def test_a_large_body_of_nobody_is_not_read(served: ServedSite, path: str) -> None:
    """Without the token of a host, a body without an end gets its refusal and no place in memory."""
    for token in (None, (served.directory / "bobs").read_text()):
        answer = _early(
            served, "PUT", path, token, b"Transfer-Encoding: chunked\r\n", b"", b"10000\r\n%s\r\n" % bytes(65536)
        )

        assert answer[:12] in {b"HTTP/1.1 401", b"HTTP/1.1 403"}
    assert 403 == ask(served, "PUT", "/host/requests/x/done", (served.directory / "bobs").read_text()).status


def test_another_route_has_no_large_body(relay: FakeRelay, served: ServedSite) -> None:
    """The bound of all other requests is that of before, whatever the path looks like."""
    for path in ("/runs/1/1.a/log?offset=0", "/runs/1/1.a/result%73", "/runs/1/1.a/b/results", "/requests/x/done"):
        answer = _early(served, "PUT", path, relay.token, b"Content-Length: 5000000\r\n", b"x")
        assert answer.startswith(b"HTTP/1.1 413 "), path


def _connected(site: ServedSite) -> ssl.SSLSocket:
    context = ssl.create_default_context(cafile=site.directory / "cert.pem")
    return context.wrap_socket(
        socket.create_connection(("127.0.0.1", site.port), timeout=20), server_hostname="127.0.0.1"
    )


def _early(
    site: ServedSite, method: str, path: str, token: str | None, head: bytes, first: bytes, again: bytes = b""
) -> bytes:
    """Send the beginning of a request and then *again* and again, and return the answer that comes before its end."""
    proof = f"Authorization: Bearer {token}\r\n" if token else ""
    words = f"{method} /api/v1/host{path} HTTP/1.1\r\nHost: x\r\n{proof}".encode()
    found = bytearray()
    with closing(_connected(site)) as link:
        link.sendall(words + head + b"\r\n" + first)
        link.settimeout(0.05)

        def is_over() -> bool:
            with suppress(OSError):  # it is closed: what it has answered is read next
                link.sendall(again)
            try:
                piece = link.recv(65536)
            except TimeoutError:
                return False
            except OSError:
                return True
            found.extend(piece)
            return not piece

        until(is_over, timeout_s=20, what="the answer")
    return bytes(found)
