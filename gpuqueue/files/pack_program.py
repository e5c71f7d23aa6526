"""Runs the program ``gpuqueue-worker pack``, which packs the files of a run. It may run as another account.

The request is on its standard input. It is not in the arguments, because every user of a host can read those of all
processes: the directory of a run has its token, and patterns have the names of files.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from tempfile import TemporaryFile
from typing import IO

from gpuqueue.errors import Unreadable
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.system.process import installed
from gpuqueue.text.json_fields import Fields

#: Exit code of the program if there is no copy of the code.
NO_COPY = 3
#: Longest request, and most of the program's error output that is read, in bytes.
MOST_BYTES, MOST_ERROR_BYTES = 2**20, 4096
_WHAT = "the request to pack files"


@dataclass(frozen=True, kw_only=True, slots=True)
class PackRequest:
    """Which files of the run in ``directory`` are packed: those that match any of ``patterns``.

    Without patterns these are the files that the job made or changed. With ``source``, they come from the archive of
    this name in the directory instead of the copy of the code.
    """

    directory: str
    patterns: tuple[str, ...] = ()
    source: str | None = None

    def text(self) -> bytes:
        """Return the request as a text."""
        plain = {"directory": self.directory, "patterns": list(self.patterns), "source": self.source}
        return json.dumps(plain).encode()

    @classmethod
    def read(cls, text: bytes) -> PackRequest:
        """Return the request with this text.

        Raises:
            Unreadable: it is none.

        """
        try:
            plain = json.loads(text)
        except (ValueError, RecursionError):
            raise Unreadable(f"{_WHAT} cannot be read: it is no JSON") from None
        fields = Fields(plain, _WHAT)
        return cls(
            directory=fields.text("directory"), patterns=fields.texts("patterns"), source=fields.text_or_none("source")
        )

    @contextmanager
    def as_input(self) -> Iterator[int]:
        """Return a context with a descriptor to read the request from: the standard input of the program."""
        fd = os.memfd_create("gpuqueue-pack-request")
        try:
            with open(fd, "wb", closefd=False) as file:
                file.write(self.text())
            os.lseek(fd, 0, os.SEEK_SET)
            yield fd
        finally:
            os.close(fd)


def pack_command() -> list[str]:
    """Return the program and its argument.

    Raises:
        GpuQueueError: it is not installed.

    """
    return [installed("gpuqueue-worker"), "pack"]


class PackProgram:
    """The program while it packs what *request* names. The caller closes it."""

    def __init__(self, request: PackRequest, command: Sequence[str] | None = None) -> None:
        """Start it, or another *command* in its place.

        Raises:
            GpuQueueError: it is not installed.
            OSError: it cannot be started.

        """
        self._errors: IO[bytes] = TemporaryFile()  # noqa: SIM115 - closed by close
        try:
            with request.as_input() as asked:
                self._process = subprocess.Popen(
                    command or pack_command(),
                    stdin=asked,
                    stdout=subprocess.PIPE,
                    stderr=self._errors,
                    bufsize=0,
                    cwd="/",
                    start_new_session=True,
                )
        except BaseException:
            self._errors.close()
            raise
        assert self._process.stdout is not None  # noqa: S101 - a pipe
        #: The descriptor that the archive is read from.
        self.output = self._process.stdout.fileno()

    def ending(self) -> tuple[int, str]:
        """Wait for its end, and return its exit code, and why it has failed if that is not 0."""
        code = self._process.wait()
        return code, reason_in(self._errors, code)

    def close(self) -> None:
        """End it if it still runs."""
        self._process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._errors.close()


def reason_in(errors: IO[bytes], code: int | None) -> str:
    """Return why the program has failed: the last line that it has written to the file *errors*, or its exit *code*."""
    errors.seek(0)
    lines = errors.read()[-MOST_ERROR_BYTES:].decode("utf-8", "replace").strip().splitlines()
    return lines[-1].removeprefix("gpuqueue-worker: ") if lines else f"the program that packs files ended with {code}"
