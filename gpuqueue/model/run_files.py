"""The files of a run that a client lists and fetches. Pure."""

from __future__ import annotations

from datetime import datetime
from enum import Enum

from gpuqueue.lazy.frozen import dataclass

#: Headers of an archive of files: the number of the run, and a FilesSource.
FILES_RUN, FILES_SOURCE = "gpuqueue-run", "gpuqueue-source"


class FilesSource(str, Enum):
    """Where the files of a run come from: the value of the header ``Gpuqueue-Source``."""

    #: The run's copy of the code, as it is now.
    DIRECTORY = "directory"
    #: The files that were kept after the run.
    KEPT = "kept"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, kw_only=True, slots=True)
class RunFile:
    """A file in the archive of a run, with its size in bytes; or a link, with its target and no size."""

    path: str
    size_bytes: int
    target: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class LeftOut:
    """A file that was not fetched, and why, in words that follow its path."""

    path: str
    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Fetched:
    """What was fetched of a run.

    ``files`` counts the files and links that are in ``directory`` now, ``size_bytes`` is their size, and ``skipped`` of
    them were there before with the same content. ``source`` is ``directory`` or ``kept``: the copy of the code, or the
    files that were kept of it. ``run`` is the number of the run. ``left_out`` are files that arrived and were not
    written, and ``notes`` say in words what was left out where they come from.
    """

    files: int
    size_bytes: int
    directory: str
    source: str
    skipped: int = 0
    run: int | None = None
    left_out: tuple[LeftOut, ...] = ()
    notes: tuple[str, ...] = ()


class KeptState(str, Enum):
    """What is there of the files that a job asked to keep."""

    #: They are there.
    KEPT = "kept"
    #: The job asked to keep none.
    NONE = "none"
    #: They are not there yet.
    WAITING = "waiting"
    #: They could not be kept.
    FAILED = "failed"
    #: They were there, and were removed.
    REMOVED = "removed"
    #: It is not known here.
    UNKNOWN = "unknown"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, kw_only=True, slots=True)
class KeptFiles:
    """What is there of the files that a job asked to keep of a run.

    ``size_bytes`` is the size of the archive with all of them, and ``expires_at`` the time when they are removed,
    None for never. ``reason`` says why they are not there.
    """

    state: KeptState
    size_bytes: int | None = None
    expires_at: datetime | None = None
    reason: str | None = None
