"""Facts about the contents of the store, for diagnosis. Read-only."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import closing, suppress
from typing import TYPE_CHECKING, NamedTuple, cast

from gpuqueue.errors import Unreadable
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.event import Cursor
from gpuqueue.queue import job_fields as stored
from gpuqueue.queue import keys
from gpuqueue.queue.connect import connect, translated
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.queue.lease import DeviceStatus
from gpuqueue.queue.recovery import is_paused
from gpuqueue.text.json_fields import loaded

if TYPE_CHECKING:
    import redis

#: Maximum number of jobs listed by id.
MOST_NAMED = 10


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceFacts:
    """A device as the store knows it, with what its worker reported at its start."""

    status: DeviceStatus
    #: The worker's version of gpuqueue.
    version: str | None
    #: How far the clock of the worker's host was ahead of the store's when the worker started, in seconds.
    clock_ahead_s: float | None

    @property
    def name(self) -> str:
        """Return the host and the index of the device."""
        return f"{self.status.host} {self.status.device.index}"


@dataclass(frozen=True, kw_only=True, slots=True)
class OutboxFacts:
    """The length of the outbox, and since when its first unread event waits for the history; None if none waits."""

    length: int
    unread_ms: int | None
    #: Whether the history was last written from another store, or from this one before it lost its data.
    of_another_store: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueFacts:
    """The contents of the store. Times are milliseconds on its clock."""

    epoch: str | None
    #: Whether the store is being rebuilt, and when claims begin after a rebuild.
    rebuilding: bool
    claims_from_ms: int | None
    layout: str | None
    now_ms: int
    #: Jobs queued or held, jobs that hold a device, and ended jobs that the history has not recorded yet.
    waiting: int
    active: int
    ended: int
    ended_since_ms: int | None
    outbox: OutboxFacts
    reaped_ms: int | None
    grace_until_ms: int | None
    #: The first jobs with expired leases, the number of such jobs, and when the first lease expired.
    overdue: tuple[int, ...]
    overdue_count: int
    overdue_since_ms: int | None
    devices: tuple[DeviceFacts, ...]
    #: Arrays whose progress is unknown since the store lost its data, in the order of their ids.
    torn_arrays: tuple[int, ...]

    @property
    def is_paused(self) -> bool:
        """Whether claims are paused because the store was rebuilt a moment ago."""
        return is_paused(self.claims_from_ms, self.reaped_ms, now_ms=self.now_ms)

    def ago_s(self, ms: int) -> float:
        """Return the seconds since *ms* (epoch milliseconds) on the store's clock."""
        return (self.now_ms - ms) / 1000


@dataclass(frozen=True, kw_only=True, slots=True)
class StoreState:
    """The state of a job in the store, and the token of its current run, empty if it has none."""

    state: str
    token: str


def queue_facts(url: str, cursor: Cursor | None = None) -> QueueFacts:
    """Return the contents of the store at *url*; *cursor* is the position of the history, if known.

    Raises:
        StoreUnreachable: the store does not answer.
        StoreNotReady: the store answers that it cannot serve.

    """
    with closing(JobQueue(url)) as queue, closing(connect(url)) as client:
        now_ms, epoch = queue.now_ms(), queue.epoch()
        with translated(url):
            found = _contents(client, now_ms, cursor.last_id if cursor is not None and cursor.epoch == epoch else None)
        return QueueFacts(
            epoch=epoch,
            rebuilding=bool(found.rebuilding),
            claims_from_ms=_number(found.meta.get("claims")),
            layout=found.meta.get("layout"),
            now_ms=now_ms,
            waiting=found.live - found.active - found.ended,
            active=found.active,
            ended=found.ended,
            ended_since_ms=int(found.oldest_ended[0][1]) if found.oldest_ended else None,
            outbox=OutboxFacts(
                length=found.outbox_length,
                unread_ms=_ms_of(found.unread[0][0]) if found.unread else None,
                of_another_store=epoch is not None and cursor is not None and cursor.epoch != epoch,
            ),
            reaped_ms=_number(found.meta.get("reap")),
            grace_until_ms=_number(found.meta.get("grace")),
            overdue=tuple(int(job_id) for job_id, _ in found.overdue),
            overdue_count=found.overdue_count,
            overdue_since_ms=int(found.overdue[0][1]) if found.overdue else None,
            devices=tuple(_devices(queue, client)),
            torn_arrays=_torn_arrays(queue.url, client),
        )


class _Contents(NamedTuple):
    """The replies to the commands of :func:`_contents`, in their order."""

    rebuilding: int
    meta: dict[str, str]
    live: int
    active: int
    ended: int
    oldest_ended: list[tuple[str, float]]
    outbox_length: int
    unread: list[tuple[str, dict[str, str]]]
    overdue: list[tuple[str, float]]
    overdue_count: int


def _contents(client: redis.Redis, now_ms: int, read: str | None) -> _Contents:
    """Read the counts of the store at one moment; *read* is the id of the last event that the history has."""
    pipe = client.pipeline(transaction=True)
    pipe.exists(keys.REBUILDING)
    pipe.hgetall(keys.META)
    pipe.zcard(keys.LIVE)
    pipe.zcard(keys.LEASES)
    pipe.zcard(keys.ENDED)
    pipe.zrange(keys.ENDED, 0, 0, withscores=True)
    pipe.xlen(keys.OUTBOX)
    pipe.xrange(keys.OUTBOX, min="-" if read is None else f"({read}", count=1)
    pipe.zrange(keys.LEASES, "-inf", now_ms, byscore=True, offset=0, num=MOST_NAMED, withscores=True)
    pipe.zcount(keys.LEASES, "-inf", now_ms)
    return _Contents(*pipe.execute())


def _torn_arrays(url: str, client: redis.Redis) -> tuple[int, ...]:
    with translated(url):
        pipe = client.pipeline(transaction=False)
        for user in cast("set[str]", client.smembers(keys.ASIDERS)):
            pipe.zrange(keys.aside(user), 1, 1, byscore=True)  # the arrays
        arrays = sorted(int(each) for found in pipe.execute() for each in found)
        for array_id in arrays:
            pipe.hget(keys.job(array_id), stored.PROGRESS_UNKNOWN)
        return tuple(array_id for array_id, torn in zip(arrays, pipe.execute(), strict=True) if torn)


def _ms_of(event_id: str) -> int:
    return int(event_id.partition("-")[0])


def _number(text: str | None) -> int | None:
    return int(text) if text and re.fullmatch(r"[0-9]{1,15}", text) else None


def device_facts(url: str) -> list[DeviceFacts]:
    """Return the devices that the store at *url* knows.

    Raises:
        StoreUnreachable: the store does not answer.

    """
    with closing(JobQueue(url)) as queue, closing(connect(url)) as client:
        return list(_devices(queue, client))


def _devices(queue: JobQueue, client: redis.Redis) -> Iterable[DeviceFacts]:
    statuses = queue.devices.all()
    with translated(queue.url):
        facts = cast("dict[str, str]", client.hgetall(keys.FACTS))
    for status in statuses:
        version = clock_ahead_s = None
        with suppress(Unreadable):  # another version may write them differently; then they are unknown
            reported = loaded(facts.get(status.device.uuid), "a device")
            version, clock_ahead_s = reported.text_or_none("version"), reported.number_or_none("clock_ahead_s")
        yield DeviceFacts(status=status, version=version, clock_ahead_s=clock_ahead_s)


def store_states(url: str, job_ids: Iterable[int]) -> dict[int, StoreState] | None:
    """Return the state of each of *job_ids* that the store knows, or None if the store is not open.

    Raises:
        StoreUnreachable: the store does not answer.
        StoreNotReady: the store answers that it cannot serve.

    """
    wanted = list(job_ids)
    with closing(connect(url)) as client, translated(url):
        pipe = client.pipeline(transaction=True)
        pipe.exists(keys.EPOCH)
        for job_id in wanted:
            pipe.hmget(keys.job(job_id), stored.STATE, stored.TOKEN)
        opened, *answers = pipe.execute()
    if not opened:
        return None
    known = zip(wanted, answers, strict=True)
    return {job_id: StoreState(state=state, token=token or "") for job_id, (state, token) in known if state is not None}
