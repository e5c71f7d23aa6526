"""Puts back into the one store what only the other still knows: what the queue lost, and what the book lost."""

from __future__ import annotations

from gpuqueue.clock import from_epoch_ms
from gpuqueue.errors import BookUnreachable
from gpuqueue.history.database import Book
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.event import Cursor, place
from gpuqueue.model.run import Survivor
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.queue.site_policy import tell_rules
from gpuqueue.settings.settings import Settings

#: Ids that a store which lost its data skips: some may have been given out and never recorded.
#: The members of one array of the largest kind, and many more.
ID_GAP = 2_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Opened:
    """What opening a store took: how many jobs came back from the book, and how long nothing is claimed now."""

    jobs: int
    pause_s: float

    @property
    def lost_data(self) -> bool:
        """Return whether the store is one that lost its data: the book has seen jobs before."""
        return self.pause_s > 0


def open_queue(queue: JobQueue, book: Book, *, lease_s: float, settings: Settings | None = None) -> Opened | None:
    """Open the store behind *queue* unless it is open; return what that took, None if it was open.

    Any number of processes may do this at once, and any may be killed at any step: each job comes back once, and the
    next call goes on where another was left. What keeps it safe:

    - The book's cursor moves to the epoch to come before the book is read. From then on nobody can write down what
      they still know of the lost store, so what is read stays true.
    - The store answers nobody before it is open, so no job can end and come back again.
    - Nothing is claimed for one lease after. The book may have missed the claims of the last moments; such a run is
      either offered again by its worker (see :mod:`workers.services.adoption`) or ended by its own shim, which waits
      0.7 of a
      lease for a worker. *lease_s* must be the longest that any worker has.
    - Ids go on well above the book's last: some may have been given out and never recorded.
    - What *settings* say of this site, its limits and who may what, holds before anybody is let in: the first tick of
      a worker may be long in coming.

    Raises:
        Unreachable: store or book do not answer; the next call goes on.

    """
    epoch = _begin(queue, book)
    if epoch is None:
        return None
    last = book.max_job_id()
    jobs = 0
    arrays: list[Survivor] = []
    for page in book.survivors():
        back = queue.restore(epoch, page, lease_s=lease_s)
        if back is None:
            return None  # somebody else was faster, and their work is whole; or the store was lost again
        jobs += back
        arrays += [each for each in page if each.is_array]
    if arrays and not queue.gather(epoch, arrays):
        return None
    if settings is not None:
        tell_rules(queue, settings)
    known = 0 if last is None else last
    pause_s = 0.0 if last is None else lease_s
    floor = 0 if last is None else last + ID_GAP
    opened = queue.open(floor, epoch=epoch, last=known, pause_s=pause_s)
    return Opened(jobs=jobs, pause_s=pause_s) if opened else None


def _begin(queue: JobQueue, book: Book) -> str | None:
    """Begin or join the rebuild, and turn the book to its epoch; return that, None if the store is open."""
    while queue.epoch() is None:
        known = book.cursor()
        epoch = queue.begin()
        if epoch is None:
            break
        if (known is not None and known.epoch == epoch) or book.turn_to(epoch, expected=known):
            return epoch
    return None


def catch_up(queue: JobQueue, book: Book) -> int | None:
    """Write down again, in a book that lost its history, what the store still knows; return how many jobs that were.

    A book has lost it when the store says that more was recorded than its cursor knows of: the file was deleted, the
    database made anew, or an older copy was brought back. None if there is nothing to mend.

    Raises:
        BookUnreachable: the book does not answer, or belongs to another store: two histories would be mixed up.
        StoreUnreachable: the store does not answer.

    """
    epoch, recorded = queue.epoch(), queue.recorded()
    if epoch is None or recorded is None:
        return None
    known = book.cursor()
    if known is not None and known.epoch != epoch:
        raise BookUnreachable(
            "the book is the history of another store: point GPUQUEUE_DATABASE_URL at this queue's own, or at a new one"
        )
    if known is not None and place(known.last_id) >= place(recorded):
        return None
    return book.rebase(
        queue.survivors(),
        expected=known,
        to=Cursor(epoch=epoch, last_id=recorded),
        last_given=queue.last_given(),
        at=from_epoch_ms(queue.now_ms()),
    )
