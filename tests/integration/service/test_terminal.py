"""``run --pty`` and ``attach`` through the service: real terminals, a real service, a real job."""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from bounded import until
from site_of_one import BIN, Site
from terminal import Terminal

from gpuqueue.console import LEFT
from gpuqueue.model.job import JobState

GPUQUEUE = str(BIN / "gpuqueue")
TALKS = 'echo ready; while read line; do echo "got <$line>"; [ "$line" = over ] && exit 4; done'


@pytest.fixture
def serve(site: Site, tmp_path: Path) -> Callable[[], subprocess.Popen[bytes]]:
    """Return a function that starts the service. All later commands of the site use it."""
    path = tmp_path / "api.sock"
    site.start_recorder()
    site.start_worker()

    def start() -> subprocess.Popen[bytes]:
        process = site.spawn_command([GPUQUEUE, "serve", "--socket", str(path)])
        until(lambda: answers(path), what="the service")
        site.environ["GPUQUEUE_URL"] = f"unix://{path}"
        return process

    return start


def answers(path: Path) -> bool:
    """Return whether something listens at *path*."""
    with socket.socket(socket.AF_UNIX) as line:
        return line.connect_ex(str(path)) == 0


def run(script: str) -> list[str]:
    """Return the command that runs *script* with a terminal."""
    return [GPUQUEUE, "run", "--pty", "--mem", "1M", "--", "sh", "-c", script]


def test_keys_go_through_the_service_and_the_exit_code_comes_back(
    site: Site, serve: Callable[[], subprocess.Popen[bytes]]
) -> None:
    """Keys reach the job, Ctrl-C included, and a new size too; the exit code is that of the job."""
    serve()
    script = f"trap 'stty size' INT; {TALKS.replace('while read line; do', 'while :; do read line || continue;')}"
    with Terminal(run(script), site.environ, columns=100) as terminal:
        terminal.shows("this is the terminal")
        terminal.shows("ready")
        terminal.press("hello\r")
        terminal.shows("got <hello>")
        terminal.resize(columns=90, rows=20)

        def has_new_size() -> bool:
            terminal.press("\x03")
            return "20 90" in terminal.picture()

        until(has_new_size, what="the new size in the job")
        terminal.press("\rover\r")
        assert 4 == terminal.ended()
        terminal.shows("failed (exit 4)")


@pytest.mark.full
def test_a_user_detaches_and_attaches_again(site: Site, serve: Callable[[], subprocess.Popen[bytes]]) -> None:
    """``~.`` leaves the job running, and ``attach`` shows its output again and takes keys."""
    serve()
    with Terminal(run(TALKS), site.environ, columns=100) as terminal:
        terminal.shows("ready")
        terminal.press("one\r")
        terminal.shows("got <one>")
        terminal.press("~.")
        assert LEFT == terminal.ended()
    with Terminal([GPUQUEUE, "attach", "1"], site.environ, columns=100) as terminal:
        terminal.shows("this is the terminal")
        terminal.shows("got <one>")
        terminal.press("over\r")
        assert 4 == terminal.ended()


@pytest.mark.full
def test_a_terminal_outlives_the_service(site: Site, serve: Callable[[], subprocess.Popen[bytes]]) -> None:
    """While the service is away, keys are lost, and the user reads so. Afterwards the terminal works again."""
    service = serve()
    with Terminal(run(TALKS), site.environ, columns=100) as terminal:
        terminal.shows("ready")
        service.kill()
        service.wait(timeout=30)
        terminal.press("x")
        terminal.shows("keys are lost until it does")
        serve()

        def is_back() -> bool:
            terminal.press("again\r")
            return "again>" in terminal.picture()

        until(is_back, what="the terminal")
        terminal.press("over\r")
        assert 4 == terminal.ended()


def test_the_start_of_a_terminal_is_in_the_audit_log(site: Site, serve: Callable[[], subprocess.Popen[bytes]]) -> None:
    """The audit log says who attached a terminal, once for each time, and holds no keys."""
    serve()
    with Terminal(run(TALKS), site.environ, columns=100) as terminal:
        terminal.shows("ready")
        terminal.press("over\r")
        assert 4 == terminal.ended()
    site.until_state(1, JobState.FAILED)

    def entries() -> list[dict[str, object]]:
        found: list[dict[str, object]] = json.loads(site.cli("audit", "--json").stdout)
        return [each for each in found if each["action"] == "attach"]

    def are_done() -> bool:  # the outcome comes after the entry
        return {"done"} == {str(each["outcome"]) for each in entries()}

    until(are_done, what="the outcome in the history")
    assert "over" not in site.cli("audit", "--json").stdout
