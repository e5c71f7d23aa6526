"""Jobs with a pseudo-terminal: what the job sees, and what is in the log."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from site_of_one import BIN, Site
from terminal import Terminal

from gpuqueue.model.run import EndingKind
from workers.shim import pseudo_terminal

SEEN = """
import json, os, sys
size = os.get_terminal_size(1)
print(json.dumps({
    "tty": [os.isatty(n) for n in (0, 1, 2)], "size": list(size), "stdin": sys.stdin.read(),
    "controlling": os.ttyname(1) if open("/dev/tty").isatty() else None, "leader": os.getsid(0) == os.getpid(),
}))
"""


def test_a_job_finds_a_terminal_of_the_size_asked_for(shims: Any) -> None:
    """The job gets a controlling terminal of the requested size with empty input.

    Without ``pty`` it has no terminal.
    """
    shim = shims("python3", "-c", SEEN, pty=(133, 41))
    assert EndingKind.EXITED is shim.ended().ending.kind
    found = json.loads(shim.log())

    assert ([False, True, True], [133, 41], "", True) == (
        found["tty"],
        found["size"],
        found["stdin"],
        found["leader"],
    )
    assert found["controlling"].startswith("/dev/pts/")
    plain = shims("python3", "-c", "import os; print([os.isatty(n) for n in (0, 1, 2)])")
    plain.ended()
    assert "[False, False, False]\n" == plain.log()


def test_the_log_is_what_was_written_to_the_last_byte(shims: Any) -> None:
    """The log has exactly the bytes written, without added carriage returns, however fast the job ends."""
    shim = shims("sh", "-c", "seq 300000; printf 'a\\rb\\033[31mc\\n\\tend' >&2; exit 7", pty=(80, 24))
    end = shim.ended()

    assert 7 == end.ending.exit_code
    assert (
        "".join(f"{number}\n" for number in range(1, 300001)) + "a\rb\x1b[31mc\n\tend"
        == shim.directory.log.read_bytes().decode()
    )


def test_what_holds_the_terminal_ends_with_the_job(shims: Any, tmp_path: Path) -> None:
    """A child in its own session that keeps the terminal open delays neither the shim nor the log."""
    mark = tmp_path / "pid"
    left = f"setsid sh -c 'trap \"\" HUP TERM; echo $$ > {mark}; while :; do echo still; sleep 0.05; done' &"
    shim = shims("sh", "-c", f"{left} until [ -s {mark} ]; do sleep 0.02; done; echo over; exit 3", pty=(80, 24))

    assert 3 == shim.ended().ending.exit_code
    assert "over\n" in shim.log()
    with pytest.raises(ProcessLookupError):
        os.kill(int(mark.read_text()), 0)


def test_a_program_that_is_not_there_is_refused_as_ever(shims: Any) -> None:
    """A missing program gives the same error as without a terminal."""
    ending = shims("/no/such/program", pty=(80, 24)).ended().ending

    assert EndingKind.REFUSED is ending.kind
    assert "cannot start /no/such/program" in ending.detail


def test_a_signal_is_reported(shims: Any) -> None:
    """The end by a signal is reported as without a terminal."""
    assert signal.SIGSEGV == shims("sh", "-c", "kill -SEGV $$", pty=(80, 24)).ended().ending.signal


def test_a_full_disk_does_not_stop_the_job() -> None:
    """On a full disk output is dropped, and the job that writes is not blocked."""
    terminal = pseudo_terminal.Terminal(os.open("/dev/full", os.O_WRONLY), 80, 24)
    theirs = os.dup(terminal._theirs)
    terminal.begin()
    for _ in range(64):
        os.write(theirs, bytes(4096))
    os.close(theirs)
    terminal.drain()

    assert terminal._copier is not None
    assert not terminal._copier.is_alive()


@pytest.mark.full
def test_run_hands_on_the_size_of_the_terminal_that_one_sits_at(site: Site) -> None:
    """``run --pty`` gives the job the size of the user's terminal, or 80 x 24 without one."""
    site.start_recorder()
    site.start_worker()
    words = [str(BIN / "gpuqueue"), "run", "--pty", "--mem", "1M", "--", "sh", "-c", "stty size <&1; tty <&1"]
    with Terminal(words, site.environ, columns=97, rows=31) as terminal:
        terminal.shows("31 97")
        terminal.shows("/dev/pts/")
        assert 0 == terminal.ended()
    assert site.cli("run", "--pty", "--mem", "1M", "--", "sh", "-c", "stty size <&1").stdout == "24 80\n"
