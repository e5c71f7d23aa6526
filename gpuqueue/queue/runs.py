"""Runs of jobs, from the claim to the end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from gpuqueue.codec.request import encode_ended, encode_started
from gpuqueue.lazy.imports import later
from gpuqueue.model.job import JobState
from gpuqueue.queue import job_fields as stored
from gpuqueue.queue import keys
from gpuqueue.queue.changes import state_in
from gpuqueue.queue.store import Store, answering, to_ms
from gpuqueue.text.sanitize import in_one_line, short

if TYPE_CHECKING:
    from gpuqueue.model import event as events
    from gpuqueue.model.job_values import JobValues
    from gpuqueue.model.mem_source import Shortage
    from gpuqueue.model.run import Ending, RunDevice, RunNote
    from gpuqueue.model.run_mark import MarkKind
    from gpuqueue.queue import lease as leases
    from gpuqueue.queue import recovery, replies
    from gpuqueue.queue.evidence import Evidence
    from gpuqueue.queue.lease import Again, Claim, Later, Offer, Stray
else:
    events = later("gpuqueue.model.event")
    leases = later("gpuqueue.queue.lease")
    replies, recovery = later("gpuqueue.queue.replies"), later("gpuqueue.queue.recovery")

#: Maximum length of the reason for a quick death, in characters; one line holds three of them.
MAX_WHY = 100
#: Maximum length of the reason why a host cannot start a job, in characters.
MAX_REASON = 300


class Runs:
    """The runs of jobs: claim a job, start it, note, end it. Each write carries the token of its run."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @answering
    def claim(self, offer: Offer, *, worker: str, lease_s: float, nonce: str, gpus_here: bool = False) -> Claim | None:
        """Claim the next job for the device of *offer*, or return None; see :meth:`seek`."""
        found = self.seek(offer, worker=worker, lease_s=lease_s, nonce=nonce, gpus_here=gpus_here)
        return found if isinstance(found, leases.Claim) else None

    @answering
    def seek(
        self, offer: Offer, *, worker: str, lease_s: float, nonce: str, gpus_here: bool = False
    ) -> Claim | Later | None:
        """Claim the next job for the device of *offer*; return a Later if a job was left to a better device.

        A repeated call with the same *nonce* returns the same claim. *gpus_here* says whether the host serves GPUs,
        announced or not. If it does, its CPU takes no job without a device kind.

        Raises:
            BrokenClaim: a job was claimed, but its request cannot be read.

        """
        pairs = [figure for pair in offer.observed.items() for figure in pair]
        device = offer.device.uuid
        reply = self._store.scripts.run(
            "claim",
            offer.host,
            device,
            worker,
            to_ms(lease_s),
            offer.counted_bytes,
            nonce,
            int(gpus_here),
            *pairs,
        )
        return replies.claim(reply)

    @answering
    def started(
        self,
        job_id: int,
        token: str,
        *,
        lease_s: float,
        log_path: str,
        devices: tuple[RunDevice, ...],
        limits: Mapping[str, int] | None = None,
    ) -> JobState | None:
        """Ask whether the claimed job may start: RUNNING yes, CANCELLING it was cancelled, None the claim is stale."""
        payload = encode_started(log_path=log_path, devices=devices, limits=limits)
        reply = self._store.scripts.run("started", job_id, token, to_ms(lease_s), payload)
        return {1: JobState.RUNNING, -1: JobState.CANCELLING}.get(int(reply))

    @answering
    def note(self, job_id: int, token: str, detail: str) -> bool:
        """Add *detail* to the history of a live run; return False if the run is stale."""
        return bool(self._store.scripts.run("run_note", job_id, token, in_one_line(detail)))

    @answering
    def mark(
        self,
        job_id: int,
        token: str,
        kind: MarkKind,
        *,
        stage: int,
        for_s: float,
        detail: str,
        what: str = "",
        low: bool = False,
    ) -> bool:
        """Mark a live run that has looked wrong for *for_s* seconds; stage 0 ends the mark.

        *what* is what the mark names, see :class:`gpuqueue.model.run_mark.RunMark`. With *low* its priority counts as
        low while it is marked. *detail* is for its owner. Returns whether the mark has changed: False also for a stale
        run.
        """
        words = (stage, to_ms(for_s), int(low), in_one_line(what), in_one_line(detail))
        return bool(self._store.scripts.run("run_mark", job_id, token, kind.value, *words))

    @answering
    def release_claim(self, job_id: int, token: str, detail: str) -> JobState | None:
        """Release a claim that did not become a run; return the job's state afterwards, None if the claim is stale."""
        return state_in(self._store.scripts.run("release_claim", job_id, token, in_one_line(detail)))

    @answering
    def exclude_host(self, job_id: int, token: str, why: str, *, evidence: Evidence | None = None) -> JobState | None:
        """Release a claim whose host cannot start the job, and exclude that host for the job.

        *why* is the reason, such as a missing directory. Return the job's state afterwards: HELD if no other host may
        run it; None if the claim is stale.
        """
        reason = short(why, MAX_REASON)
        _, against, cause = _words(evidence)
        reply = self._store.scripts.run("release_claim", job_id, token, in_one_line(why), reason, against, cause)
        return state_in(reply)

    @answering
    def finish(  # noqa: PLR0913 - everything known at the end, in one step
        self,
        job_id: int,
        token: str,
        *,
        state: JobState,
        ending: Ending,
        duration_s: float | None,
        devices: tuple[RunDevice, ...],
        peak_at_once_bytes: int | None = None,
        notes: tuple[RunNote, ...] = (),
        values: JobValues | None = None,
        evidence: Evidence | None = None,
        again: Again | None = None,
        shortage: Shortage | None = None,
        is_long: bool = False,
    ) -> JobState | None:
        """End a run with *ending* and its job in *state*; return the job's state afterwards, None if the run is stale.

        With *again*, *state* is QUEUED and the job waits for another run. This is not a loss, and the attempt counts.
        A job that is being cancelled is cancelled nevertheless, and a job that must not run twice fails. *evidence*
        about the devices is counted in the same step, so it counts once for each run. With the facts about a *shortage*
        of device memory, a failed job may be queued again in this step, with more memory. After a run that *is_long* a
        requeue by exit code 75 does not count towards the most.
        """
        payload = encode_ended(
            ending=ending,
            duration_s=duration_s,
            devices=devices,
            peak_at_once_bytes=peak_at_once_bytes,
            notes=notes,
            values=values,
            shortage=shortage,
            is_long=is_long,
        )
        more = () if again is None else (again.reason.value, to_ms(again.later_s))
        words = (state.value, payload, *_words(evidence), *more)
        return state_in(self._store.scripts.run("finish", job_id, token, *words))

    @answering
    def lose(
        self, job_id: int, token: str, *, loss_limit: int, detail: str, evidence: Evidence | None = None
    ) -> JobState | None:
        """Report a run as lost; return the job's state afterwards, None if the run is stale."""
        reply = self._store.scripts.run("lose", job_id, token, loss_limit, in_one_line(detail), *_words(evidence))
        return JobState(reply) if reply else None

    @answering
    def adopt(self, stray: Stray, *, lease_s: float) -> JobState | None:
        """Offer a run to a store that may have lost it; return the job's state, None if this is not its run (any more).

        The state is an end if the run has ended and the history has not recorded the end yet.
        """
        words = (stray.job_id, stray.token, to_ms(lease_s), *recovery.offered(stray))
        reply = self._store.scripts.run("adopt", *words)
        return JobState(reply) if reply else None

    @answering
    def park(self, job_id: int, token: str, *, lease_s: float) -> bool:
        """Protect a run that is left to its shim for *lease_s* seconds; return False if it is stale or cancelled."""
        return bool(self._store.scripts.run("park", job_id, token, to_ms(lease_s)))

    @answering
    def unrecorded(self, epoch: str, runs: Mapping[int, str]) -> dict[str, JobState] | None:
        """Return the states of the jobs with ended *runs* that the history has not recorded yet, by token.

        *runs* are tokens by job id. The state is FAILED for a run whose job was queued again. Returns None if the epoch
        of the store is not *epoch*, because such a store cannot know.
        """
        pipe = self._store.client.pipeline(transaction=True)
        pipe.get(keys.EPOCH)
        pipe.hget(keys.META, "recorded")
        for job_id in runs:
            pipe.hmget(keys.job(job_id), stored.TOKEN, stored.STATE, stored.PREVIOUS_TOKEN, stored.PREVIOUS_EVENT)
        now_epoch, recorded, *found = pipe.execute()
        if now_epoch != epoch:
            return None
        states = {}
        for token, (its_token, state, ended_token, event) in zip(runs.values(), found, strict=True):
            if token == its_token:
                states[token] = JobState(state)
            elif token == ended_token and events.place(event or "0-0") > events.place(recorded or "0-0"):
                states[token] = JobState.FAILED  # its job was queued again since
        return states


def _words(evidence: Evidence | None) -> tuple[int, str, str]:
    if evidence is None:
        return 0, "", ""
    return int(evidence.well), ",".join(evidence.against), short(evidence.why, MAX_WHY)
