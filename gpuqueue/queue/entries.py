"""Reads the hashes and specs of jobs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from gpuqueue.lazy.imports import later
from gpuqueue.queue import job_fields as stored
from gpuqueue.queue import keys
from gpuqueue.queue.connect import NOT_OPEN, not_open_error

if TYPE_CHECKING:
    from gpuqueue.queue import replies
    from gpuqueue.queue.store import Store
else:
    replies = later("gpuqueue.queue.replies")


def read_ids(store: Store, after: int | str, limit: int) -> list[str]:
    """Return at most *limit* ids of jobs above *after*.

    Raises:
        StoreNotOpen: the store is not open, so the list could be incomplete.

    """
    pipe = store.client.pipeline(transaction=True)
    ask_ids(pipe, after, limit)
    return ids_in(pipe.execute())


def read_entries(store: Store, ids: Sequence[int | str]) -> Iterator[tuple[dict[str, str], str | None]]:
    """Yield the hash and the spec of each job, read in one step because a settled job is deleted."""
    pipe = store.client.pipeline(transaction=True)
    ask_entries(pipe, ids)
    yield from entries_in(store, pipe.execute())


def read_event(store: Store, event_id: str) -> dict[str, str]:
    """Return the fields of an event; empty if the outbox does not have it."""
    found = store.client.xrange(keys.OUTBOX, min=event_id, max=event_id)
    return dict(found[0][1]) if found else {}


def entries_in(store: Store, answers: Sequence[Any]) -> Iterator[tuple[dict[str, str], str | None]]:
    """Yield the hashes and specs in the replies to :func:`ask_entries`; a member has the spec of its array."""
    hashes, specs = answers[::2], answers[1::2]
    arrays = sorted({fields[stored.ARRAY] for fields in hashes if fields.get(stored.ARRAY)})
    shared = dict(zip(arrays, store.client.mget([keys.spec(each) for each in arrays]), strict=True)) if arrays else {}
    for fields, spec in zip(hashes, specs, strict=True):
        yield fields, _spec_of(fields, spec, shared) if fields.get(stored.ARRAY) else spec


def ask_ids(pipe: Any, after: int | str, limit: int) -> None:
    """Add commands to *pipe* that read at most *limit* job ids above *after*, and whether the store is open."""
    pipe.exists(keys.EPOCH)
    pipe.exists(keys.REBUILDING)
    pipe.zrange(keys.LIVE, f"({after}", "+inf", byscore=True, offset=0, num=limit)


def ids_in(answers: Sequence[Any]) -> list[str]:
    """Return the ids in the replies to :func:`ask_ids`.

    Raises:
        StoreNotOpen: the store is not open, so the list could be incomplete.

    """
    is_open, is_on_its_way, page = answers
    if not is_open:
        raise not_open_error(NOT_OPEN["REBUILDING" if is_on_its_way else "NOTOPEN"])
    return cast("list[str]", page)


def ask_entries(pipe: Any, ids: Sequence[int | str]) -> None:
    """Add commands to *pipe* that read the hash and the spec of each job."""
    for job_id in ids:
        pipe.hgetall(keys.job(job_id))
        pipe.get(keys.spec(job_id))


def _spec_of(fields: Mapping[str, str], spec: str | None, arrays: Mapping[str, str | None]) -> str | None:
    """Return a member's spec, which the store has once for the whole array."""
    try:
        return replies.with_owner(spec or arrays[fields[stored.ARRAY]], replies.member_in(fields))
    except ValueError:  # a damaged entry does not name its array
        return spec
