"""Restores jobs that the store lost from the history, and records that the history lost from the store."""

from __future__ import annotations

from gpuqueue.clock import from_epoch_ms
from gpuqueue.errors import HistoryUnreachable
from gpuqueue.history.database import HistoryDatabase
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.event import Cursor, place
from gpuqueue.model.run import Survivor
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.queue.rules import send_rules
from gpuqueue.settings.settings import Settings

#: Ids that a store skips after it lost its data, because some may have been assigned and never recorded. The gap covers
#: the members of an array of the largest size, and a million more.
ID_GAP = 2_000_000


#: Longest pause of all claims after a loss of data, in seconds. In this time each host offers the runs that the history
#: does not know. A host that is cut off for longer meanwhile, and whose last claims were not recorded, may run those
#: jobs beside a second copy: see docs/internals/lost-data.md.
LONGEST_PAUSE_S = 300.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Opened:
    """The result of opening a store: the number of jobs restored from the history, and the pause of all claims."""

    jobs: int
    pause_s: float

    @property
    def lost_data(self) -> bool:
        """Return whether the store had lost its data, which is so if the history already had jobs."""
        return self.pause_s > 0


def open_queue(
    queue: JobQueue, database: HistoryDatabase, *, lease_s: float, settings: Settings | None = None
) -> Opened | None:
    """Open the store behind *queue*. Return the result, or None if the store is open or another process opens it.

    Any number of processes may call this at once, and each may be killed at any step. Each job is restored once, and
    the next call continues where an interrupted one stopped. It is safe for these reasons:

    - The cursor of the history moves to the new epoch before the history is read. From then on no recorder can write
      events of the lost store, so the read data stays true.
    - The store serves no client before it is open, so no job can end and be restored again.
    - Nothing is claimed for a while after the opening. The history may lack the last claims. The worker of such a run
      offers it to the store again (see :mod:`workers.services.adoption`). *lease_s* must be the longest lease of any
      worker.
    - New ids start far above the last one in the history, because some may have been assigned and never recorded.
    - The site policy in *settings* (limits and permissions) is set before the store opens, because the first worker may
      start much later.

    Raises:
        Unreachable: the store or the history does not answer. The next call continues.

    """
    epoch = _begin(queue, database)
    if epoch is None:
        return None
    last = database.max_job_id()
    jobs = 0
    arrays: list[Survivor] = []
    for page in database.survivors():
        back = queue.recovery.restore(epoch, page, lease_s=lease_s)
        if back is None:
            return None  # another process has finished the rebuild, or the store lost its data again
        jobs += back
        arrays += [each for each in page if each.is_array]
    if arrays and not queue.recovery.gather(epoch, arrays):
        return None
    if settings is not None:
        send_rules(queue, settings)
    known = 0 if last is None else last
    pause_s = 0.0 if last is None else min(lease_s, LONGEST_PAUSE_S)
    floor = 0 if last is None else last + ID_GAP
    gpu_hosts = database.gpu_hosts()
    opened = queue.recovery.open(floor, epoch=epoch, last=known, pause_s=pause_s, gpu_hosts=gpu_hosts)
    return Opened(jobs=jobs, pause_s=pause_s) if opened else None


def _begin(queue: JobQueue, database: HistoryDatabase) -> str | None:
    """Begin or join the rebuild and move the history's cursor to its epoch. Return the epoch, or None if it is open."""
    while queue.epoch() is None:
        known = database.cursor()
        epoch = queue.recovery.begin()
        if epoch is None:
            break
        if (known is not None and known.epoch == epoch) or database.turn_to(epoch, expected=known):
            return epoch
    return None


def catch_up(queue: JobQueue, database: HistoryDatabase) -> int | None:
    """Restore a history that lost data from the jobs in the store. Return the number of jobs, or None if not needed.

    The history has lost data if its cursor is behind the last event that the store knows to be recorded. That happens
    if the database was deleted, created anew or replaced by an older copy.

    Raises:
        HistoryUnreachable: the history does not answer, or belongs to another store, so that two histories would mix.
        StoreUnreachable: the store does not answer.

    """
    epoch, recorded = queue.epoch(), queue.outbox.recorded()
    if epoch is None or recorded is None:
        return None
    known = database.cursor()
    if known is not None and known.epoch != epoch:
        raise HistoryUnreachable(
            "the history database belongs to another store: point GPUQUEUE_DATABASE_URL at this queue's own, "
            "or at a new one"
        )
    if known is not None and place(known.last_id) >= place(recorded):
        return None
    return database.rebase(
        queue.recovery.survivors(),
        expected=known,
        to=Cursor(epoch=epoch, last_id=recorded),
        last_given=queue.recovery.last_given(),
        at=from_epoch_ms(queue.now_ms()),
    )
