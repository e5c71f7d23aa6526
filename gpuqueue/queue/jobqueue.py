"""The queue as Python sees it: one method for each script, with the same name."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gpuqueue.array import Indexes, Tally
from gpuqueue.clock import from_epoch_ms
from gpuqueue.codec import decode_spec, encode_ended, encode_spec, encode_started
from gpuqueue.device import Device
from gpuqueue.errors import BadRequest, Impossible, Refused, Unreadable
from gpuqueue.job import Job, JobSpec, JobState, WaitReason
from gpuqueue.later import later
from gpuqueue.queue import keys, waiting
from gpuqueue.queue.connect import answering
from gpuqueue.queue.fleet import Fleet
from gpuqueue.queue.matching import kind_word, takers, why_impossible
from gpuqueue.queue.outbox import Outbox
from gpuqueue.queue.recovery import Recovery
from gpuqueue.queue.ticks import Ticks
from gpuqueue.queue.unqueued import Found, Unknown
from gpuqueue.words import brief, in_one_line, short

if TYPE_CHECKING:
    import logging

    from gpuqueue.queue import lease as leases
    from gpuqueue.queue import limiting, replies, survivors
    from gpuqueue.queue.explanation import Explanation
    from gpuqueue.queue.lease import Again, Alive, Claim, Evidence, Later, Offer, Verdicts
    from gpuqueue.run import Ending, Record, RunDevice
else:
    logging = later("logging")
    leases = later("gpuqueue.queue.lease")
    limiting = later("gpuqueue.queue.limiting")
    replies = later("gpuqueue.queue.replies")
    survivors = later("gpuqueue.queue.survivors")

#: Longest word on why a run died at once, in characters; three of them stand in one line.
MAX_WHY = 100


#: Where a job stands that a change of mind reached.
_AIMS = {"cancel": ("cancelled", "cancelling"), "hold": ("held",), "release": ("queued",)}


@dataclass(frozen=True, kw_only=True, slots=True)
class Changed:
    """What a change of mind came to: where the job or the array stands now.

    Of an array, how many members it moved (None: it is none), and whether one of them still has to end.
    """

    state: JobState
    moved: int | None = None
    ending: bool = False


def new_nonce() -> str:
    """Return 48 random bits, as hexadecimal digits."""
    return os.urandom(6).hex()


class JobQueue(Recovery, Fleet, Outbox, Ticks):
    """The store at *url*. Every method raises StoreUnreachable or StoreNotReady when it cannot serve."""

    # ---- a job's way, in order -----------------------------------------------------------------------------------

    @answering
    def submit(self, spec: JobSpec, *, nonce: str | None = None, ends: Mapping[int, bool] | None = None) -> Job:
        """Queue *spec* and return the job. Sent twice with the same *nonce* it makes one job.

        Where no device is known that it may run on, it waits all the same, and its reason is DEVICE. *ends* is which of
        the jobs that it is to come after have ended and are forgotten here, and whether they succeeded.

        One that does not say how long it takes gets its pool's time limit.

        Raises:
            Impossible: no known device could ever run it, a job that it is to come after ended otherwise, or a limit
                never lets it.
            Refused: a limit leaves no room for it now.
            Unknown: jobs that it is to come after are not here.
            Found: a job of this user with its dedupe key waits or runs.

        """
        nonce = nonce or new_nonce()
        verdict, *rest = self._asked(spec, nonce, ends)
        if verdict == "default":
            spec = replace(spec, time_limit_s=int(rest[0]) / 1000)
            verdict, *rest = self._asked(spec, nonce, ends)
        if verdict == "found":
            raise Found(int(rest[0]))
        _refuse(spec, verdict, rest, self._known)
        job_id, submitted_ms, reason, aside = rest
        return Job(
            id=int(job_id),
            spec=spec,
            state=JobState.HELD if spec.waits.hold else JobState.QUEUED,
            submitted_at=from_epoch_ms(int(submitted_ms)),
            reason=WaitReason(aside or reason or WaitReason.MEMORY),
            begins_at=spec.waits.begin_at if aside else None,
            tally=Tally(left=spec.array.indexes, held=Indexes(), ended={}) if spec.array else None,
        )

    def _asked(self, spec: JobSpec, nonce: str, ends: Mapping[int, bool] | None) -> list[str]:
        words = (spec.account.name, int(spec.level), spec.mem_bytes, str(spec.shape), int(spec.requeue))
        reply: list[str] = self._scripts.run("submit", *words, encode_spec(spec), nonce, waiting.asked(spec, ends))
        return reply

    @answering
    def claim(self, offer: Offer, *, worker: str, lease_s: float, nonce: str, gpus_here: bool = False) -> Claim | None:
        """Claim the job that should run next on the device of *offer*, or None: as :meth:`seek`."""
        found = self.seek(offer, worker=worker, lease_s=lease_s, nonce=nonce, gpus_here=gpus_here)
        return found if isinstance(found, leases.Claim) else None

    @answering
    def seek(
        self, offer: Offer, *, worker: str, lease_s: float, nonce: str, gpus_here: bool = False
    ) -> Claim | Later | None:
        """Claim the job that should run next on the device of *offer*; say when to look again if one was left.

        The same *nonce* again gets the same answer. *gpus_here* is whether the host serves GPUs, be they announced
        yet or not: then its CPU leaves them the jobs that do not say.

        Raises:
            BrokenClaim: a job was claimed whose request cannot be read.

        """
        pairs = [figure for pair in offer.observed.items() for figure in pair]
        device = offer.device.uuid
        reply = self._scripts.run(
            "claim",
            offer.host,
            device,
            worker,
            _ms(lease_s),
            offer.counted_bytes,
            nonce,
            int(gpus_here),
            *pairs,
        )
        return replies.claim(reply)

    @answering
    def started(
        self, job_id: int, token: str, *, lease_s: float, log_path: str, devices: tuple[RunDevice, ...]
    ) -> JobState | None:
        """Ask whether the claimed job may start: RUNNING yes, CANCELLING it was cancelled, None the claim is stale."""
        payload = encode_started(log_path=log_path, devices=devices)
        reply = self._scripts.run("started", job_id, token, _ms(lease_s), payload)
        return {1: JobState.RUNNING, -1: JobState.CANCELLING}.get(int(reply))

    @answering
    def beat(self, offer: Offer, alive: Sequence[Alive], *, lease_s: float) -> Verdicts:
        """Tell that a device and its runs are alive; renew the leases and hear what became of each run."""
        args = device_words(offer, lease_s=lease_s)
        for run in alive:
            args += [run.job_id, run.token, len(run.observed)]
            for device, observed in run.observed.items():
                args += [device, observed]
        verdicts = replies.verdicts(alive, self._scripts.run("beat", *args))
        self._tell_seen(offer)
        return verdicts

    @answering
    def note(self, job_id: int, token: str, detail: str) -> bool:
        """Keep *detail* in the story of a live run; False if it was stale."""
        return bool(self._scripts.run("note", job_id, token, in_one_line(detail)))

    @answering
    def giveback(self, job_id: int, token: str, detail: str) -> bool:
        """Return a claim that did not become a run; False if it was stale."""
        return bool(self._scripts.run("giveback", job_id, token, in_one_line(detail)))

    @answering
    def finish(  # noqa: PLR0913 - all that is known at an end, told in one step
        self,
        job_id: int,
        token: str,
        *,
        state: JobState,
        ending: Ending,
        duration_s: float | None,
        devices: tuple[RunDevice, ...],
        peak_at_once_bytes: int | None = None,
        evidence: Evidence | None = None,
        again: Again | None = None,
    ) -> JobState | None:
        """End a job in *state* after its run ended with *ending*; return its state after, None if the run was stale.

        With *again*, for which *state* is QUEUED, the job waits for another run. That is no loss, and its attempts are
        counted on. One that is being cancelled is cancelled all the same, and one that must not run twice has failed.
        What the end says of the devices is counted in the same step, and so once for each run.
        """
        payload = encode_ended(
            ending=ending, duration_s=duration_s, devices=devices, peak_at_once_bytes=peak_at_once_bytes
        )
        more = () if again is None else (again.reason.value, _ms(again.later_s))
        return _state(self._scripts.run("finish", job_id, token, state.value, payload, *_words(evidence), *more))

    @answering
    def lose(
        self, job_id: int, token: str, *, loss_limit: int, detail: str, evidence: Evidence | None = None
    ) -> JobState | None:
        """Say that a run is over and nobody knows how; return the job's state after, None if the run was stale."""
        reply = self._scripts.run("lose", job_id, token, loss_limit, in_one_line(detail), *_words(evidence))
        return JobState(reply) if reply else None

    # ---- change of mind ------------------------------------------------------------------------------------------

    @answering
    def cancel(self, job_id: int) -> JobState | None:
        """End a job; return its state after, None if it is unknown here."""
        return _state_of(self.change("cancel", job_id))

    @answering
    def hold(self, job_id: int) -> JobState | None:
        """Keep a queued job from being claimed; return its state after, None if it is unknown here."""
        return _state_of(self.change("hold", job_id))

    @answering
    def release(self, job_id: int) -> JobState | None:
        """Let a held job be claimed again; return its state after, None if it is unknown here."""
        return _state_of(self.change("release", job_id))

    @answering
    def change(self, act: str, job_id: int) -> Changed | None:
        """Cancel, hold or release a job, or all of an array; None if it is unknown here."""
        reply = self._scripts.run(act, job_id)
        if reply == "array":
            return self.part(job_id, act)
        state = _state(reply)
        return None if state is None else Changed(state=state)

    @answering
    def part(self, array_id: int, act: str, part: Indexes | None = None) -> Changed | None:
        """Cancel, hold or release an array, or a *part* of it; None if it is unknown here.

        Its members that no device took yet are moved in one step, the others one by one after it.
        """
        reply = self._scripts.run("part", array_id, act, "" if part is None else str(part))
        if not reply:
            return None
        state, moved, *others = reply
        answers = self._scripts.run_each(act, [(each,) for each in others])
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        reached = sum(answer in _AIMS[act] for answer in answers)
        after = self._redis.hget(keys.job(array_id), "st") if others else state
        return Changed(state=JobState(after or state), moved=int(moved) + reached, ending="cancelling" in answers)

    @answering
    def edit(
        self,
        job_id: int,
        change: Callable[[JobSpec], JobSpec],
        *,
        level: bool = False,
        after: bool = False,
        begin: bool = False,
        ends: Mapping[int, bool] | None = None,
    ) -> JobState | None:
        """Change the request of a job that waits; return its state, None if it is unknown here. It keeps its place.

        *level*, *after* and *begin* tell which of these *change* changes: a job that waiting has lifted stays where it
        is otherwise, one that has waited for an end or its time does not begin anew. *ends*: see :meth:`submit`.

        Raises:
            Refused: it runs or has ended.
            Unreadable: its request cannot be read.
            BadRequest: it would wait for itself.
            Impossible, Unknown: see :meth:`submit`; nothing was changed.

        """
        while True:
            fields, payload = next(self._entries([job_id]))
            if not fields:
                return None
            spec = change(decode_spec(payload))
            digest = hashlib.sha1((payload or "").encode(), usedforsecurity=False).hexdigest()
            verdict, *rest = self._scripts.run(
                "edit",
                job_id,
                digest,
                int(spec.level) if level else "",
                spec.mem_bytes,
                str(spec.shape),
                encode_spec(spec),
                int(after),
                int(begin),
                waiting.asked(spec, ends),
            ) or ("changed",)
            if verdict != "changed":  # else somebody else was faster: what they made of it is changed
                _refuse_edit(job_id, verdict, rest)
                _refuse(spec, verdict, rest, self._known)
                return JobState(verdict)

    # ---- looking -------------------------------------------------------------------------------------------------

    @answering
    def get(self, job_id: int) -> Job | None:
        """Return the job as it stands, or None if the queue does not know it (any more).

        Raises:
            Unreadable: the store knows it, but its entry makes no sense.

        """
        fields, spec = next(self._entries([job_id]))
        return self._with_reasons([replies.job(job_id, fields, spec)])[0] if fields else None

    @answering
    def record(self, job_id: int) -> Record | None:
        """Return the job with its current or last run, as far as the store tells; None if it does not know it."""
        fields, spec = next(self._entries([job_id]))
        found = survivors.survivor(job_id, fields, spec) if fields else None
        return None if found is None else found.record

    @answering
    def why(self, job_id: int) -> Explanation | None:
        """Return why a job does not run, by the rules and figures of a claim; None if the queue does not know it."""
        reply = self._scripts.run("why", job_id)
        return replies.explanation(job_id, reply) if reply else None

    @answering
    def live(self, *, limit: int = 1000, after: int = 0) -> list[Job]:
        """Return at most *limit* jobs that the book has not taken over, oldest first, from above the id *after*.

        A job whose entry makes no sense does not hide the others; it is told in the log.
        """
        return self.page(limit=limit, after=after)[0]

    @answering
    def page(self, *, limit: int = 1000, after: int = 0) -> tuple[list[Job], int | None]:
        """Return what :meth:`live` returns, and the id to go on *after*, None where there are no more."""
        ids = self._live_ids(after, limit)
        found = []
        for job_id, (fields, spec) in zip(ids, self._entries(ids), strict=True):
            try:
                if fields:
                    found.append(replies.job(int(job_id), fields, spec))
            except Unreadable as error:
                logging.getLogger(__name__).warning("%s", error)
        return self._with_reasons(found), int(ids[-1]) if ids else None

    def _with_reasons(self, jobs: list[Job]) -> list[Job]:
        """Return *jobs*; of those that wait, say which wait for something else than memory."""
        if all(job.reason is not WaitReason.MEMORY for job in jobs):
            return jobs
        devices, drained = self._known(), self._drained()
        others = WaitReason.PAUSE if self.pause_left_s() else WaitReason.MEMORY
        limits = self.limits()
        uses = self.uses() if limits.users or limits.groups else {}

        def reason(job: Job) -> WaitReason | None:
            if job.reason is not WaitReason.MEMORY:
                return job.reason
            found = takers(job.spec, devices)
            if not found:
                return WaitReason.DEVICE
            if drained.issuperset(found):
                return WaitReason.DRAINED
            return WaitReason.LIMIT if limits.over(job.spec.account.name, limiting.use_of(job.spec), uses) else others

        return [replace(job, reason=reason(job)) for job in jobs]

    @answering
    def counts(self) -> tuple[int, int]:
        """Return how many jobs wait (queued or held), and how many hold a device."""
        pipe = self._redis.pipeline(transaction=True)
        pipe.zcard(keys.LIVE)
        pipe.zcard(keys.LEASES)
        pipe.zcard(keys.ENDED)
        live, active, ended = pipe.execute()
        return live - active - ended, active

    @answering
    def anybody(self) -> bool:
        """Return whether any worker ever announced a device that was not withdrawn."""
        return bool(self._redis.hlen(keys.FACTS))


def device_words(offer: Offer, *, lease_s: float) -> list[str | int]:
    """Return what a beat says of the device itself: the first arguments of ``beat.lua``."""
    return [
        offer.host,
        offer.device.uuid,
        offer.device.total_bytes,
        offer.headroom_bytes,
        offer.counted_bytes,
        offer.slots,
        offer.pool,
        kind_word(offer.device),
        _ms(lease_s),
    ]


def _ms(duration_s: float) -> int:
    return round(duration_s * 1000)


def _refuse_edit(job_id: int, verdict: str, rest: Sequence[str]) -> None:
    """Raise what the queue has against an edit that it could not have against a submit."""
    if verdict == "stands":
        raise Refused(f"job {job_id} is {rest[0]}: only a job that waits can be edited")
    if verdict == "begun":
        raise Refused(
            f"job {job_id} is an array that has begun, or a member of one: cancel what waits and submit it anew"
        )
    if verdict == "circle":
        other = f"job {rest[0]} waits for it" if int(rest[0]) != job_id else "it is that job"
        raise BadRequest(f"job {job_id} cannot come after job {rest[0]}: {other}")
    if verdict == "tangled":
        raise BadRequest(f"job {job_id} cannot come after jobs that wait for so many others")


def _refuse(
    spec: JobSpec, verdict: str, rest: Sequence[str], known: Callable[[], Sequence[tuple[Device, str]]]
) -> None:
    """Raise what the queue has against a request, if anything; *known* are its devices."""
    if verdict == "unknown":
        raise Unknown(tuple(map(int, rest)))
    if verdict == "never":
        job_id, how = rest
        ended = "succeeded" if how == "ok" else "failed, or was cancelled"
        raise Impossible(f"job {job_id} {ended}: a job that is to come after it otherwise could never start")
    if verdict == "impossible":
        why, figure = rest
        raise Impossible(why_impossible(spec, why, int(figure), known() if why == "model" else ()))
    if verdict == "limited":
        whose, limit, used, most, asked = rest
        raise limiting.beyond_limit(spec, whose, limit, (int(used), int(most), int(asked)))


def _words(evidence: Evidence | None) -> tuple[int, str, str]:
    if evidence is None:
        return 0, "", ""
    return int(evidence.well), ",".join(evidence.against), short(evidence.why, MAX_WHY)


def _state_of(done: Changed | None) -> JobState | None:
    return None if done is None else done.state


def _state(reply: str) -> JobState | None:
    try:
        return JobState(reply) if reply else None
    except ValueError:
        raise Unreadable(f"the job is {brief(reply)} in the store, which this version does not know") from None
