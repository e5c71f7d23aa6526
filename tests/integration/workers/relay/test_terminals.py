"""Tests of the terminals that a relay opens: keys reach a real shim's terminal, and its output comes at once."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from bounded import until
from host_service import HostService

from gpuqueue.model.progress import Progress, Reading
from gpuqueue.model.terminal_size import Window
from gpuqueue.settings.settings import Settings
from gpuqueue.system import progress_file
from gpuqueue.system.terminal_socket import TerminalSocket, size_frame, typed_frames
from workers.relay import logs as log_module
from workers.relay import requests
from workers.relay.logs import Followed, LogProgress
from workers.relay.packing import Packing
from workers.relay.requests import Requests
from workers.run import deliveries
from workers.run.deliveries import Delivery

PLACE = "1/1.a"
#: The part of the shim that has the terminal, with a job that runs the script in the first argument.
SHIM = """
import os, sys
from workers.shim.attached_terminal import TypedTerminal
terminal = TypedTerminal(os.open("log", os.O_WRONLY | os.O_APPEND), 80, 24)
pid = os.fork()
if not pid:
    os.setsid()
    terminal.take()
    os.execv("/bin/sh", ["sh", "-c", sys.argv[1]])
terminal.begin()
os.waitpid(pid, 0)
terminal.drain()
"""
TALKS = 'trap "stty size" INT; while :; do read line || continue; echo "got <$line>"; [ "$line" = over ] && exit; done'


@pytest.fixture
def directory(settings: Settings) -> Path:
    """Return the directory of a run that goes on."""
    run = Delivery(job_id=1, token="1.a")
    path = run.run_directory(settings)
    path.mkdir(parents=True)
    (path / "claim").write_text("{}")
    (path / "log").write_bytes(b"")
    deliveries.add(settings, run)
    return path


@pytest.fixture
def served(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[Requests]:
    """Serve requests in the background."""
    monkeypatch.setattr(log_module, "IDLE_S", 0.1)
    stopping, progress = threading.Event(), LogProgress(settings)
    made = Requests(settings, progress, Packing(["/bin/false"]), Followed(settings, progress))
    thread = threading.Thread(target=made.loop, args=(stopping,), daemon=True)
    thread.start()
    yield made
    stopping.set()
    for each in [thread, *(each for each in threading.enumerate() if each.name.startswith("gpuqueue-request"))]:
        each.join(timeout=30)


def is_open(directory: Path) -> bool:
    """Return whether a process listens on the socket of the terminal. Its file is there a moment before."""
    try:
        TerminalSocket(directory / "log").close()
    except (FileNotFoundError, ConnectionRefusedError):
        return False
    return True


@contextmanager
def terminal_in(directory: Path, script: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run *script* on a terminal whose socket is in the run directory."""
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[4])}
    process = subprocess.Popen([sys.executable, "-c", SHIM, script], cwd=directory, env=environ)
    try:
        until(lambda: is_open(directory), what="the terminal")
        yield process
    finally:
        process.kill()
        process.wait(timeout=30)


def until_delivered(service: HostService, text: bytes) -> None:
    """Wait until *text* is in what was delivered of the log."""
    until(lambda: text in (service.delivered(PLACE, "log") or b""), what=f"{text!r} in the log")


@pytest.mark.usefixtures("served")
def test_keys_reach_the_job_and_its_output_the_service(service: HostService, directory: Path) -> None:
    """Each key once, Ctrl-C and a new size too. The end of the run ends the request, after the last output."""
    with terminal_in(directory, TALKS) as shim:
        service.keys["t1"] = typed_frames(b"one\r")
        service.ask("t1", "terminal", PLACE)
        until_delivered(service, b"got <one>")
        service.keys["t1"] += size_frame(Window(columns=90, rows=20))

        def has_new_size() -> bool:
            service.keys["t1"] += typed_frames(b"\x03")  # again and again: the shell may not read yet
            return b"20 90" in (service.delivered(PLACE, "log") or b"")

        until(has_new_size, what="the new size in the job")
        until(lambda: service.passed_on["t1"] == len(service.keys["t1"]), what="the word that all was passed on")
        assert "t1" not in service.done
        service.keys["t1"] += typed_frames(b"over\r")
        shim.wait(timeout=30)
        until(lambda: "t1" in service.done, what="the end")

    assert "" == service.done["t1"]
    assert (directory / "log").read_bytes() == service.delivered(PLACE, "log")
    assert 1 == (service.delivered(PLACE, "log") or b"").count(b"got <one>")


def test_a_terminal_is_left_when_nobody_types_any_more(
    service: HostService, directory: Path, served: Requests, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service ends the request, and the job runs on."""
    monkeypatch.setattr(requests, "WAIT_S", 0.05)
    with terminal_in(directory, TALKS) as shim:
        service.keys["t1"] = typed_frames(b"one\r")
        service.ask("t1", "terminal", PLACE)
        until_delivered(service, b"got <one>")
        service.over.add("t1")
        until(lambda: not served._served, what="the end of the request")
        assert None is shim.poll()
        assert {} == service.done


@pytest.mark.usefixtures("served")
def test_a_run_without_a_terminal_is_reported_at_once(service: HostService, directory: Path) -> None:
    """There is no socket, or nobody listens on it any more."""
    service.ask("t1", "terminal", PLACE)
    until(lambda: "t1" in service.done, what="the answer")
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(directory / "tty"))
    service.ask("t2", "terminal", PLACE)
    until(lambda: "t2" in service.done, what="the answer")

    assert {"t1": "", "t2": ""} == service.done


@pytest.mark.usefixtures("served")
def test_a_job_that_does_not_read_its_input_is_left(
    service: HostService, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waits is bounded by the socket. The user learns why."""
    monkeypatch.setattr(requests, "UNREAD_S", 0.2)
    with terminal_in(directory, "stty raw; exec sleep 600"):
        service.keys["t1"] = typed_frames(b"x" * 900_000)
        service.ask("t1", "terminal", PLACE)
        until(lambda: "t1" in service.done, what="the answer")

    assert "the job has not read what was typed for 0.2 s" == service.done["t1"]


@pytest.mark.usefixtures("served")
def test_open_terminals_hold_up_no_other_request(
    service: HostService, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have a limit of their own."""
    monkeypatch.setattr(requests, "MOST", 1)
    monkeypatch.setattr(requests, "MOST_TERMINALS", 2)
    with terminal_in(directory, TALKS):
        for number in range(2):
            service.ask(f"t{number}", "terminal", PLACE)
        until(lambda: {"t0", "t1"} <= service.passed_on.keys(), what="both terminals")
        service.ask("t2", "terminal", PLACE)
        service.ask("r1", "log", PLACE)
        until(lambda: {"t2", "r1"} <= service.done.keys(), what="the answers")

    assert "gpu2 already has 2 terminals open: try again later" == service.done["t2"]
    assert "" == service.done["r1"]


@pytest.mark.usefixtures("served")
def test_the_progress_of_all_runs_is_sent(service: HostService, settings: Settings, directory: Path) -> None:
    """Of those that go on. Others, and runs without progress or with a file that is damaged, are left out."""
    shown = Reading(Progress(share=0.3, counts="epoch 3/10"))
    (directory / "progress").write_text(progress_file.written(shown))
    for name, files in {
        "2.1.b": {
            "claim": "{}",
            "progress": progress_file.written(Reading(replace(shown.progress, left_s=20.0), is_sure=False)),
        },
        "3.1.c": {"claim": "{}", "log": "hello\n"},
        "4.1.d": {"progress": progress_file.written(shown)},
        "5.1.e": {"claim": "{}", "progress": '{"share": 2, "counts": "", "at_s": 0}'},
        "6.1.f": {"claim": "{}", "progress": "[" * 5000},
    }.items():
        run = deliveries.run_named(name)
        assert run is not None
        path = run.run_directory(settings)
        path.mkdir(parents=True)
        deliveries.add(settings, run)
        for each, content in files.items():
            (path / each).write_text(content)
    service.polls.put([{"id": "p1", "kind": "progress", "job": None, "token": None, "patterns": []}])
    until(lambda: "p1" in service.progress, what="the answer")

    first, second = sorted(service.progress["p1"], key=lambda each: each["job"])
    assert {"job": 1, "token": "1.a", "share": 0.3, "counts": "epoch 3/10", "is_sure": True} == first
    assert (2, "epoch 3/10", False) == (second["job"], second["counts"], second["is_sure"])
    assert 10 <= second["left_s"] <= 20
    assert {} == service.done
