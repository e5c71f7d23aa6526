"""The files of a run that a client lists and fetches. Pure."""

from __future__ import annotations

from gpuqueue.lazy.frozen import dataclass


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
    files that were kept of it. ``run`` is the number of the run.
    """

    files: int
    size_bytes: int
    directory: str
    source: str
    skipped: int = 0
    run: int | None = None
    left_out: tuple[LeftOut, ...] = ()
