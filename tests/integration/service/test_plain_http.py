"""Nobody makes a client send its token without TLS, or to another host: not by a URL, a redirect, or a certificate."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from service_fixtures import ServedSite, certificate

from gpuqueue.client import Client
from gpuqueue.client.login import account_of
from gpuqueue.errors import BadRequest, Refused, ServiceUnreachable
from gpuqueue.model.access_token import new_token
from gpuqueue.settings import credentials
from gpuqueue.settings.settings import Settings

Listener = tuple[int, bytearray]


@pytest.fixture
def listen() -> Iterator[Callable[[bytes], Listener]]:
    """Return a function that listens at a port and gives each client the same answer.

    It returns the port, and the bytes that clients have sent.
    """
    opened: list[socket.socket] = []

    def begin(answer: bytes) -> Listener:
        listening, got = socket.create_server(("127.0.0.1", 0)), bytearray()
        opened.append(listening)

        def serve() -> None:
            with suppress(OSError):
                while True:
                    connected, _ = listening.accept()
                    with connected:
                        connected.settimeout(5)
                        with suppress(OSError):
                            got.extend(connected.recv(65536))
                            connected.sendall(answer)

        threading.Thread(target=serve, daemon=True).start()
        return listening.getsockname()[1], got

    yield begin
    for each in opened:
        each.shutdown(socket.SHUT_RDWR)
        each.close()


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    """Return a file with a token."""
    path = tmp_path / "token"
    path.write_text("gq_abcdefgh_secretsecret")
    path.chmod(0o600)
    return path


def settings(url: str, token_file: Path) -> Settings:
    """Return the settings of a client that has a token."""
    return Settings.load({"GPUQUEUE_CONFIG": "/dev/null", "GPUQUEUE_URL": url, "GPUQUEUE_TOKEN_FILE": str(token_file)})


@pytest.mark.parametrize("host", ["gpu.example.org", "10.0.0.1", "127.0.0.2.example.org", "[::2]"])
def test_a_client_refuses_plain_http(token_file: Path, host: str) -> None:
    """Before it connects, a client says that the token would be shown to the network."""
    with pytest.raises(BadRequest, match="plain HTTP shows the access token to the network: write https://"):
        settings(f"http://{host}:8080", token_file)


def test_a_redirect_is_not_followed(listen: Callable[[bytes], Listener], token_file: Path) -> None:
    """A server that points elsewhere gets no second request, and the other place gets none at all."""
    other, got = listen(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
    for status in (b"301 Moved", b"302 Found", b"307 Temporary", b"308 Permanent"):
        there = b"http://127.0.0.1:%d/api/v1/devices" % other
        port, asked = listen(b"HTTP/1.1 %s\r\nLocation: %s\r\nContent-Length: 0\r\n\r\n" % (status, there))
        with Client(settings(f"http://127.0.0.1:{port}", token_file)) as client, pytest.raises(ServiceUnreachable):
            client.devices.list()
        assert 1 == asked.count(b"GET ")
    assert b"" == bytes(got)


def test_a_service_with_another_certificate_gets_no_token(
    served: ServedSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client does not trust a certificate that no known authority has signed, and says how to name one."""
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate(tmp_path)[0]))
    with served.client("https") as client, pytest.raises(ServiceUnreachable) as refused:
        client.devices.list()

    assert str(refused.value) == (
        f"the certificate of the service at {client.settings.client_url} is not trusted: "
        "set SSL_CERT_FILE to the certificate of the authority that signed it"
    )
    with pytest.raises(Refused, match=r"is not trusted: set SSL_CERT_FILE.*Nothing was stored"):
        account_of(f"https://127.0.0.1:{served.port}", str(new_token()))


def test_a_certificate_for_another_name_is_no_question_of_trust(
    served: ServedSite, monkeypatch: pytest.MonkeyPatch, token_file: Path
) -> None:
    """A trusted certificate that does not name the host gets a message of its own."""
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [_loopback(served.port)])
    url = f"https://other.example:{served.port}"
    with Client(settings(url, token_file)) as client, pytest.raises(ServiceUnreachable) as refused:
        client.devices.list()

    assert str(refused.value).startswith(f"the certificate of the service at {url} is not valid: Hostname mismatch")


def _loopback(port: int) -> tuple[int, int, int, str, tuple[str, int]]:
    return socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port)


def test_only_an_absent_service_is_asked_for(listen: Callable[[bytes], Listener], token_file: Path) -> None:
    """A refused connection asks whether the service runs; an answer that is no HTTP does not."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        with Client(settings(url, token_file)) as client, pytest.raises(ServiceUnreachable, match="running there"):
            client.devices.list()
    port, got = listen(b"SSH-2.0-OpenSSH\r\n")
    with Client(settings(f"http://127.0.0.1:{port}", token_file)) as client, pytest.raises(ServiceUnreachable) as found:
        client.devices.list()
    assert "running there" not in str(found.value)
    assert 1 == got.count(b"GET "), "something else listens there: the client does not ask again for half a minute"


def test_a_client_of_https_speaks_no_plain_http(listen: Callable[[bytes], Listener], token_file: Path) -> None:
    """A server without TLS at an https address learns nothing of the token."""
    port, got = listen(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
    with Client(settings(f"https://127.0.0.1:{port}", token_file)) as client, pytest.raises(ServiceUnreachable):
        client.devices.list()

    assert got
    assert b"secret" not in got
    assert b"GET" not in got


def test_the_service_answers_no_plain_http_at_its_tls_port(served: ServedSite) -> None:
    """A request without TLS gets no answer of the API, so that a wrong client is noticed at once."""
    with socket.create_connection(("127.0.0.1", served.port), timeout=20) as plain:
        plain.sendall(b"GET /api/v1/me HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer x\r\n\r\n")
        found = b""
        with suppress(ConnectionError):
            while piece := plain.recv(65536):
                found += piece

    assert b"HTTP" not in found


def test_a_token_goes_to_its_own_service_only(
    served: ServedSite, listen: Callable[[bytes], Listener], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stored login for one address sends nothing to another port of the same host."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    credentials.store(f"https://127.0.0.1:{served.port}", served.token("bob", 54321))
    with Client(replace(served.settings, url=f"https://127.0.0.1:{served.port}")) as client:
        assert "bob" == client.access.whoami().account
    port, got = listen(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n")
    stored = replace(served.settings, url=f"http://127.0.0.1:{port}", token_file=None)
    with Client(stored) as client, pytest.raises(ServiceUnreachable):
        client.devices.list()

    assert b"GET " in got
    assert b"Authorization" not in got
