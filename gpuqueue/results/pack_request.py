"""The request to the program ``gpuqueue-worker pack``, which is on its standard input.

It is not in the arguments, because every user of a host can read those of all processes: the directory of a run has its
token, and patterns have the names of files.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager

from gpuqueue.errors import Unreadable
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.system.process import installed
from gpuqueue.text.json_fields import Fields

#: Exit code of the program if there is no copy of the code.
NO_COPY = 3
#: Longest request, in bytes.
MOST_BYTES = 2**20
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


def reason_in(errors: bytes, code: int | None) -> str:
    """Return why the program has failed: the last line of its *errors*, or its exit *code*."""
    lines = notes_in(errors)
    return lines[-1] if lines else f"the program that packs files ended with {code}"


def notes_in(errors: bytes) -> list[str]:
    """Return what the program has written to its standard error, line by line."""
    lines = errors.decode("utf-8", "replace").strip().splitlines()
    return [line.removeprefix("gpuqueue-worker: ") for line in lines]
