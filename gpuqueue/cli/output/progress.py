"""The progress of a job as a bar and as text, fitted to a width. Pure."""

from __future__ import annotations

from gpuqueue.model.progress import Progress
from gpuqueue.text.sanitize import cells, short

#: Width of a bar, and most columns of the words behind it, such as ``1281167/1281167, 12:34:56 left``.
BAR_WIDTH, WORDS_WIDTH = 8, 40


def share_bar(progress: Progress, width: int = BAR_WIDTH) -> str:
    """Return ``████····  50 %`` and the job's own text."""
    full, words = round(progress.share * width), short(progress.words, WORDS_WIDTH)
    return f"{'█' * full}{'·' * (width - full)} {100 * progress.share:3.0f} % {words}".rstrip()


def in_words(progress: Progress) -> str:
    """Return the progress as text: ``50 % 45/100, 00:15 left``."""
    return f"{100 * progress.share:.0f} % {short(progress.words, WORDS_WIDTH)}".rstrip()


def fitted(progress: Progress, width: int) -> str:
    """Return the progress in *width* columns; the bar is omitted first, then the time left, then the counts."""
    share, counts = f"{100 * progress.share:.0f} %", short(progress.words.partition(",")[0])
    forms = (share_bar(progress), in_words(progress), f"{share} {counts}".rstrip(), share)
    return next((words for words in forms if cells(words) <= width), share)
