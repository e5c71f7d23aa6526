"""A wall clock that a test sets for real processes: see moved_clock.c."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("moved_clock.c")
LONG = ctypes.sizeof(ctypes.c_long)


class MovedClock:
    """The clock of all processes that are started with :attr:`environ`."""

    def __init__(self, directory: Path) -> None:
        compiler = shutil.which("gcc") or shutil.which("cc")
        if compiler is None:
            pytest.skip("a clock that can be set for one process needs a C compiler")
        library = directory / "moved_clock.so"
        flags = ["-shared", "-fPIC", "-O2", "-Wall", "-Werror", "-o", str(library), str(SOURCE), "-ldl", "-pthread"]
        subprocess.run([compiler, *flags], check=True)
        self._file = directory / "moved_clock"
        self.set(0)
        self.environ = {"LD_PRELOAD": str(library), "MOVED_CLOCK": str(self._file)}

    def set(self, wrong_by_s: int) -> None:
        """Set the clock of all these processes: from now on it is wrong by *wrong_by_s* seconds."""
        with self._file.open("r+b" if self._file.exists() else "wb") as file:  # in place: the processes have it mapped
            file.write(wrong_by_s.to_bytes(LONG, "little", signed=True))
