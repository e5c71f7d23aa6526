"""The Python interface of the queue, with one method for each script."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpuqueue.codec import encode_ended, encode_started
from gpuqueue.lazy.imports import later
from gpuqueue.model.job import JobState
from gpuqueue.queue.changes import Changes, state_in
from gpuqueue.queue.connect import answering
from gpuqueue.queue.device_matching import kind_word
from gpuqueue.queue.outbox import Outbox
from gpuqueue.queue.requests import Requests
from gpuqueue.queue.senders import Senders
from gpuqueue.text.sanitize import in_one_line, short

if TYPE_CHECKING:
    import logging

    from gpuqueue.model.run import Ending, RunDevice
    from gpuqueue.queue import lease as leases
    from gpuqueue.queue import limit_matching, rebuild, replies
    from gpuqueue.queue.lease import Again, Alive, Claim, Evidence, Later, Offer, Verdicts
else:
    logging = later("logging")
    leases = later("gpuqueue.queue.lease")
    limit_matching = later("gpuqueue.queue.limit_matching")
    replies = later("gpuqueue.queue.replies")
    rebuild = later("gpuqueue.queue.rebuild")

#: Maximum length of the reason for a quick death, in characters; one line holds three of them.
MAX_WHY = 100


class JobQueue(Requests, Changes, Outbox, Senders):
    """The queue at *url*. Every method raises StoreUnreachable or StoreNotReady if the store cannot serve."""

    # ---- the life of a job, in order -----------------------------------------------------------------------------

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
    def heartbeat(self, offer: Offer, alive: Sequence[Alive], *, lease_s: float) -> Verdicts:
        """Send the heartbeat of a device and its runs; renew the leases and return the verdict on each run."""
        args = device_words(offer, lease_s=lease_s)
        for run in alive:
            args += [run.job_id, run.token, len(run.observed)]
            for device, observed in run.observed.items():
                args += [device, observed]
        verdicts = replies.verdicts(alive, self._scripts.run("heartbeat", *args))
        self._tell_seen(offer)
        return verdicts

    @answering
    def note(self, job_id: int, token: str, detail: str) -> bool:
        """Add *detail* to the history of a live run; return False if the run is stale."""
        return bool(self._scripts.run("run_note", job_id, token, in_one_line(detail)))

    @answering
    def release_claim(self, job_id: int, token: str, detail: str) -> bool:
        """Release a claim that did not become a run; return False if the claim is stale."""
        return bool(self._scripts.run("release_claim", job_id, token, in_one_line(detail)))

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
        evidence: Evidence | None = None,
        again: Again | None = None,
    ) -> JobState | None:
        """End a run with *ending* and its job in *state*; return the job's state afterwards, None if the run is stale.

        With *again*, *state* is QUEUED and the job waits for another run. This is not a loss, and the attempt counts.
        A job that is being cancelled is cancelled nevertheless, and a job that must not run twice fails. *evidence*
        about the devices is counted in the same step, so it counts once for each run.
        """
        payload = encode_ended(
            ending=ending, duration_s=duration_s, devices=devices, peak_at_once_bytes=peak_at_once_bytes
        )
        more = () if again is None else (again.reason.value, _ms(again.later_s))
        return state_in(self._scripts.run("finish", job_id, token, state.value, payload, *_words(evidence), *more))

    @answering
    def lose(
        self, job_id: int, token: str, *, loss_limit: int, detail: str, evidence: Evidence | None = None
    ) -> JobState | None:
        """Report a run as lost; return the job's state afterwards, None if the run is stale."""
        reply = self._scripts.run("lose", job_id, token, loss_limit, in_one_line(detail), *_words(evidence))
        return JobState(reply) if reply else None


def device_words(offer: Offer, *, lease_s: float) -> list[str | int]:
    """Return what a heartbeat reports about the device: the first arguments of ``heartbeat.lua``."""
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


def _words(evidence: Evidence | None) -> tuple[int, str, str]:
    if evidence is None:
        return 0, "", ""
    return int(evidence.well), ",".join(evidence.against), short(evidence.why, MAX_WHY)
