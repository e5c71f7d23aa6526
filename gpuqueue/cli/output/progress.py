"""How far a job is, as a bar and in words, in as much room as there is. Pure."""

from __future__ import annotations

from gpuqueue.model.progress import Progress
from gpuqueue.text.sanitize import cells, short

BAR_WIDTH = 8


def share_bar(progress: Progress, width: int = BAR_WIDTH) -> str:
    """Return ``████····  50 %`` and what the job says beside it."""
    full = round(progress.share * width)
    return f"{'█' * full}{'·' * (width - full)} {100 * progress.share:3.0f} % {short(progress.words)}".rstrip()


def in_words(progress: Progress) -> str:
    """Return ``50 % 45/100, 00:15 left``."""
    return f"{100 * progress.share:.0f} % {short(progress.words)}".rstrip()


def fitted(progress: Progress, width: int) -> str:
    """Return as much of it as *width* characters hold: the bar goes first, then the time that is left."""
    share, counts = f"{100 * progress.share:.0f} %", short(progress.words.partition(",")[0])
    said = (share_bar(progress), in_words(progress), f"{share} {counts}".rstrip(), share)
    return next((words for words in said if cells(words) <= width), share)
