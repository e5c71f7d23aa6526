"""Requests: submit a job, or edit one that waits."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from gpuqueue.clock import from_epoch_ms
from gpuqueue.codec import decode_spec, encode_spec
from gpuqueue.errors import BadRequest, Impossible, Refused
from gpuqueue.lazy.imports import later
from gpuqueue.model.array import Indexes, Member, Tally
from gpuqueue.model.device import Device
from gpuqueue.model.job import Job, JobState, WaitReason
from gpuqueue.model.job_spec import JobSpec
from gpuqueue.queue import dependency_args
from gpuqueue.queue import job_fields as stored
from gpuqueue.queue.changes import not_yours
from gpuqueue.queue.entries import read_entries
from gpuqueue.queue.store import Store, answering
from gpuqueue.queue.submit_errors import Found, Unknown, whole_array_only
from gpuqueue.text.sanitize import plain

if TYPE_CHECKING:
    import hashlib

    from gpuqueue.queue import devices, refusals, replies
else:
    hashlib = later("hashlib")
    devices = later("gpuqueue.queue.devices")
    refusals = later("gpuqueue.queue.refusals")
    replies = later("gpuqueue.queue.replies")

#: How often an id is taken for a job whose last one has expired: the store lost its data, or this process stood still.
TRIES = 3
#: Reasons of a new job that is in a queue. A job with another reason may not start yet.
_IN_QUEUE = frozenset({WaitReason.MEMORY, WaitReason.DEVICE, WaitReason.LIMIT})


def new_nonce() -> str:
    """Return 48 random bits as hexadecimal digits."""
    return os.urandom(6).hex()


class Requests:
    """What users ask for: submit a job, or edit one that waits."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @answering
    def submit(
        self,
        spec: JobSpec,
        *,
        nonce: str | None = None,
        ends: Mapping[int, bool] | None = None,
        sign: Callable[[JobSpec, int], JobSpec] | None = None,
    ) -> Job:
        """Queue *spec* and return the job. Repeated calls with the same *nonce* make only one job.

        If no device of the required kind is known yet, the job waits with the reason DEVICE. *ends* says which of the
        job's dependencies have ended and are forgotten in the store, and whether they succeeded. A job without a time
        limit gets the default of its pool. *sign* returns the spec with a ticket for the id of the job.

        Raises:
            Impossible: no known device could ever run the job, or a dependency has ended in the wrong way.
            Refused: a limit leaves no room for the job, now or ever, or the user may not use this priority.
            Unknown: the store does not know some of the dependencies.
            Found: a job of this user with the same dedupe key waits or runs.

        """
        nonce = nonce or new_nonce()
        verdict, *rest = self._asked(spec, nonce, ends, sign)
        if verdict == "default":
            spec = replace(spec, time_limit_s=int(rest[0]) / 1000)
            verdict, *rest = self._asked(spec, nonce, ends, sign)
        if verdict == "found":
            raise Found(int(rest[0]))
        _refuse(spec, verdict, rest, lambda: devices.known_devices(self._store))
        job_id, submitted_ms, why = rest
        reason = WaitReason(why or WaitReason.MEMORY)
        return Job(
            id=int(job_id),
            spec=spec,
            state=JobState.HELD if spec.waits.hold else JobState.QUEUED,
            submitted_at=from_epoch_ms(int(submitted_ms)),
            reason=reason,
            begins_at=None if reason in _IN_QUEUE else spec.waits.begin_at,
            tags=spec.tags,
            tally=Tally(left=spec.array.indexes, held=Indexes(), ended={}) if spec.array else None,
        )

    def _asked(
        self,
        spec: JobSpec,
        nonce: str,
        ends: Mapping[int, bool] | None,
        sign: Callable[[JobSpec, int], JobSpec] | None,
    ) -> list[str]:
        words = (spec.account.name, int(spec.priority), spec.mem_bytes, str(spec.shape), int(spec.requeue))
        waits = dependency_args.asked(spec, ends)
        reply: list[str] = []
        for _ in range(TRIES):
            job_id = "" if sign is None else self._store.scripts.run("take_ids", _members(spec))
            signed = spec if sign is None else sign(spec, int(job_id))
            reply = self._store.scripts.run("submit", *words, encode_spec(signed), nonce, waits, job_id)
            if reply != ["expired"]:
                break
        return reply

    @answering
    def edit(
        self,
        job_id: int,
        change: Callable[[JobSpec], JobSpec],
        *,
        priority: bool = False,
        after: bool = False,
        begin: bool = False,
        time: bool = False,
        ends: Mapping[int, bool] | None = None,
        by: str = "",
    ) -> JobState | None:
        """Change the request of a waiting job, which keeps its place; return its state, None if it is unknown.

        *priority*, *after* and *begin* say which of these *change* changes. Without *priority*, a promoted job stays
        promoted. Without *after* and *begin*, the job does not wait again for conditions that are over.

        *time* says that the time limit was given, even if it was given as none. Without it, a job that moves to another
        pool and has no time limit gets the default of that pool, as at submit. A time limit that was not given is
        checked only against a new pool.

        *ends*: see :meth:`submit`. *by* is the calling account, empty for the queue itself.

        Raises:
            Refused: the job runs or has ended, *by* may not change it, it waits for a retry beyond the new number of
                retries, a limit refuses it, or its user may not use the priority.
            Unreadable: the request of the job cannot be read.
            BadRequest: the job would wait for itself.
            Impossible, Unknown: see :meth:`submit`; nothing was changed.

        """

        def ask(known: str, spec: JobSpec, *, other: bool) -> Sequence[str]:
            digest = hashlib.sha1(known.encode(), usedforsecurity=False).hexdigest()
            words = (int(spec.priority) if priority else "", spec.mem_bytes, str(spec.shape), encode_spec(spec))
            flags = (int(after), int(begin), int(time), int(other), dependency_args.asked(spec, ends))
            reply: Sequence[str] = self._store.scripts.run("edit", job_id, digest, *words, *flags, by) or ("changed",)
            return reply

        while True:
            fields, payload = next(read_entries(self._store, [job_id]))
            if not fields:
                return None
            before = replies.in_force(decode_spec(payload), fields)
            spec = change(before)
            other = _but_for_at_once(spec) != _but_for_at_once(before)
            known = f"{payload or ''}{fields[stored.MEM_BYTES] if stored.MEM_RETRIES in fields else ''}"
            verdict, *rest = ask(known, spec, other=other)
            if verdict == "default":
                spec = replace(spec, time_limit_s=int(rest[0]) / 1000)
                verdict, *rest = ask(known, spec, other=True)
            if verdict != "changed":  # otherwise another edit came first: repeat with its result
                _refuse_edit(job_id, verdict, rest)
                _refuse(spec, verdict, rest, lambda: devices.known_devices(self._store))
                return JobState(verdict)


def _but_for_at_once(spec: JobSpec) -> JobSpec:
    """Return *spec* without the concurrency limit of its array."""
    return spec if spec.array is None else replace(spec, array=replace(spec.array, at_once=None))


def _members(spec: JobSpec) -> int:
    """Return how many ids the members of an array take; 0 for a job that is none."""
    return 0 if spec.array is None else spec.array.indexes.ranges[-1][-1] + 1


def only_waiting(job_id: int, state: JobState) -> Refused:
    """Return the error for an edit of a job that does not wait, with what to do instead."""
    anew = f"gpuqueue retry {job_id} --mem 8G"
    first = "" if state.is_end else f"gpuqueue cancel {job_id}, then "
    return Refused(
        f"job {job_id} {state.in_words}: only a job that waits can be edited; to run it with other options: "
        f"{first}{anew}"
    )


def _refuse_edit(job_id: int, verdict: str, rest: Sequence[str]) -> None:
    """Raise the error of a refused edit, if it is one that a submit cannot have."""
    if verdict == "of":
        raise not_yours(job_id, rest[0])
    if verdict == "unchanged":
        raise only_waiting(job_id, JobState(rest[0]))
    if verdict == "begun":
        raise Refused(
            f"job {job_id} is an array that has begun, or a member of one: only --at-once can be changed. For "
            "other changes cancel the waiting members, and submit them again"
        )
    if verdict == "granted":
        raise Refused(
            f"job {job_id} waits for its retry {rest[0]} already: gpuqueue cancel {job_id} if it must not run again, "
            f"or --retries {rest[0]} to make this the last one"
        )
    if verdict == "circle":
        other = f"job {rest[0]} waits for it" if int(rest[0]) != job_id else "it is that job"
        raise BadRequest(f"job {job_id} cannot come after job {rest[0]}: {other}")
    if verdict == "tangled":
        raise BadRequest(f"job {job_id} cannot come after jobs that wait for too many others")


def _refuse(
    spec: JobSpec, verdict: str, rest: Sequence[str], known: Callable[[], Sequence[tuple[Device, str]]]
) -> None:
    """Raise the error of a refused request, if any; *known* returns the known devices."""
    if verdict == "unknown":
        raise Unknown(tuple(map(int, rest)))
    if verdict == "member":
        raise whole_array_only(Member.of(int(rest[0]), int(rest[1])))
    if verdict == "never":
        job_id, how = rest
        ended = "succeeded" if how == "ok" else "failed, or was cancelled"
        raise Impossible(f"job {job_id} {ended}: its condition for the start of this job can never be met")
    if verdict == "impossible":
        why, figure = rest
        if why == "urgent":
            raise Refused(
                f"{plain(spec.account.name)} may not use the priority urgent here: use --priority high, or ask "
                "an administrator of this site (setting urgent)"
            )
        raise Impossible(refusals.why_impossible(spec, why, int(figure), known() if why in {"model", "pool"} else ()))
    if verdict == "expired":
        raise Refused("the store forgets the ids of new jobs: see gpuqueue doctor, and submit again")
    if verdict == "limited":
        raise refusals.beyond_limit(spec, json.loads(rest[0]))
