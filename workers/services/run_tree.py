"""Opens the run directories of a host step by step, without following a link that a job may have put there."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

#: Bytes of a block in ``st_blocks`` of stat(2), on every file system.
BLOCK_BYTES = 512
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def names_in(folder: int) -> list[str]:
    """Return the names in an open directory."""
    return os.listdir(folder)  # pathlib does not support open directories


@contextlib.contextmanager
def opened(name: str | os.PathLike[str], parent: int | None) -> Iterator[int]:
    """Open a directory without following a link, except for the topmost one, which the administrator may link."""
    fd = os.open(name, _FOLDER if parent is not None else _FOLDER & ~os.O_NOFOLLOW, dir_fd=parent)
    try:
        yield fd
    finally:
        os.close(fd)


def runs_in(top: int) -> Iterator[tuple[str, str, int]]:
    """Yield job, token and open directory of each run below the open *top*. One that is being removed is left out."""
    for job_id in filter(str.isdigit, names_in(top)):
        with contextlib.suppress(OSError), opened(job_id, top) as job:
            for token in names_in(job):
                with contextlib.suppress(OSError), opened(token, job) as run:
                    yield job_id, token, run
