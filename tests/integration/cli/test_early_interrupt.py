"""A Ctrl-C before the command line is imported ends without a traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

#: Replaces click, the first large import, and sends the Ctrl-C there.
INTERRUPTS = "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nprint('and it went on')\n"
ROOT = Path(__file__).parents[3]


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "click.py").write_text(INTERRUPTS)
    return {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}


def test_while_importing_it_ends_quietly_with_130(environ: dict[str, str]) -> None:
    words = [sys.executable, "-m", "gpuqueue", "history"]
    done = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=60, check=False)

    assert (130, "", "") == (done.returncode, done.stdout, done.stderr)


def test_where_it_is_ignored_it_stays_so(environ: dict[str, str]) -> None:
    """An ignored SIGINT stays ignored.

    Else nohup and background jobs of scripts would protect a command only after its import.
    """
    code = "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); os.execv(sys.executable, sys.argv)"
    words = [sys.executable, "-c", code, "-m", "gpuqueue", "history"]
    done = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=60, check=False)

    assert done.stdout.startswith("and it went on")


def test_the_command_begins_there_and_python_m_is_the_same() -> None:
    assert 'gpuqueue = "gpuqueue.__main__:main"' in (ROOT / "pyproject.toml").read_text().splitlines()
    words = [sys.executable, "-m", "gpuqueue", "history", "--help"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.startswith("Usage: gpuqueue history ")


def test_a_library_leaves_the_signals_as_they_are() -> None:
    code = (
        "import signal; before = signal.getsignal(signal.SIGINT); import gpuqueue, gpuqueue.__main__;"
        "from gpuqueue import Client; import gpuqueue.cli.main; print(before is signal.getsignal(signal.SIGINT))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "True\n"
