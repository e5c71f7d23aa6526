"""The ``serve`` command: where it listens, what it refuses, and how it ends."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from bounded import until
from forked_command import BIN
from service_fixtures import ServedSite

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(served: ServedSite) -> Iterator[Start]:
    """Return a function that starts ``gpuqueue serve`` with some words."""
    started: list[subprocess.Popen[str]] = []

    def begin(*words: str) -> subprocess.Popen[str]:
        command = [str(BIN / "gpuqueue"), "serve", *words]
        made = subprocess.Popen(
            command, env=served.environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        started.append(made)
        return made

    yield begin
    for each in started:
        each.kill()
        each.communicate(timeout=30)


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as tried:
        return tried.connect_ex(str(path)) == 0


@pytest.mark.full
def test_it_replaces_a_dead_socket_and_not_a_live_one(start: Start, tmp_path: Path) -> None:
    """A killed service leaves its socket: the next one takes the path, and a third one is refused."""
    path = tmp_path / "api.sock"
    first = start("--socket", str(path))
    until(lambda: path.exists() and _answers(path), what="the first service")
    assert 0o666 == stat.S_IMODE(path.stat().st_mode)
    first.kill()
    first.wait(timeout=30)
    assert path.exists()

    second = start("--socket", str(path))
    until(lambda: _answers(path), what="the second service")
    third = start("--socket", str(path))
    said, _ = third.communicate(timeout=60)

    assert (5, True) == (third.returncode, "another service listens at" in said)
    second.send_signal(signal.SIGTERM)
    said, _ = second.communicate(timeout=60)
    assert (0, f"gpuqueue: the service listens at unix://{path}\n") == (second.returncode, said)


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("--no-socket",), 2, "must listen somewhere"),
        (("--no-socket", "--listen", "0.0.0.0:1"), 2, "plain HTTP shows access tokens"),
        *(
            pytest.param(*each, marks=pytest.mark.full)
            for each in (
                (("--listen", "nowhere"), 2, "write HOST:PORT"),
                (("--no-socket", "--listen", "0.0.0.0:1", "--tls-cert", "x"), 2, "belong together"),
                (("--no-socket", "--listen", "0.0.0.0:1", "--tls-cert", "x", "--tls-key", "x"), 5, "x cannot be read"),
                (("--socket", "/proc/no/api.sock"), 1, "cannot listen at"),
                (("--socket", "/dev/null"), 5, "is no socket"),
            )
        ),
    ],
)
def test_it_says_why_it_cannot_serve(start: Start, words: tuple[str, ...], code: int, says: str) -> None:
    """A mistake ends the command with one line and its exit code."""
    process = start(*words)
    said, _ = process.communicate(timeout=60)

    assert (code, 1) == (process.returncode, said.count("\n")), said
    assert says in said
    assert not os.path.lexists("/dev/null.lock") or Path("/dev/null.lock").unlink() is None
