"""A user's own machine, with what ``gpuqueue up`` starts there. conftest.py names it in ``pytest_plugins``."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from tempfile import mkdtemp

import pytest
from forked_command import BIN, command


class Home:
    """A user's own machine, with only a state directory set."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.environ = {
            **os.environ,
            "PATH": f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}",
            "GPUQUEUE_STATE_DIR": str(state),
            "GPUQUEUE_KILL_GRACE": "2s",
            "GPUQUEUE_HOST": state.name,
        }

    def __call__(self, *words: str, code: int = 0) -> str:
        """Run ``gpuqueue``; return its output, including errors."""
        done = command(words, self.environ)
        assert code == done.returncode, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr
        return done.stdout + done.stderr

    def output_of(self, *words: str) -> str:
        """Return what ``gpuqueue`` prints, for any exit code."""
        return command(words, self.environ).stdout

    def ours(self) -> list[str]:
        """Return the command lines of all processes with this state directory."""
        mark = f"GPUQUEUE_STATE_DIR={self.state}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                try:
                    if mark in (entry / "environ").read_bytes().split(b"\0"):
                        found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
                except OSError:
                    continue
        return found


@pytest.fixture
def home() -> Iterator[Home]:
    """Return a machine on which nothing runs, before and after the test."""
    state = Path(mkdtemp(prefix="gpuqueue-home-"))
    made = Home(state)
    yield made
    subprocess.run(
        [str(BIN / "gpuqueue"), "down", "--cancel-jobs"],
        env=made.environ,
        capture_output=True,
        timeout=100,
        check=False,
    )
    shutil.rmtree(state, ignore_errors=True)
