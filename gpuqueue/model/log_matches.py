"""What a search in the output of a run finds. Pure."""

from __future__ import annotations

from gpuqueue.lazy.frozen import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class LogMatch:
    """A line that contains the text: its number from 1 on, where it begins in bytes, and the part around the text."""

    line: int
    offset: int
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class LogMatches:
    """The next lines of a log that contain a text.

    The search goes on at ``next_offset``, where the line ``next_line`` begins. ``ended``: the search has reached the
    end of the log.
    """

    matches: tuple[LogMatch, ...]
    next_offset: int
    next_line: int
    ended: bool
