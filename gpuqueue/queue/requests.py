"""Requests: submit a job, edit one that waits, or give one more time."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from gpuqueue.clock import from_epoch_ms, to_epoch_ms
from gpuqueue.codec.request import decode_spec, encode_spec
from gpuqueue.errors import BadRequest, Impossible, JobNotFound, Refused
from gpuqueue.lazy.imports import later
from gpuqueue.model.array import Array, Indexes, Member, MemberEnds, Tally
from gpuqueue.model.dependencies import Dependency
from gpuqueue.model.device import Device
from gpuqueue.model.job import Job, JobState, WaitReason
from gpuqueue.model.job_spec import JobSpec
from gpuqueue.queue import job_fields as stored
from gpuqueue.queue.changes import not_yours
from gpuqueue.queue.entries import read_entries
from gpuqueue.queue.store import Store, answering, to_ms
from gpuqueue.text.sanitize import plain, short
from gpuqueue.text.units import format_duration

if TYPE_CHECKING:
    import hashlib

    from gpuqueue.queue import devices, refusals, replies
else:
    devices = later("gpuqueue.queue.devices")
    hashlib = later("hashlib")
    refusals = later("gpuqueue.queue.refusals")
    replies = later("gpuqueue.queue.replies")

#: Dependencies that have ended -> whether they succeeded; of an array that is followed, how its members ended.
Ends = Mapping[int, "bool | MemberEnds"]
#: Longest text of indexes in a message, in characters.
MAX_SHOWN = 40
#: How often an id is taken for a job whose last one has expired: the store lost its data, or this process stood still.
TRIES = 3
#: Reasons of a new job that is in a queue. A job with another reason may not start yet.
_IN_QUEUE = frozenset({WaitReason.MEMORY, WaitReason.DEVICE, WaitReason.NO_GPU, WaitReason.LIMIT})
#: Reasons of a job that waits for a time, as the history records them. A held job has another reason there.
_OF_ITS_TIME = {WaitReason.BEGIN, WaitReason.RETRY, WaitReason.REQUEUE}


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
        ends: Ends | None = None,
        sign: Callable[[JobSpec, int], JobSpec] | None = None,
        on_cpu: Callable[[], None] | None = None,
        taken: int | None = None,
    ) -> Job:
        """Queue *spec* and return the job. Repeated calls with the same *nonce* make only one job.

        If no device of the required kind is known yet, the job waits with the reason DEVICE. *ends* says which of the
        job's dependencies have ended and are forgotten in the store, and whether they succeeded; of an array that it
        follows, how the members have ended. A job without a time limit gets the default of its pool. *sign* returns
        the spec with a ticket for the id of the job. *on_cpu* is called if the job asks for no device kind and may run
        on a CPU, because no GPU was found. The job gets the id *taken* of :meth:`take_id`, by default a new one.

        Raises:
            TakenExpired: no job has the id *taken*, and none gets it any more.
            Impossible: no known device could ever run the job, or a dependency has ended in the wrong way.
            Refused: a limit leaves no room for the job, now or ever, or the user may not use this priority.
            Unknown: the store does not know some of the dependencies.
            Found: a job of this user with the same dedupe key waits or runs.

        """
        nonce = nonce or new_nonce()
        verdict, *rest = self._asked(spec, nonce, ends, sign, taken)
        if verdict == "default":
            spec = replace(spec, time_limit_s=int(rest[0]) / 1000)
            verdict, *rest = self._asked(spec, nonce, ends, sign, taken)
        if verdict == "expired" and taken is not None:
            raise TakenExpired(f"the id {taken} was taken too long ago")
        if verdict == "found":
            raise Found(int(rest[0]))
        _refuse(spec, verdict, rest, lambda: devices.known_devices(self._store))
        return _queued_job(spec, rest, on_cpu)

    @answering
    def submit_many(
        self,
        specs: Sequence[JobSpec],
        nonces: Sequence[str],
        *,
        sign: Callable[[JobSpec, int], JobSpec] | None = None,
        on_cpu: Sequence[Callable[[], None] | None],
    ) -> list[Job | None]:
        """Queue *specs* in their order, in one round trip, with *sign* in two; return the job of each.

        *on_cpu* has that of each, see :meth:`submit`. None stands for one that was not queued: :meth:`submit` with its
        nonce says why, or queues it after all.
        """
        ids: list[Any] = [""] * len(specs)
        if sign is not None:
            ids = self._store.scripts.run_each("take_ids", [(_members(spec.array),) for spec in specs], is_retried=True)
            if any(isinstance(job_id, Exception) for job_id in ids):
                return [None for _ in specs]
            specs = [sign(spec, int(job_id)) for spec, job_id in zip(specs, ids, strict=True)]
        words = [_submit_words(*one) for one in zip(specs, nonces, ids, strict=True)]
        replied = zip(specs, self._store.scripts.run_each("submit", words, is_retried=True), on_cpu, strict=True)
        return [_queued_job(spec, reply[1:], note) if _is_queued(reply) else None for spec, reply, note in replied]

    def _asked(
        self,
        spec: JobSpec,
        nonce: str,
        ends: Ends | None,
        sign: Callable[[JobSpec, int], JobSpec] | None,
        taken: int | None,
    ) -> list[str]:
        reply: list[str] = []
        for _ in range(TRIES):
            job_id: int | str = "" if taken is None else taken
            if taken is None and sign is not None:
                job_id = self._store.scripts.run("take_ids", _members(spec.array))
            signed = spec if sign is None else sign(spec, int(job_id))
            reply = self._store.scripts.run("submit", *_submit_words(signed, nonce, job_id, ends))
            if reply != ["expired"] or taken is not None:
                break
        return reply

    @answering
    def take_id(self, array: Array | None) -> int:
        """Take the id of a job that is submitted within a minute, and those of the members of its *array*.

        An id that is taken and not used is never used again.
        """
        return int(self._store.scripts.run("take_ids", _members(array)))

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
        ends: Ends | None = None,
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
            flags = (int(after), int(begin), int(time), int(other), waits_words(spec, ends))
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

    @answering
    def extend(self, job_id: int, added_s: float, *, by: str = "") -> JobState | None:
        """Add to the time limit of a job that has started, and has one; return its state, None if it is unknown.

        If the state is another than starting or running, nothing was changed. *by*: see :meth:`edit`.

        Raises:
            Refused: *by* may not change the job, or is its owner and adds more than the site permits.
            BadRequest: the new limit is out of range.

        """
        while True:
            fields, payload = next(read_entries(self._store, [job_id]))
            if not fields:
                return None
            before = decode_spec(payload)
            longer_s, extended_s = (before.time_limit_s or 0.0) + added_s, before.extended_s + added_s
            spec = replace(before, time_limit_s=longer_s, extended_s=extended_s)
            digest = hashlib.sha1((payload or "").encode(), usedforsecurity=False).hexdigest()
            words = (to_ms(longer_s), spec.shape.time_limit_s, encode_spec(spec), to_ms(extended_s), by)
            verdict, *rest = self._store.scripts.run("extend", job_id, digest, *words) or ("gone",)
            if verdict == "of":
                raise not_yours(job_id, rest[0])
            if verdict == "limited":
                raise refusals.beyond_limit(spec, json.loads(rest[0]))
            if verdict == "much":
                raise _beyond_extension(job_id, int(rest[0]) / 1000, before.extended_s)
            if verdict != "changed":  # otherwise another change came first: repeat with its result
                return None if verdict == "gone" else JobState(rest[0] if rest else verdict)


def _submit_words(
    spec: JobSpec, nonce: str, job_id: int | str, ends: Ends | None = None
) -> tuple[str | int | float, ...]:
    """Return the arguments of ``submit.lua``."""
    words = (spec.account.name, int(spec.priority), spec.mem_bytes, str(spec.shape), int(spec.requeue))
    return (*words, encode_spec(spec), nonce, waits_words(spec, ends), job_id)


def _is_queued(reply: Any) -> bool:
    return isinstance(reply, list) and reply[0] == "queued"


def _queued_job(spec: JobSpec, reply: Sequence[str], on_cpu: Callable[[], None] | None) -> Job:
    """Return the job of *spec* that the store has queued, from the rest of its reply."""
    job_id, submitted_ms, why = reply
    if why == "cpu" and on_cpu is not None:
        on_cpu()
    reason = WaitReason.MEMORY if why in {"", "cpu"} else WaitReason(why)
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


def _beyond_extension(job_id: int, most_s: float, so_far_s: float) -> Refused:
    """Return the error for an owner who adds more time than the site permits."""
    most = f"may add {format_duration(most_s)} in all" if most_s else "may add no time"
    so_far = f", and {format_duration(so_far_s)} is added" if so_far_s else ""
    return Refused(
        f"the owner of a running job {most} here (setting extend){so_far}: add less, or ask an administrator of this "
        f"site for gpuqueue extend {job_id}"
    )


def not_extended(job: Job) -> Refused:
    """Return the error for a job whose time limit cannot be raised."""
    if job.state.is_end or job.state is JobState.CANCELLING:
        return Refused(f"job {job.label} {job.state.in_words}: only a job that waits or runs can be extended")
    if job.spec.array is not None or job.member is not None:
        return Refused(f"job {job.label} is an array, or a member of one: only a job of its own can be extended")
    return Refused(f"job {job.label} has no time limit: there is nothing to extend")


def _but_for_at_once(spec: JobSpec) -> JobSpec:
    """Return *spec* without the concurrency limit of its array, and without the ticket, which each edit renews."""
    array = None if spec.array is None else replace(spec.array, at_once=None)
    return replace(spec, array=array, ticket=None)


def _members(array: Array | None) -> int:
    """Return how many ids the members of an array take; 0 without one."""
    return 0 if array is None else array.indexes.ranges[-1][-1] + 1


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
        raise Unknown(tuple(map(int, rest)), followed=spec.waits.followed)
    if verdict == "unequal":
        raise unequal(spec, int(rest[0]), rest[1])
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


def waits_words(spec: JobSpec, ends: Ends | None = None) -> str:
    """Return how a requested job waits; *ends* says which dependencies have ended, and whether they succeeded.

    Raises:
        BadRequest: an array has other indexes than the one that it follows.

    """
    for job_id, ended in (ends or {}).items():
        if isinstance(ended, MemberEnds) and spec.array is not None and ended.indexes != spec.array.indexes:
            raise unequal(spec, job_id, str(ended.indexes))
    words = _words(spec, spec.waits.after, ends or {}, begin_at=spec.waits.begin_at)
    return " ".join([*words, "hold=1"] if spec.waits.hold else words)


def waits_words_left(job: Job, ends: Ends, *, again: WaitReason | None) -> str:
    """Return how a job of the history waits now, without conditions that are over; its counts continue.

    *again* is why the job runs again after its last run: RETRY, REQUEUE, or None for neither.
    """
    words = _words(job.spec, _others(job, ends), ends, begin_at=job.begins_at)
    why = job.reason if job.reason in _OF_ITS_TIME else again
    words += [f"why={why}"] if job.begins_at is not None and why is not None else []
    granted = job.attempt if again is WaitReason.RETRY else 0
    counts = (
        ("retries", job.retries),
        ("requeues", job.requeues),
        ("granted", granted),
        ("memretries", job.mem_retries),
    )
    return " ".join([*words, *(f"{name}={count}" for name, count in counts if count)])


def _others(job: Job, ends: Ends) -> Sequence[Dependency]:
    """Return the dependencies of a job of the history that may still be open.

    A job that has run has met its first dependencies. If its reason is DEPENDENCY, an edit has added new ones since
    then. A held job has another reason, so its dependencies that have not ended are open. Any other job that has run
    waits for none.
    """
    if not job.attempt or job.reason is WaitReason.DEPENDENCY:
        return job.spec.waits.after
    if job.state is JobState.HELD:
        return [each for each in job.spec.waits.after if each.job_id not in ends]
    return ()


def _words(spec: JobSpec, after: Sequence[Dependency], ends: Ends, *, begin_at: datetime | None) -> list[str]:
    words = []
    if after:
        words.append("after=" + ",".join(_dependency(each, ends) for each in after))
    for ended in (ends.get(each.job_id) for each in after):
        if isinstance(ended, MemberEnds):
            words += [f"{name}={some}" for name, some in (("good", ended.good), ("bad", ended.bad)) if some.ranges]
    if begin_at is not None:
        words.append(f"begin={max(0, to_epoch_ms(begin_at))}")
    if spec.waits.dedupe is not None:
        words.append(f"key={spec.waits.dedupe}")
    if spec.retries.times:
        words += [f"times={spec.retries.times}", f"on={','.join(map(str, spec.retries.on))}"]
    return words


def _dependency(wanted: Dependency, ends: Ends) -> str:
    ended = ends.get(wanted.job_id)
    if isinstance(ended, MemberEnds):  # its members that have not succeeded never will, if it is over
        return f"{wanted}:fail" if ended.is_over else str(wanted)
    return str(wanted) if ended is None else f"{wanted}:{'ok' if ended else 'fail'}"


class Found(Exception):
    """A job of this user with this dedupe key already waits or runs."""

    def __init__(self, job_id: int) -> None:
        super().__init__(f"job {job_id} has this dedupe key")
        self.job_id = job_id


class TakenExpired(Exception):
    """The id that was taken for a job can no longer be used: no job has it, and none will."""


class Unknown(JobNotFound):
    """Some dependencies are not in the queue: they never were, or they ended long ago.

    If one is *followed*, some of its members are not.
    """

    def __init__(self, job_ids: tuple[int, ...], followed: int | None = None) -> None:
        each = ", ".join(map(str, job_ids))
        super().__init__(f"there is no job {each} to wait for: see gpuqueue queue and gpuqueue history")
        self.job_ids, self.followed = job_ids, followed


def unequal(spec: JobSpec, job_id: int, indexes: str) -> BadRequest:
    """Return the error for an array that follows another one with other *indexes*, or a job that is none."""
    if not indexes or spec.array is None:
        return BadRequest(f"--after {job_id}:corr: job {job_id} is no array; --after {job_id} waits for it")
    own, its = short(str(spec.array.indexes), MAX_SHOWN), short(indexes, MAX_SHOWN)
    return BadRequest(
        f"--after {job_id}:corr is for arrays of the same indexes: job {job_id} has {its}, this one {own}"
    )


def whole_array_only(member: Member) -> BadRequest:
    """Return the error for a dependency on one array member, named by the id of its job."""
    return BadRequest(f"job {member.id} is {member}: a job can wait only for a whole array: write {member.array_id}")
