"""Tests of the HTTP client of a worker host, against a real server."""

from __future__ import annotations

import io
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from bounded import until
from host_service import HostService, host_service
from service_fixtures import certificate

from gpuqueue.errors import BadRequest
from gpuqueue.settings.settings import Settings
from workers.relay.link import CallFailed, Link, Refusal, ServiceAway

LOG = "/runs/1/1.a/log?offset=0&replace=false"


@pytest.fixture
def link(settings: Settings) -> Iterator[Link]:
    """Return a link to the service."""
    with closing(Link(settings)) as made:
        yield made


def put(settings: Settings, path: str = LOG, body: bytes = b"", *, silence_s: float = 10.0) -> None:
    """Send *body* over a link of its own."""
    with closing(Link(settings, silence_s=silence_s)) as link:
        link.put(path, body)


def test_bytes_files_and_streams_arrive(service: HostService, link: Link) -> None:
    """Each kind of body arrives as it was sent, over connections that are used again."""
    large = os.urandom(3_000_000)
    link.put(LOG, b"one\n")
    link.put("/runs/1/1.a/complete")
    link.put_file("/runs/1/1.a/results", io.BytesIO(large), len(large), answer_s=10)
    link.put_pieces("/requests/r1/content", iter([b"a", b"", b"b" * 100_000]))

    assert b"one\n" == service.delivered("1/1.a", "log")
    assert service.is_complete("1/1.a")
    assert large == service.delivered("1/1.a", "results")
    assert b"a" + b"b" * 100_000 == service.contents["r1"]
    service.polls.put([{"id": "r1"}])
    assert [{"id": "r1"}] == link.get_list("/requests?timeout_s=1", timeout_s=10)


def test_a_refusal_says_why_and_from_where_to_go_on(service: HostService, link: Link) -> None:
    """The next offset is part of the refusal, and a later call over the same link works."""
    link.put(LOG, b"12345")

    with pytest.raises(Refusal, match="the service has more of this file") as refusal:
        link.put(LOG, b"x" * 4 * 2**20)  # so much that the service answers before it has read all
    assert (409, 5) == (refusal.value.status, refusal.value.next_offset)
    link.put("/runs/1/1.a/log?offset=5&replace=false", b"6")
    assert b"123456" == service.delivered("1/1.a", "log")


@pytest.mark.parametrize("status", [302, 401, 403, 429, 500, 503])
def test_what_may_work_later_is_no_refusal(service: HostService, link: Link, status: int) -> None:
    """A token that is not known yet, a service that restarts: the host must try again, and must drop nothing."""
    service.refuse = lambda _: status

    with pytest.raises(ServiceAway, match=f"does not serve this host: refused with {status}"):
        link.put(LOG, b"x")
    service.refuse = lambda _: None
    link.put(LOG, b"x")


@pytest.mark.parametrize(("status", "failed"), [(408, True), (500, True), (503, True), (401, False), (429, False)])
def test_a_call_that_fails_in_the_service_says_nothing_about_others(
    service: HostService, link: Link, status: int, *, failed: bool
) -> None:
    """The service explains what failed there. A token or a rate concerns all calls of the host."""
    service.fail = lambda _: status

    with pytest.raises(ServiceAway, match=f"failed with {status}") as error:
        link.put(LOG, b"x")
    assert failed == isinstance(error.value, CallFailed)


def test_a_service_of_an_older_version_refuses_nothing(service: HostService, link: Link) -> None:
    """It does not know the path. That says nothing about the run."""
    with pytest.raises(ServiceAway, match="there is nothing here"):
        link.put("/runs/1/1.a/unknown")
    service.runs = set()
    with pytest.raises(Refusal, match="this host has no such run"):
        link.put(LOG)


def test_a_connection_that_the_service_closed_is_made_again(service: HostService, link: Link) -> None:
    """Services close idle connections, and restart."""
    link.put(LOG, b"1")
    assert link._socket is not None
    link._socket.shutdown(socket.SHUT_RDWR)

    link.put("/runs/1/1.a/log?offset=1&replace=false", b"2")

    assert b"12" == service.delivered("1/1.a", "log")


def test_a_stream_that_fails_is_cut_off(service: HostService, link: Link) -> None:
    """The service must not take a part for the whole."""

    class Broken(Exception):
        pass

    def pieces() -> Iterator[bytes]:
        yield b"half"
        raise Broken

    with pytest.raises(Broken):
        link.put_pieces("/requests/r1/content", pieces())
    link.put("/requests/r1/done", b"it broke")
    assert until(lambda: {"r1"} == service.cut)
    assert b"half" == service.contents["r1"]


def test_a_silent_service_is_left(settings: Settings) -> None:
    """A service that accepts the connection and says nothing does not hold up a host for ever."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(ServiceAway, match=f"the service at {url} does not answer: no answer in time"):
            put(replace(settings, service_url=url), silence_s=0.2)


@pytest.mark.full
def test_a_download_has_a_deadline_for_silence_and_one_in_total(service: HostService, settings: Settings) -> None:
    """A service that stops in the middle is left, and so is one that sends a little again and again."""
    held = threading.Event()
    service.codes[1] = bytes(100_000)

    def wait(_: str, at: int) -> None:
        held.wait(0.05 if at < 50_000 else 20)

    service.on_part = wait

    def read(silence_s: float, total_s: float) -> None:
        with (
            closing(Link(settings, silence_s=silence_s)) as link,
            link.download("/jobs/1/code", total_s=total_s) as download,
        ):
            while download.read(1000):
                pass

    try:
        with pytest.raises(ServiceAway, match=r"sends too slowly|no answer in time"):
            read(10.0, 0.3)
        with pytest.raises(ServiceAway, match="no answer in time"):
            read(0.5, 60.0)
    finally:
        held.set()


@pytest.mark.parametrize(
    ("content", "mode", "words"),
    [
        ("secret", 0o640, "others may read the token of this host in .*: chmod 600 "),
        ("", 0o600, "holds no token of a host"),
        ("two words", 0o600, "holds no token of a host"),
        (None, 0o600, "cannot be read: No such file or directory"),
    ],
)
def test_a_token_that_others_may_read_is_not_used(
    service: HostService, settings: Settings, token_file: Path, content: str | None, mode: int, words: str
) -> None:
    """The token lets its holder read the code of jobs. Nothing is sent with a token that others know."""
    token_file.unlink()
    if content is not None:
        token_file.write_text(content)
        token_file.chmod(mode)

    with pytest.raises(BadRequest, match=words):
        put(settings)
    assert [] == service.calls


def test_a_new_token_needs_no_restart(service: HostService, link: Link, token_file: Path) -> None:
    """The token is read for each call."""
    new = service.token = "another" * 2
    with pytest.raises(ServiceAway):
        link.put(LOG)
    token_file.write_text(new)
    link.put(LOG)


def test_a_service_that_is_not_trusted_gets_no_token(tmp_path: Path, settings: Settings) -> None:
    """Only a service with a certificate of the authority in service_ca gets the token of the host."""
    cert, key = certificate(tmp_path)
    with host_service(tmp_path / "tls", (cert, key)) as service:
        there = replace(settings, service_url=service.url)
        with pytest.raises(ServiceAway, match="is not trusted: set service_ca to"):
            put(there)
        assert [] == service.calls
        put(replace(there, service_ca=cert), LOG, b"x")
        assert b"x" == service.delivered("1/1.a", "log")
        elsewhere = replace(there, service_ca=cert, service_url=service.url.replace("127.0.0.1", "localhost"))
        with pytest.raises(ServiceAway, match=r"is not valid: .*localhost"):
            put(elsewhere)
        with pytest.raises(BadRequest, match=r"the file .* of the setting service_ca cannot be used"):
            put(replace(there, service_ca=key.with_name("none")))
