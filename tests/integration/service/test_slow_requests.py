"""Requests that are too slow or too large, and too many connections, are refused, and others are served meanwhile."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest
from bounded import until
from service_fixtures import ServedSite, serving

#: The bounds of this service are small, so that a test need not wait for them.
REQUEST_S, UNREAD_S, MOST = 1.0, 1.0, 20


@pytest.fixture(scope="module")
def strict() -> Iterator[ServedSite]:
    """Return a site whose service has little patience."""
    bounds = {"REQUEST_S": REQUEST_S, "UNREAD_S": UNREAD_S, "MOST_PER_PEER": MOST, "REFUSED_S": 0.5, "HANDSHAKE_S": 1}
    with serving(bounds={f"gpuqueue.service.peer_protocol:{name}": value for name, value in bounds.items()}) as site:
        yield site


def _connected(site: ServedSite) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    made.settimeout(20)
    made.connect(str(site.socket_path))
    return made


def _served(site: ServedSite) -> None:
    """Check that another peer is served."""
    with site.client("https") as client:
        client.devices.list()


def _rest(connected: socket.socket) -> bytes:
    """Return what the service sends until it closes the connection."""
    found = bytearray()
    with suppress(ConnectionError):
        while piece := connected.recv(65536):
            found += piece
    return bytes(found)


def _refusal(answer: bytes) -> tuple[int, str]:
    """Return the status and the words of an answer, which must be a whole problem document."""
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"content-type: application/problem+json" in head
    problem = json.loads(body)
    assert int(head.split()[1]) == problem["status"]
    assert problem["exit_code"] in {2, 5}
    return problem["status"], problem["detail"]


def _drip(site: ServedSite, first: bytes, again: bytes) -> bytes:
    """Send *first*, and then *again* and again, slowly. Return what the service answers when it has enough."""
    with _connected(site) as slow:
        slow.sendall(first)
        slow.setblocking(False)
        found = bytearray()

        def is_over() -> bool:
            try:
                piece = slow.recv(65536)
            except BlockingIOError:
                with suppress(OSError):  # closed: what it has answered is read next
                    slow.send(again)
                return False
            except ConnectionError:
                return True
            found.extend(piece)
            return not piece

        until(is_over, timeout_s=REQUEST_S + 10, what="the end of a slow connection")
        _served(site)
        return bytes(found)


@pytest.mark.parametrize(
    ("first", "again"),
    [
        (b"GET /api/v1/me HTTP/1.1\r\nHost: x\r\nX-Slow: ", b"a"),
        (b"GET /api/v1/me HTTP/1.1\r\n", b"A: b\r\n"),
        (b"POST /api/v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n{", b" "),
        (b"POST /api/v1/jobs HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
    ],
    ids=["value", "header", "body", "chunks"],
)
def test_a_slow_request_is_refused(strict: ServedSite, first: bytes, again: bytes) -> None:
    """A client that sends its request byte by byte is cut off when its time is over."""
    status, words = _refusal(_drip(strict, first, again))

    assert status in {408, 431}
    assert "must arrive within 1 s" in words or "headers" in words


@pytest.mark.parametrize("first", [b"", b"\r\n", b"GET /api"], ids=["nothing", "empty lines", "half a line"])
def test_a_silent_connection_is_closed(strict: ServedSite, first: bytes) -> None:
    """A connection without a request is no request that is waited for for ever."""
    with _connected(strict) as silent:
        silent.sendall(first)

        assert _rest(silent).startswith(b"HTTP/1.1 408 " if len(first) > 2 else b"")


def test_empty_lines_do_not_keep_a_used_connection(strict: ServedSite) -> None:
    """Empty lines after an answer are no request either."""
    with _connected(strict) as used:
        used.sendall(b"GET /api/v1/me HTTP/1.1\r\nHost: x\r\n\r\n")
        answer = b""
        while not answer.endswith(b"}"):
            answer += used.recv(65536)
        assert answer.startswith(b"HTTP/1.1 200 ")
        used.sendall(b"\r\n")

        assert _rest(used) == b""


def test_a_handshake_that_never_ends_is_ended(strict: ServedSite) -> None:
    """A connection that begins no TLS is closed, and others are served."""
    with socket.create_connection(("127.0.0.1", strict.port), timeout=20) as silent:
        _served(strict)

        assert _rest(silent) == b""


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"X: " + b"a" * 300_000 + b"\r\n", 431),
        (b"".join(b"X-%d: a\r\n" % number for number in range(200)), 431),
        (b"X: " + b"a" * 70_000 + b"\r\n", 431),
        (b"Content-Length: 5000000\r\n", 413),
        (b"Content-Length: 12x\r\n", 400),
        (b"Content-Length: 99999999999999999999999999\r\n", 400),
        (b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", 400),
        (b"Bad Name: x\r\n", 400),
    ],
    ids=[
        "long value",
        "many headers",
        "a bit long",
        "large body",
        "no number",
        "huge number",
        "two lengths",
        "bad name",
    ],
)
def test_a_head_that_is_too_much_is_refused(strict: ServedSite, head: bytes, status: int) -> None:
    """Too large, too many, and malformed headers are refused with a problem document before a body is read."""
    with _connected(strict) as large:
        with suppress(ConnectionError):
            large.sendall(b"POST /api/v1/jobs HTTP/1.1\r\nHost: x\r\n" + head + b"\r\n")

        assert status == _refusal(_rest(large))[0]
    _served(strict)


def test_a_body_without_a_length_ends_at_the_limit(strict: ServedSite) -> None:
    """A body in chunks is refused when it is too large, and not kept until it ends."""
    with _connected(strict) as endless:
        endless.sendall(b"POST /api/v1/jobs HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        chunk = b"10000\r\n" + b" " * 65536 + b"\r\n"
        with suppress(ConnectionError):
            for _ in range(1000):
                endless.sendall(chunk)
            pytest.fail("65 MB were accepted")
    _served(strict)


def test_trailers_without_an_end_are_refused(strict: ServedSite) -> None:
    """Headers behind a body are not kept, and do not come for ever. Those of the head alone count."""
    head = b"POST /api/v1/jobs HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    with _connected(strict) as endless:
        endless.sendall(head + b"1\r\n{\r\n0\r\n")
        with suppress(ConnectionError):
            for number in range(100_000):
                endless.sendall(b"X-%d: %s\r\n" % (number, b"a" * 1000))
            pytest.fail("100 MB of trailers were accepted")
    with _connected(strict) as short:
        short.sendall(head + b"1\r\n{\r\n0\r\nIdempotency-Key: not a key\r\nConnection: close\r\n\r\n")
        until(lambda: b"not JSON" in short.recv(65536), what="the refusal of the body")
    _served(strict)


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        (b"PRI * HTTP/2.0", 400),
        (b"CONNECT gpu.example.org:443 HTTP/1.1", 400),
        (b"GET http://gpu.example.org HTTP/1.1", 400),
        (b"GET /\xff\xfe HTTP/1.1", 400),
        (b"GET /api/v1/me HTTP/9.9", 400),
        (b"G\0T /api/v1/me HTTP/1.1", 400),
        (b"BREW /api/v1/me HTTP/1.1", 400),
        (b"TRACE /api/v1/me HTTP/1.1", 405),
        (b"GET //etc/passwd HTTP/1.1", 404),
        (b"GET /" + b"a" * 66_000 + b" HTTP/1.1", 431),
        (b"\x16\x03\x01\x02\x00\x01\x00", 400),
    ],
)
def test_what_is_no_request_is_refused(strict: ServedSite, request_line: bytes, status: int) -> None:
    """Other protocols, versions and methods get a problem document, and a closed connection."""
    with _connected(strict) as odd:
        odd.sendall(request_line + b"\r\nHost: x\r\nConnection: close\r\n\r\n")

        assert status == _refusal(_rest(odd))[0]


def test_an_upgrade_is_not_made(strict: ServedSite) -> None:
    """A request to change the protocol is answered in HTTP, and what follows is no other protocol."""
    with _connected(strict) as other:
        other.sendall(
            b"GET /api/v1/me HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, close\r\nUpgrade: websocket\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        )

        assert _rest(other)[:12] in {b"HTTP/1.1 200", b"HTTP/1.1 400"}


#: The head of a request with a body that its route does not read.
NEEDLESS = b"GET /api/v1/me HTTP/1.1\r\nHost: x\r\nContent-Length: 4000000\r\n\r\n"


def test_a_body_that_nobody_reads_has_its_time_too(strict: ServedSite) -> None:
    """A route without a body answers. The connection ends, with no second answer, if the rest does not come."""
    with _connected(strict) as endless:
        endless.sendall(NEEDLESS + b"abc")
        answer = _rest(endless)

    assert answer.startswith(b"HTTP/1.1 200 ")
    assert 1 == answer.count(b"HTTP/1.1 ")


def test_a_body_that_nobody_reads_does_not_end_the_connection(strict: ServedSite) -> None:
    """Clients send a body after the head, and the next request on the same connection.

    The connection once ended with such an answer. The next request was lost if it was on its way already.
    """
    with _connected(strict) as kept:
        kept.sendall(NEEDLESS + b"abc")
        found = bytearray()

        def answers(count: int) -> bool:
            found.extend(kept.recv(65536))
            return found.count(b"HTTP/1.1 200 ") == count

        until(lambda: answers(1), what="the answer")
        kept.sendall(b"x" * (4_000_000 - 3) + b"GET /api/v1/me HTTP/1.1\r\nHost: x\r\n\r\n")
        until(lambda: answers(2), what="the second answer")


def test_chunks_that_nobody_reads_are_not_too_many(strict: ServedSite) -> None:
    """Beyond the size of a request the connection ends, with no second answer."""
    with _connected(strict) as endless:
        endless.sendall(b"GET /api/v1/me HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        found = b""
        while not found.endswith(b"}"):
            found += endless.recv(65536)
        with suppress(ConnectionError):
            for _ in range(5):
                endless.sendall(b"100000\r\n" + b"x" * 2**20 + b"\r\n")
        answer = found + _rest(endless)

    assert 1 == answer.count(b"HTTP/1.1 ")


def test_two_requests_at_once_are_answered_in_turn(strict: ServedSite) -> None:
    """A client may send its next request before the first one is answered, and part of it later."""
    one = b"GET /api/v1/me HTTP/1.1\r\nHost: x\r\n\r\n"
    with _connected(strict) as fast:
        fast.sendall(one + one + one[:20])
        found = bytearray()

        def answers(count: int) -> bool:
            found.extend(fast.recv(65536))
            return found.count(b"HTTP/1.1 200 ") == count

        until(lambda: answers(2), what="two answers")
        fast.sendall(one[20:])
        until(lambda: answers(3), what="the third answer")


def test_one_peer_has_so_many_connections(strict: ServedSite) -> None:
    """Beyond its bound an account is refused with the reason. Others are served, and it is when one has closed."""
    with ExitStack() as stack:
        for _ in range(MOST):
            used = stack.enter_context(_connected(strict))
            used.sendall(b"GET /api/v1/me HTTP/1.1\r\nHost: x\r\n\r\n")
            answer = b""
        while not answer.endswith(b"}"):
            answer += used.recv(65536)
        assert answer.startswith(b"HTTP/1.1 200 ")
        with _connected(strict) as beyond:
            beyond.sendall(b"GET /api/v1/me HTTP/1.1\r\nHost: x\r\n\r\n")
            status, words = _refusal(_rest(beyond))
        for _ in range(2 * MOST):
            stack.enter_context(_connected(strict))
        _served(strict)

        assert (429, True) == (status, f"{MOST} connections, and may have no more" in words)
    with strict.client("unix") as client:
        until(lambda: _lists(client), what="room for another connection")


def _lists(client: object) -> bool:
    try:
        return bool(client.devices.list())  # type: ignore[attr-defined]
    except Exception:  # noqa: BLE001 - it is refused for a moment
        return False


def test_a_follower_that_does_not_read_is_cut_off(strict: ServedSite) -> None:
    """A stream that nobody reads holds its connection only for a while, and holds up nobody."""
    with strict.client("direct") as client:
        jobs = [client.jobs.submit(["true", "x" * 100_000], mem="1M", hold=True).id for _ in range(20)]
    with _connected(strict) as lazy:
        lazy.sendall(b"GET /api/v1/streams/jobs HTTP/1.1\r\nHost: x\r\n\r\n")
        assert lazy.recv(10).startswith(b"HTTP/1.1 2")
        _served(strict)
        until(lambda: _is_hung_up(lazy), timeout_s=UNREAD_S + 20, what="the end of an unread stream")
    with strict.client("direct") as client:
        for each in jobs:
            client.jobs.cancel(each)


def _is_hung_up(connected: socket.socket) -> bool:
    """Return whether the other end has closed the connection, without reading what it has sent."""
    try:
        connected.send(b"\r\n", socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return False
