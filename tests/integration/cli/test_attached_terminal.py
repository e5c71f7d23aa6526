"""``run --pty`` and ``attach`` with a user at an attached terminal, with real terminals on both sides."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import termios
import threading
from pathlib import Path

import pytest
from bounded import until
from hypothesis import given
from hypothesis import strategies as st
from site_of_one import BIN, Site
from terminal import Terminal

from gpuqueue.cli.follow.terminal import EscapeDetector
from gpuqueue.console import LEFT
from gpuqueue.model.job import JobState

GPUQUEUE = str(BIN / "gpuqueue")
TALKS = 'echo ready; while read line; do echo "got <$line>"; [ "$line" = over ] && exit 4; done'


@pytest.fixture
def working(site: Site) -> Site:
    """Return a site with a recorder and a worker."""
    site.start_recorder()
    site.start_worker()
    return site


def run(script: str) -> list[str]:
    """Return the command that runs *script* with a terminal."""
    return [GPUQUEUE, "run", "--pty", "--mem", "1M", "--", "sh", "-c", script]


def attach_at(terminal: Terminal) -> None:
    """Wait until keys go to the job."""
    terminal.shows("this is the terminal")
    until(lambda: not is_cooked(terminal), what="our terminal to pass keys on")


def odd_guest(path: Path) -> socket.socket:
    """Return a connection to the socket at *path*."""
    guest = socket.socket(socket.AF_UNIX)
    guest.settimeout(30)
    guest.connect(str(path))
    return guest


def is_cooked(terminal: Terminal) -> bool:
    """Return whether the terminal echoes, edits lines and handles signal keys itself, as without an attached job."""
    wanted = termios.ECHO | termios.ICANON | termios.ISIG
    return termios.tcgetattr(terminal._ours)[3] & wanted == wanted


@pytest.mark.full
def test_keys_go_to_the_job_and_its_exit_code_comes_back(working: Site) -> None:
    """Keys go to the job, whose terminal echoes them. Afterwards the user's terminal has its old settings."""
    with Terminal(run(TALKS), working.environ, columns=100) as terminal:
        attach_at(terminal)
        terminal.shows("ready")
        terminal.press("hello\r")
        terminal.shows("got <hello>")
        assert "hello" in terminal.lines()
        terminal.press("over\r")
        assert 4 == terminal.ended()
        assert is_cooked(terminal)
        terminal.shows("failed (exit 4)")
    assert "got <hello>" in working.cli("logs", "1").stdout


@pytest.mark.full
def test_the_hint_about_keys_is_true_when_it_is_printed(working: Site) -> None:
    """A Ctrl-C goes to the job as soon as the message about the keys is there. It used to open the question then."""
    script = "trap 'echo caught' INT; while :; do read line && break; done"
    with Terminal(run(script), working.environ, columns=100) as terminal:
        terminal.shows("this is the terminal")
        assert not is_cooked(terminal)
        terminal.press("\x03")
        terminal.shows("caught")
        assert "[c]ancel it" not in terminal.picture()
        terminal.press("x\r")
        assert 0 == terminal.ended()


@pytest.mark.full
def test_a_ctrl_c_right_before_is_ours_and_is_asked_about_at_once(working: Site) -> None:
    """A Ctrl-C just before the keys go to the job opens the question at once, not after the job's end."""
    early = (
        "import os, signal, sys, tty; from gpuqueue.cli import main; raw = tty.setraw\n"
        "def slow(*words):\n"
        "    tty.setraw = raw; os.kill(os.getpid(), signal.SIGINT); raw(*words)\n"
        "tty.setraw = slow; main.main()"
    )
    with Terminal([sys.executable, "-c", early, *run(TALKS)[1:]], working.environ, columns=100) as terminal:
        terminal.shows("[c]ancel it")
        assert is_cooked(terminal)
        assert "this is the terminal" not in terminal.picture()
        terminal.press("g\r")
        attach_at(terminal)
        terminal.press("over\r")
        assert 4 == terminal.ended()
        assert 1 == terminal.picture().count("ready")


@pytest.mark.full
def test_the_hint_about_keys_comes_before_the_first_prompt(working: Site) -> None:
    """The message about the keys comes before the job's first prompt, even if the job was last seen as starting.

    It used to come after the prompt, and the user typed behind it.
    """
    late = (
        "from dataclasses import replace; from gpuqueue.cli import main; from gpuqueue.cli.follow import attach\n"
        "from gpuqueue.model.job import JobState\n"
        "seen = attach.Follower._seen\n"
        "def late(self, job):\n"
        "    is_new = job.state is JobState.RUNNING and not self._is_reported\n"
        "    seen(self, replace(job, state=JobState.STARTING) if is_new else job)\n"
        "attach.Follower._seen = late; main.main()"
    )
    with Terminal([sys.executable, "-c", late, *run(TALKS)[1:]], working.environ, columns=100) as terminal:
        terminal.shows("ready")
        assert 0 <= terminal.written.find(b"this is the terminal") < terminal.written.find(b"ready")
        terminal.press("over\r")
        assert 4 == terminal.ended()


@pytest.mark.full
def test_the_size_follows_ours(working: Site) -> None:
    """The job's terminal follows the size of the user's, and the job gets SIGWINCH."""
    script = "trap 'stty size' WINCH; stty size; echo ready; while :; do sleep 0.05; done"
    with Terminal(run(script), working.environ, columns=97, rows=31) as terminal:
        attach_at(terminal)
        terminal.shows("31 97")
        terminal.shows("ready")
        terminal.resize(columns=88, rows=20)
        terminal.shows("20 88")
        working.cli("cancel", "1")
        assert 130 == terminal.ended()


@pytest.mark.full
def test_one_leaves_comes_back_and_types_on(working: Site) -> None:
    """A user can leave a job, which runs on, and attach again. ``attach`` shows the earlier output."""
    with Terminal(run(TALKS), working.environ, columns=100) as terminal:
        terminal.shows("ready")
        terminal.press("first\r")
        terminal.shows("got <first>")
        terminal.press("~.")
        assert LEFT == terminal.ended()
        terminal.shows("it runs on: gpuqueue attach 1")
        assert is_cooked(terminal)
    assert JobState.RUNNING is working.until_state(1, JobState.RUNNING).state

    with Terminal([GPUQUEUE, "attach", "1"], working.environ, columns=100) as terminal:
        terminal.shows("got <first>")
        attach_at(terminal)
        terminal.press("over\r")
        assert 4 == terminal.ended()


@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_our_terminal_as_it_was(working: Site, number: signal.Signals) -> None:
    """A signal restores the terminal's settings, so that the shell echoes again."""
    with Terminal(run(TALKS), working.environ, columns=100) as terminal:
        attach_at(terminal)
        terminal.shows("ready")
        os.kill(terminal.process.pid, number)
        assert 128 + number == terminal.ended()
        assert is_cooked(terminal)
        terminal.shows("it runs on: gpuqueue attach 1")
    working.cli("cancel", "1")


@pytest.mark.full
def test_what_is_written_fast_is_all_there(working: Site) -> None:
    """Fast output is complete on a slow terminal and in the log."""
    with Terminal(run("read go; seq 200000; echo the end"), working.environ, columns=100) as terminal:
        attach_at(terminal)
        terminal.press("\r")
        terminal.shows("the end")
        assert 0 == terminal.ended()
        assert b"".join(b"%d\r\n" % number for number in range(1, 200001)) in terminal.written


@pytest.mark.full
def test_a_paste_that_is_larger_than_any_buffer_arrives(working: Site) -> None:
    """A paste larger than all buffers arrives complete, although the job reads it late."""
    script = "stty raw -echo; echo ready; sleep 1; head -c 300000 | cksum"
    with Terminal(run(script), working.environ, columns=100) as terminal:
        attach_at(terminal)
        terminal.shows("ready")
        paste = "".join(f"{number:07}\r" for number in range(37500))
        typing = threading.Thread(target=terminal.press, args=(paste,))
        typing.start()
        terminal.shows(f"{cksum(paste)} 300000")
        typing.join()
        assert 0 == terminal.ended()


def cksum(text: str) -> int:
    """Return the checksum of *text* by the ``cksum`` program, which a job can run without Python."""
    printed = subprocess.run(["cksum"], input=text.encode(), capture_output=True, check=True).stdout  # noqa: S607
    return int(printed.split()[0])


@pytest.mark.full
def test_without_a_terminal_nobody_types(working: Site) -> None:
    """Without a terminal the job's standard input is at its end, so a job in a script does not wait for input."""
    shown = working.cli("run", "--pty", "--mem", "1M", "--", "sh", "-c", "cat; tty <&1; echo end", stdin="typed\n")

    assert "typed" not in shown.stdout
    assert shown.stdout.endswith("end\n")


@pytest.mark.full
def test_the_socket_is_for_its_account_alone_and_goes_with_the_job(working: Site, tmp_path: Path) -> None:
    """Only its account can use the socket, which ends with the job. A client with invalid data is disconnected."""
    with Terminal(run(TALKS), working.environ, columns=100) as terminal:
        attach_at(terminal)
        (socket_path,) = working.settings.runs_dir.glob("1/*/tty")
        assert 0 == socket_path.stat().st_mode & 0o077
        link = tmp_path / "s"
        link.symlink_to(socket_path)
        with odd_guest(link) as guest:
            guest.sendall(b"X\x00\x01y")
            assert b"" == guest.recv(1)
        terminal.press("over\r")
        assert 4 == terminal.ended()
        until(lambda: not socket_path.exists(), what="the end of the socket")


@given(st.lists(st.sampled_from([b"a", b"~", b"\r", b"\n", b".", b"~.", b"b~"]), max_size=12))
def test_leaving_does_not_depend_on_how_keys_arrive(parts: list[bytes]) -> None:
    """The escape sequence works key by key and in one paste. All other keys reach the job."""
    whole = EscapeDetector().take(b"".join(parts))
    one, out, left = EscapeDetector(), b"", False
    for part in parts:
        some, left = one.take(part)
        out += some
        if left:
            break

    assert whole == (out, left)


def test_a_tilde_is_one_where_it_is_none_of_ours() -> None:
    """A tilde that starts no escape sequence reaches the job, as with ssh."""
    assert (b"ls ~.\r", False) == EscapeDetector().take(b"ls ~.\r")
    assert (b"ls\r", True) == EscapeDetector().take(b"ls\r~.more")
    assert (b"~.\r", False) == EscapeDetector().take(b"~~.\r")
    assert (b"~user\r", False) == EscapeDetector().take(b"~user\r")
