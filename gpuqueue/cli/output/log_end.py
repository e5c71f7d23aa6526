"""The end of a job's log, with overwritten lines and escape sequences removed."""

from __future__ import annotations

from gpuqueue.model.progress import ESCAPES
from gpuqueue.text.sanitize import plain, short

#: Bytes read from the end of a log: more than is shown.
LOG_BYTES = 16384


def log_lines(written: bytes) -> list[str]:
    """Return the lines of *written* as plain text; a line that was overwritten shows only its last text."""
    text = ESCAPES.sub("", written.decode("utf-8", "replace")).replace("\r\n", "\n").rstrip("\r\n")
    return [plain(line.rpartition("\r")[2]) for line in text.split("\n")] if text else []


def log_end(written: bytes, lines: int, width: int) -> list[str]:
    """Return the last *lines* lines of *written*, the end of a log, each cut to *width*."""
    return [short(line, width) for line in log_lines(written)[-lines:]]
