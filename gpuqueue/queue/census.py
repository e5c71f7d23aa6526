"""Counts the jobs in the store by state and by wait reason, for monitoring. Read-only, and bounded.

The jobs in the queues are counted by queue: all jobs of one user and one shape wait for the same reason, so one of them
is asked for it. The other waiting jobs (held, or not to start yet) are read one by one. Commands go in small pipelines,
so other clients of the store are served in between. What is beyond the bounds is counted as a whole, without a reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any

from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.job import JobState, WaitReason
from gpuqueue.model.run_mark import MarkKind
from gpuqueue.queue import job_fields as stored
from gpuqueue.queue import keys
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.queue.replies import current_marks
from gpuqueue.queue.store import Store, answering

#: Most queues, users, active jobs and arrays that one census reads, and most of the other waiting jobs.
MOST_QUEUES, MOST_USERS, MOST_ACTIVE, MOST_ARRAYS, MOST_ASIDE = 1000, 1000, 4000, 500, 2000
#: Most calls of ``listing.lua``, each of which judges a bounded number of queues.
MOST_CALLS = 5
#: Longest text of an array's indexes that is read, in bytes. A longer one needs a million separate indexes.
MOST_INDEXES_BYTES = 64 * 1024
#: Commands in one pipeline.
_AT_ONCE = 500
_PRIORITIES = ("3", "2", "1", "0")
_HELD = frozenset({WaitReason.HELD, WaitReason.LOST_TOO_OFTEN, WaitReason.REQUEUED_TOO_OFTEN, WaitReason.CANNOT_START})

#: One queue of waiting jobs: priority, user and shape.
_Queue = tuple[str, str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Census:
    """The jobs in the store. Each waiting member of an array counts as a job.

    ``waiting`` is by reason, ``active`` by state. ``not_counted`` is how many more jobs wait, beyond the bounds. Their
    reasons are unknown, and an array counts as one of them.
    """

    waiting: Mapping[WaitReason, int] = field(default_factory=dict)
    active: Mapping[JobState, int] = field(default_factory=dict)
    not_counted: int = 0
    #: Active jobs whose runs are marked as idle.
    idle: int = 0

    def states(self) -> dict[JobState, int]:
        """Return the number of jobs in each state that is not final. Jobs that are not counted are in none."""
        held = sum(count for reason, count in self.waiting.items() if reason in _HELD)
        found = {JobState.QUEUED: sum(self.waiting.values()) - held, JobState.HELD: held}
        return {**found, **{state: self.active.get(state, 0) for state in JobState if state.is_active}}


def census(queue: JobQueue) -> Census:
    """Return the counts of the store of *queue*, whose client must be redis-py's.

    Raises:
        StoreUnreachable: the store does not answer.
        StoreNotReady: the store answers that it cannot serve.

    """
    return _Count(queue.store).take()


class _Count:
    """One census, step by step."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: Counter[WaitReason] = Counter()
        self._queues: Counter[_Queue] = Counter()
        self._not_counted = 0

    @answering
    def take(self) -> Census:
        """Return the census."""
        active, idle = self._count_active()
        self._count_queues()
        self._count_aside()
        self._judge_queues()
        return Census(waiting=self._waiting, active=active, not_counted=self._not_counted, idle=idle)

    def _count_active(self) -> tuple[Counter[JobState], int]:
        """Count the jobs that hold devices, by state, and those of them that are marked as idle.

        A job beyond the bound counts as running, as nearly all of them are.
        """
        pipe = self._store.client.pipeline(transaction=False)
        pipe.zcard(keys.LEASES)
        pipe.zrange(keys.LEASES, 0, MOST_ACTIVE - 1)
        total, ids = pipe.execute()
        fields = self._each("hmget", ((keys.job(each), (stored.STATE, stored.MARKS)) for each in ids))
        found = Counter(_state(state) for state, _ in fields)
        active = Counter({state: count for state, count in found.items() if state is not None and state.is_active})
        active[JobState.RUNNING] += max(0, total - len(ids))
        return active, sum(
            any(each.kind == MarkKind.IDLE.value for each in current_marks(marks)) for _, marks in fields
        )

    def _count_queues(self) -> None:
        users = self._each("zrange", ((f"{keys.PREFIX}ul:{each}", 0, MOST_USERS - 1) for each in _PRIORITIES))
        pairs = [(priority, user) for priority, some in zip(_PRIORITIES, users, strict=True) for user in some]
        of_user = ((f"{keys.PREFIX}us:{priority}:{user}", 0, MOST_QUEUES) for priority, user in pairs)
        shapes = self._each("zrange", of_user)
        queues = [(*pair, shape) for pair, some in zip(pairs, shapes, strict=True) for shape in some]
        counts = self._each("zcard", ((_key(each),) for each in queues[:MOST_QUEUES]))
        self._queues.update(dict(zip(queues[:MOST_QUEUES], counts, strict=True)))
        self._is_cut = len(queues) > MOST_QUEUES or any(len(some) == MOST_USERS for some in users)

    def _count_aside(self) -> None:
        """Count the waiting jobs that are in no queue, and the members of arrays."""
        room = MOST_ASIDE
        arrays: list[str] = []
        for user in sorted(self._store.client.smembers(keys.ASIDERS))[:MOST_USERS]:
            pipe = self._store.client.pipeline(transaction=False)
            pipe.zcount(keys.aside(user), 0, 0)
            pipe.zrange(keys.aside(user), 0, 0, byscore=True, offset=0, num=room)
            pipe.zrange(keys.aside(user), 1, 1, byscore=True, offset=0, num=MOST_ARRAYS)
            total, ids, its_arrays = pipe.execute()
            self._waiting.update(self._reasons(ids))
            self._not_counted += max(0, total - len(ids))
            room, arrays = max(0, room - len(ids)), [*arrays, *its_arrays]
        self._not_counted += max(0, len(arrays) - MOST_ARRAYS)
        self._count_arrays(arrays[:MOST_ARRAYS])

    def _reasons(self, ids: Sequence[str]) -> Iterable[WaitReason]:
        found = self._each("hmget", ((keys.job(each), (stored.STATE, stored.REASON)) for each in ids))
        return [_reason(reason) for state, reason in found if state in {JobState.QUEUED.value, JobState.HELD.value}]

    def _count_arrays(self, arrays: Sequence[str]) -> None:
        lengths = self._each("hstrlen", ((keys.job(each), stored.LEFT) for each in arrays))
        arrays = [each for each, length in zip(arrays, lengths, strict=True) if length <= MOST_INDEXES_BYTES]
        names = (stored.LEFT, stored.HELD, stored.REASON, stored.PRIORITY, stored.USER, stored.SHAPE)
        found = self._each("hmget", ((keys.job(each), names) for each in arrays))
        queues = [(f"{priority}", f"{user}", f"{shape}") for *_, priority, user, shape in found]
        places = self._each("zscore", ((_key(queue), each) for queue, each in zip(queues, arrays, strict=True)))
        for (left, held, reason, *_), queue, place in zip(found, queues, places, strict=True):
            self._waiting[WaitReason.HELD] += _members(held)
            if place is not None and queue in self._queues:
                self._queues[queue] += _members(left) - 1  # the queue has the array as one job
            else:
                self._waiting[_reason(reason)] += _members(left)

    def _judge_queues(self) -> None:
        """Ask why the first job of each queue waits, the longest queues first.

        Without limits of users, all jobs of one shape wait for the same reason.
        """
        by_user = bool(self._store.client.exists(keys.LIMITS))
        alike: Counter[tuple[str, str]] = Counter()
        queues: dict[tuple[str, str], _Queue] = {}
        for queue, count in self._queues.items():
            if count > 0:
                alike[(queue[1] if by_user else "", queue[2])] += count
                queues.setdefault((queue[1] if by_user else "", queue[2]), queue)
        longest = alike.most_common()
        firsts = self._each("zrange", ((_key(queues[each]), 0, 0) for each, _ in longest))
        asked = [(first[0], count) for first, (_, count) in zip(firsts, longest, strict=True) if first]
        for _ in range(MOST_CALLS):
            if not asked:
                break
            answers = self._store.scripts.run("listing", *(job for job, _ in asked[:_AT_ONCE]))
            judged = next((place for place, each in enumerate(answers) if each is None), len(answers))
            for (_, count), answer in zip(asked[:judged], answers[:judged], strict=True):
                # A job that was claimed a moment ago has no reason; others of its queue wait for memory, or a turn.
                self._waiting[_reason(answer)] += count
            asked = asked[judged:]
        self._not_counted += sum(count for _, count in asked)
        if self._is_cut:
            self._not_counted += self._beyond()

    def _beyond(self) -> int:
        """Return how many waiting jobs are in none of the queues that were read."""
        pipe = self._store.client.pipeline(transaction=True)
        for key in (keys.LIVE, keys.LEASES, keys.ENDED):
            pipe.zcard(key)
        live, active, ended = map(int, pipe.execute())
        return max(0, live - active - ended - sum(self._waiting.values()) - self._not_counted)

    def _each(self, command: str, words: Iterable[tuple[Any, ...]]) -> list[Any]:
        """Return the replies to *command* with each of *words*, asked in pipelines of a bounded length."""
        all_words, found = list(words), []
        for start in range(0, len(all_words), _AT_ONCE):
            pipe = self._store.client.pipeline(transaction=False)
            for each in all_words[start : start + _AT_ONCE]:
                getattr(pipe, command)(*each)
            found += pipe.execute()
        return found


def _key(queue: _Queue) -> str:
    return f"{keys.PREFIX}q:{':'.join(queue)}"


def _state(text: str | None) -> JobState | None:
    return next((state for state in JobState if state.value == text), None)


def _reason(text: str | None) -> WaitReason:
    """Return the reason that *text* names; without one the job waits for memory, or for its turn."""
    return next((reason for reason in WaitReason if reason.value == text), WaitReason.MEMORY)


def _members(text: str | None) -> int:
    """Return how many indexes *text* has, such as ``0-9,20-40:5``."""
    count = 0
    for part in (text or "").split(",") if text else ():
        bounds, _, step = part.partition(":")
        first, _, last = bounds.partition("-")
        if first.isdecimal() and (last or first).isdecimal():
            count += (int(last or first) - int(first)) // max(1, int(step) if step.isdecimal() else 1) + 1
    return count
