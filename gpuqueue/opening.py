"""Makes a store ready for the first time, so that no id is ever given out twice."""

from __future__ import annotations

from gpuqueue.book.book import Book
from gpuqueue.queue.jobqueue import JobQueue

#: Ids that a store which lost its data skips: some may have been given out and never recorded.
ID_GAP = 100_000


def open_queue(queue: JobQueue, book: Book) -> bool:
    """Open the store behind *queue* unless it is open; return whether it was new.

    A new store for a book that has jobs is one that lost its data: its ids go on well above the book's last.
    """
    if queue.epoch() is not None:
        return False
    last = book.max_job_id()
    return queue.open(0 if last is None else last + ID_GAP)
