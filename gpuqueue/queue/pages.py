"""Lists of jobs, with what the queue knows about the running ones and about why the others wait."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

from gpuqueue.clock import from_epoch_ms
from gpuqueue.codec import request as codec
from gpuqueue.errors import Unreadable
from gpuqueue.lazy.imports import later
from gpuqueue.model.job import Job, WaitReason
from gpuqueue.model.run import Listing, RunDevice
from gpuqueue.queue import job_fields as stored
from gpuqueue.queue import replies
from gpuqueue.queue.entries import ask_entries, ask_ids, entries_in, ids_in
from gpuqueue.queue.store import Store

if TYPE_CHECKING:
    import logging
else:
    logging = later("logging")

#: Maximum number of jobs in one call of ``listing.lua``.
MOST_JOBS = 500
#: The numbers that a script takes for an id.
_IDS = range(1, 2**53)


def page(store: Store, *, limit: int, after: int) -> Listing:
    """Return at most *limit* jobs with ids above *after*, oldest first, and the id to continue ``after``."""
    pipe = store.client.pipeline(transaction=True)
    ask_ids(pipe, after, limit)
    pipe.time()
    *found, (seconds, micros) = pipe.execute()
    ids = [int(job_id) for job_id in ids_in(found)]
    listing = _listing(store, ids, from_epoch_ms(int(seconds) * 1000 + int(micros) // 1000))
    return replace(listing, after=ids[-1] if len(ids) == limit else None)


def some(store: Store, ids: Sequence[int]) -> Listing:
    """Return those of the jobs *ids* that the store still holds."""
    possible = [each for each in ids if each in _IDS]
    return _listing(store, possible, from_epoch_ms(store.now_ms()))


def _listing(store: Store, ids: Sequence[int], at: datetime) -> Listing:
    entries, details = _entries_with_details(store, ids)
    jobs: list[Job] = []
    reports: dict[int, tuple[str, tuple[RunDevice, ...]]] = {}
    for job_id, (fields, spec) in zip(ids, entries, strict=True):
        try:
            if fields:
                jobs.append(replies.job(job_id, fields, spec))
                if jobs[-1].state.is_active and fields.get(stored.START_REPORT):
                    log_path, of_run, _ = codec.decode_started(fields[stored.START_REPORT])
                    reports[job_id] = log_path, of_run
        except Unreadable as error:
            logging.getLogger(__name__).warning("%s", error)
    return Listing(
        at=at,
        jobs=tuple(with_reasons(store, jobs, details)),
        held_bytes={job_id: int(each) for job_id, each in details.items() if each and each.isdecimal()},
        logs={job_id: log_path for job_id, (log_path, _) in reports.items() if log_path},
        devices={job_id: devices for job_id, (_, devices) in reports.items()},
    )


def _entries_with_details(
    store: Store, ids: Sequence[int]
) -> tuple[Iterator[tuple[dict[str, str], str | None]], dict[int, str | None]]:
    """Return the hash and the spec of each job, and the reply of ``listing.lua`` by job, all read in one step."""
    pipe = store.client.pipeline(transaction=True)
    ask_entries(pipe, ids)
    for first in range(0, len(ids), MOST_JOBS):
        store.scripts.add(pipe, "listing", *ids[first : first + MOST_JOBS])
    answers = pipe.execute()
    entries, details = answers[: 2 * len(ids)], answers[2 * len(ids) :]
    return entries_in(store, entries), dict(zip(ids, itertools.chain(*details), strict=True))


def with_reasons(store: Store, jobs: list[Job], details: Mapping[int, str | None]) -> list[Job]:
    """Return *jobs*, with a precise reason for those that wait for a device. *details* are from ``listing.lua``."""
    found = dict(details)
    unknown = [job for job in jobs if job.reason is WaitReason.MEMORY and found.get(job.id) is None]
    unknown.sort(key=lambda job: (job.spec.account.name, str(job.spec.shape)))  # one call judges equal jobs once
    while unknown:
        asked = [job.id for job in unknown[:MOST_JOBS]]
        found.update(zip(asked, store.scripts.run("listing", *asked), strict=True))
        unknown = [job for job in unknown if found.get(job.id) is None]

    def precise(job: Job) -> Job:
        reason = found.get(job.id) if job.reason is WaitReason.MEMORY else None
        return replace(job, reason=WaitReason(reason)) if reason and not reason.isdecimal() else job

    return list(map(precise, jobs))
