"""``gpuqueue web`` prints a link that signs a browser in once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from stat import S_IMODE
from urllib.parse import urlsplit

import pytest
from service_fixtures import ServedSite

from gpuqueue.cli.commands import web


def command(served: ServedSite, url: str | None, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run ``gpuqueue web``."""
    words = [sys.executable, "-m", "gpuqueue", "web"]
    return subprocess.run(
        words,
        env={**served.environ, **({} if url is None else {"GPUQUEUE_URL": url}), **environ},
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip


def test_the_link_leads_to_the_service(served: ServedSite) -> None:
    """Over the socket the service says where its page is, over the network the address is the client's own."""
    tls = f"https://127.0.0.1:{served.port}"
    token = {"GPUQUEUE_TOKEN_FILE": str(served.directory / "mine"), "SSL_CERT_FILE": str(served.directory / "cert.pem")}
    for done in (command(served, f"unix://{served.socket_path}"), command(served, tls, **token)):
        assert (0, "") == (done.returncode, done.stderr.partition("gpuqueue: this link")[0])
        base, _, code = done.stdout.strip().partition("/#sign-in=")
        assert (tls, 43) == (base, len(code))


def test_without_a_service_it_says_what_to_start(served: ServedSite) -> None:
    """The page is served by the service only."""
    done = command(served, None)
    assert 5 == done.returncode
    assert "start one with gpuqueue up --web" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_file_that_leads_to_the_link_is_for_its_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """The browser gets a file as its argument, not the link, and only its owner can read the file."""
    opened: list[str] = []
    monkeypatch.setattr("click.launch", opened.append)
    web._open("https://gpu.example.org/#sign-in=a&b")
    path = Path(urlsplit(opened[0]).path)
    try:
        assert "sign-in" not in opened[0]
        assert (0o600, True) == (S_IMODE(path.stat().st_mode), "#sign-in=a&amp;b" in path.read_text())
    finally:
        path.unlink()
