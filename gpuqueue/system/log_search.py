"""Finds the lines of a log that contain a text, without keeping the log in memory."""

from __future__ import annotations

from pathlib import Path

from gpuqueue.model.log_matches import LogMatch, LogMatches
from gpuqueue.system.logs import LogTail
from gpuqueue.text.sanitize import ESCAPES

#: Most matches in one answer, most bytes that one search reads, and most characters of a line that an answer has.
MOST_MATCHES, MOST_BYTES, MOST_SHOWN = 100, 64 * 1024 * 1024, 300
#: Of a line without an end the last part of this size is searched.
_LINE_BYTES = 64 * 1024


def search(path: Path, stream: str, text: str, *, offset: int = 0, line: int = 1) -> LogMatches:
    """Return the next lines of a log that contain *text*, regardless of the case of letters.

    The search begins at *offset*, where the line with the number *line* begins. Colours and other escape sequences are
    left out. A progress bar, which writes many times into one line, matches once.

    Raises:
        Refused: the log cannot be read.

    """
    tail = LogTail(stream)
    tail.resume(path, offset)
    wanted, found, kept, begin = text.casefold(), list[LogMatch](), b"", offset
    for piece in tail.rest():
        at = tail.offset - len(piece)
        *lines, rest = piece.split(b"\n")
        for each in lines:
            begin = begin if kept else max(offset, at)
            if (shown := _matching(kept + each, wanted)) is not None:
                found.append(LogMatch(line=line, offset=begin, text=shown))
            kept, at, line = b"", at + len(each) + 1, line + 1
            if len(found) == MOST_MATCHES:
                return LogMatches(matches=tuple(found), next_offset=at, next_line=line, ended=False)
        begin = begin if kept else at
        kept = (kept + rest)[-_LINE_BYTES:]
        if tail.offset - offset >= MOST_BYTES:
            return LogMatches(matches=tuple(found), next_offset=begin, next_line=line, ended=False)
    if (shown := _matching(kept, wanted)) is not None:
        found.append(LogMatch(line=line, offset=begin, text=shown))
    return LogMatches(matches=tuple(found), next_offset=tail.offset, next_line=line, ended=True)


def _matching(content: bytes, wanted: str) -> str | None:
    """Return what to show of a line that contains *wanted*: the part around it. None if it does not contain it."""
    for part in reversed(content.rstrip(b"\r").split(b"\r")):  # the last state of a progress bar first
        shown = ESCAPES.sub("", part.decode(errors="replace"))
        at = shown.casefold().find(wanted)
        if at >= 0:
            begin = max(0, at - MOST_SHOWN // 3)
            return shown[begin : begin + MOST_SHOWN]
    return None
