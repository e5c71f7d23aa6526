"""Which names a service answers to without TLS: a page elsewhere must not reach it under a name of its own."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from service_fixtures import certificate as made

from gpuqueue.errors import Refused
from gpuqueue.service.server import Listen, OwnHosts

MACHINE = socket.gethostname()


def asked(*hosts: str, listen: str = "127.0.0.1", web_url: str | None = None) -> tuple[int, dict[str, Any]]:
    """Return the status and the problem of the answer to a request with these headers ``Host``."""
    sent: list[Any] = []

    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    scope = {"type": "http", "headers": [(b"host", each.encode("latin-1")) for each in hosts]}
    asyncio.run(OwnHosts(app, Listen(host=listen, port=8080), web_url)(scope, receive, send))
    return sent[0]["status"], json.loads(sent[1]["body"])


@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.1:8080", "127.0.0.1", "localhost:9000", "LOCALHOST.", "[::1]:8080", "app.localhost"),
        *("10.1.2.3:8080", "[fe80::1]:8080", MACHINE, f"{MACHINE}:8080", f"{MACHINE.partition('.')[0]}:1"),
        *("gpu.example.org", "GPU.example.org:443", "gpu.example.org."),
    ],
)
def test_a_request_for_this_service_passes(host: str) -> None:
    """Its address with any port, as through a tunnel, this machine, and the address for browsers."""
    assert 200 == asked(host, web_url="https://gpu.example.org")[0]


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", "evil.example:8080", "127.0.0.1.evil.example", "localhost.evil.example:8080", "evilocalhost"),
        *("gpu.example.org.evil.example", "[::1", "[evil]", "127.0.0.1:8080@evil.example", "\xff", "1.2.3.4.5", ""),
    ],
)
def test_a_request_for_another_host_is_refused(host: str) -> None:
    """A name that leads here by the choice of a page elsewhere gets no answer of the API, and says what to do."""
    status, problem = asked(host, web_url="https://gpu.example.org")
    assert (421, True) == (status, "or by that of the setting web_url" in problem["detail"])
    assert (5, "Refused") == (problem["exit_code"], problem["error"])


def test_each_host_of_a_request_counts_and_a_name_is_not_guessed() -> None:
    """A second header does not help, a service with a name answers to it, and one without web_url to no other name."""
    assert 421 == asked("localhost", "evil.example")[0]
    assert 200 == asked("gpu7.lab:8080", listen="gpu7.lab")[0]
    assert 421 == asked("gpu7.lab:8080", listen="0.0.0.0")[0]  # noqa: S104 - a value in a test
    assert 200 == asked()[0]  # no browser leaves it out


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("0.0.0.0", f"https://{MACHINE.lower()}:8443"),  # noqa: S104 - as the documentation says
        ("::", f"https://{MACHINE.lower()}:8443"),
        ("::1", "https://[::1]:8443"),
        ("", None),
    ],
)
def test_a_service_that_listens_everywhere_knows_its_address(host: str, expected: str | None) -> None:
    """``gpuqueue web`` was refused with the documented ``--listen 0.0.0.0:8443``."""
    assert expected == Listen(host=host, port=8443, certificate=Path("host.pem"), key=Path("host.key")).url


def test_a_key_that_the_account_cannot_read_is_named_with_the_account(tmp_path: Path) -> None:
    """Such a key was reported as an unusable certificate, with "Permission denied"."""
    certificate, key = tmp_path / "host.pem", tmp_path / "host.key"
    certificate.touch()
    key.touch(mode=0o000)
    listen = Listen(host="127.0.0.1", port=8443, certificate=certificate, key=key)
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)  # root reads every file; this account cannot even enter the directory
    try:
        words = r"host\.\w+ cannot be read for TLS: Permission denied: let the account \S+ read it"
        with pytest.raises(Refused, match=words):
            listen.check()
    finally:
        if root:
            os.seteuid(0)


@pytest.mark.parametrize(
    ("certificate", "key", "reason"),
    [
        ("cert.pem", "key.pem", None),
        ("cert.pem", "other.pem", "cannot be used: they do not belong together"),
        ("cert.pem", "junk", "one is no PEM file, or they are exchanged"),
        ("key.pem", "cert.pem", "one is no PEM file, or they are exchanged"),
        ("cert.pem", "locked.pem", r"locked.pem has a passphrase: write one without it \(openssl pkey"),
    ],
)
def test_a_pair_of_tls_is_refused_with_its_reason(
    tmp_path: Path, certificate: str, key: str, reason: str | None
) -> None:
    """OpenSSL asks on the terminal for a passphrase, and names its own source file for the others."""
    (tmp_path / "other").mkdir()
    made(tmp_path)
    made(tmp_path / "other")[1].rename(tmp_path / "other.pem")
    (tmp_path / "junk").write_text("junk")
    words = ["openssl", "pkey", "-in", "key.pem", "-aes256", "-passout", "pass:secret", "-out", "locked.pem"]
    subprocess.run(words, cwd=tmp_path, check=True)
    listen = Listen(host="0.0.0.0", port=8443, certificate=tmp_path / certificate, key=tmp_path / key)  # noqa: S104

    with nullcontext() if reason is None else pytest.raises(Refused, match=reason):
        listen.check()
