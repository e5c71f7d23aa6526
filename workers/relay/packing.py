"""Runs the program that packs the files of a run. It may run as another account, and its memory ends with it."""

from __future__ import annotations

import math
import os
import select
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from gpuqueue.errors import GpuQueueError
from gpuqueue.files.pack_program import NO_COPY, PackProgram, PackRequest
from gpuqueue.system.delivered_layout import RESULTS
from gpuqueue.text.sanitize import in_one_line
from gpuqueue.text.units import format_duration
from workers.shim.code import DIRECTORY

#: Longest reason of a failure, in bytes.
MOST_REASON_BYTES = 4096
CHUNK_BYTES = 2**20
#: A bounded archive may take longer by the time that its bytes need at this rate, in bytes per second.
LEAST_RATE = 4 * 2**20
#: How often a program that writes nothing is checked for the end of the relay, in seconds.
STOP_POLL_S = 0.5


class PackFailed(GpuQueueError):
    """The files of a run could not be packed. The next try may succeed, unless *is_final*."""

    def __init__(self, what: str, *, is_final: bool = False) -> None:
        super().__init__(what)
        self.is_final = is_final


class DiskFull(PackFailed):
    """The disk has no room for the archive now."""


class Stopped(GpuQueueError):
    """The relay is to stop before the files are packed."""

    def __init__(self) -> None:
        super().__init__("the relay of this host stops: ask again")


class Packing:
    """Starts the program."""

    def __init__(self, command: Sequence[str] | None = None) -> None:
        """Pack by *command*, by default ``gpuqueue-worker pack``."""
        self._command = command

    @contextmanager
    def archive(self, directory: Path, patterns: Sequence[str], stopping: threading.Event) -> Iterator[Archive]:
        """Pack the files of the run in *directory* that match any of *patterns*; without any, those that it made.

        If the copy of the code was deleted, they come from the kept files of the run.

        Raises:
            OSError: The program cannot be started.

        """
        only_kept = not (directory / DIRECTORY).is_dir() and os.path.lexists(directory / RESULTS)
        request = PackRequest(directory=str(directory), patterns=tuple(patterns), source=RESULTS if only_kept else None)
        with closing(PackProgram(request, self._command)) as program:
            yield Archive(program, stopping)


class Archive:
    """An archive while it is packed."""

    def __init__(self, program: PackProgram, stopping: threading.Event) -> None:
        self._program, self._stopping = program, stopping
        self._poll = select.poll()
        self._poll.register(program.output, select.POLLIN)

    def begins(self, timeout_s: float) -> bool:
        """Wait up to *timeout_s* for the first bytes or the end of the program, and return whether there are any."""
        return bool(self._poll.poll(timeout_s * 1000))

    def pieces(self, most_s: float = math.inf) -> Iterator[bytes]:
        """Yield the archive while it is packed, within *most_s* and the time of its bytes so far at ``LEAST_RATE``.

        Raises:
            PackFailed: What was yielded is not the whole archive.
            Stopped: The relay is to stop.

        """
        began_s, size_bytes = time.monotonic(), 0
        while not self._stopping.is_set():
            allowed_s = most_s + size_bytes / LEAST_RATE
            if time.monotonic() - began_s > allowed_s:
                raise PackFailed(f"packing took more than {format_duration(allowed_s)}")
            if self._poll.poll(STOP_POLL_S * 1000):
                part = os.read(self._program.output, CHUNK_BYTES)
                if not part:
                    code, reason = self._program.ending()
                    if code:
                        raise PackFailed(in_one_line(reason), is_final=code == NO_COPY)
                    return
                size_bytes += len(part)
                yield part
        raise Stopped
