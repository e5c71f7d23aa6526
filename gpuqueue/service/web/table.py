"""Filters, sorts and cuts the rows of the queue. Equal questions of several viewers are answered once."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.job import JobState, WaitReason
from gpuqueue.model.page import QueueRow, QueueTable, RowSort
from gpuqueue.model.queue_query import QueueQuery
from gpuqueue.service.web.queue_copy import QueueState
from gpuqueue.service.web.rows import in_words

#: Most names in the choices of one filter.
MOST_CHOICES = 500
#: Answers that are remembered.
_REMEMBERED = 64
_ORDER = {state: place for place, state in enumerate(
    (JobState.RUNNING, JobState.STARTING, JobState.CANCELLING, JobState.QUEUED, JobState.HELD)
)}  # fmt: skip
#: Reasons of jobs that wait for something else than their turn.
_NO_TURN = frozenset(
    {WaitReason.DEPENDENCY, WaitReason.BEGIN, WaitReason.RETRY, WaitReason.REQUEUE, WaitReason.ARRAY_LIMIT}
)
_KEYS: dict[RowSort, Callable[[QueueRow], Any]] = {
    RowSort.ID: lambda row: row.id,
    RowSort.NAME: lambda row: row.name.lower(),
    RowSort.USER: lambda row: row.user,
    RowSort.STATE: lambda row: _ORDER[row.state],
    RowSort.MEM: lambda row: row.mem_bytes * row.gpus,
    RowSort.USED: lambda row: row.used_bytes or 0,
    RowSort.PRIORITY: lambda row: row.priority,
    RowSort.SUBMITTED: lambda row: row.submitted_at,
    RowSort.STARTED: lambda row: (row.started_at is None, row.started_at or row.submitted_at),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Filters:
    """What the rows are chosen and sorted by: the filters of *query*, and what only the page has.

    ``text`` is a part of the name, user, label, tags or note of a job. ``idle``: only those that are marked as idle.
    """

    query: QueueQuery = QueueQuery()
    text: str = ""
    idle: bool = False
    sort: RowSort = RowSort.ID
    reverse: bool = False


@dataclass(frozen=True, slots=True)
class Chosen:
    """The rows that match, in order, and what the filters can choose among all that the caller may see."""

    rows: Sequence[QueueRow]
    counts: dict[str, int]
    idle: int
    users: tuple[str, ...]
    pools: tuple[str, ...]
    tags: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Seen:
    """The jobs that a caller may see: all, or those of one account."""

    account: tuple[str, int] | None
    everything: bool

    @property
    def key(self) -> tuple[str, int] | bool:
        """Equal for callers who see the same jobs."""
        return self.everything or self.account or False

    def of(self, state: QueueState) -> dict[int, QueueRow]:
        """Return the rows that the caller may see, by id."""
        if self.everything:
            return state.rows
        return {each: row for each, row in state.rows.items() if (row.user, row.uid) == self.account}


class Tables:
    """Tables of the latest states, remembered. Threads may share an instance."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[tuple[Any, ...], Chosen] = OrderedDict()

    def table(self, state: QueueState, filters: Filters, seen: Seen, *, offset: int, limit: int) -> QueueTable:
        """Return the rows from *offset* on that match and that the caller may see."""
        chosen = self._chosen(state, filters, seen)
        return QueueTable(
            at=state.at,
            offset=offset,
            total=len(chosen.rows),
            rows=tuple(in_words(chosen.rows[offset : offset + limit], state.devices)),
            counts=chosen.counts,
            idle=chosen.idle,
            users=chosen.users,
            pools=chosen.pools,
            tags=chosen.tags,
            complete=state.complete,
            left_out=state.left_out,
        )

    def _chosen(self, state: QueueState, filters: Filters, seen: Seen) -> Chosen:
        key = (state.rows_version, filters, seen.key)
        with self._lock:
            found = self._known.get(key)
        if found is None:
            found = chosen_of(seen.of(state), filters, state.usage)
            with self._lock:
                self._known[key] = found
                if len(self._known) > _REMEMBERED:
                    self._known.popitem(last=False)
        return found


def chosen_of(rows: dict[int, QueueRow], filters: Filters, usage: Mapping[str, float]) -> Chosen:
    """Return those of *rows* that match *filters*, in order. *usage* is what each user has used."""
    everything = rows.values()
    matching = [each for each in everything if _matches(each, filters)]
    if filters.sort is not RowSort.ID:  # rows are in the order of their ids, which stays among equal ones
        key = partial(_in_line, usage=usage) if filters.sort is RowSort.PLACE else _KEYS[filters.sort]
        matching.sort(key=key, reverse=filters.reverse)
    elif filters.reverse:
        matching.reverse()
    tags = {tag for each in everything for tag in each.tags}
    return Chosen(
        matching,
        dict(Counter(str(each.state) for each in everything)),
        sum(each.idle_since is not None for each in everything),
        tuple(sorted({each.user for each in everything})[:MOST_CHOICES]),
        tuple(sorted({each.pool for each in everything if each.pool})[:MOST_CHOICES]),
        tuple(sorted(tags)[:MOST_CHOICES]),
    )


def _in_line(row: QueueRow, usage: Mapping[str, float]) -> tuple[Any, ...]:
    """Return the key of *row* in the order of claims: its priority, the usage of its user, and its place among theirs.

    Jobs that run are before those that wait for their turn, and those that wait for something else are behind.
    """
    if row.state is not JobState.QUEUED:
        return (0 if row.state.is_active else 3,)
    in_turn = 2 if row.reason in _NO_TURN else 1
    return in_turn, -row.priority, usage.get(row.user, 0.0), row.user, -(row.front or 0)


def _matches(row: QueueRow, filters: Filters) -> bool:
    return (
        filters.query.fits(row.user, row.name, row.tags, row.pool)
        and (not filters.query.states or row.state in filters.query.states)
        and (not filters.idle or row.idle_since is not None)
        and (not filters.text or _has(row, filters.text.lower()))
    )


def _has(row: QueueRow, text: str) -> bool:
    words = (row.name, row.user, row.label, row.note or "", row.host or "", *row.tags)
    return any(text in each.lower() for each in words)
