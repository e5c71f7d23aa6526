"""Submits the jobs of repeating jobs at their times, in the process of the service, or in the recorder of one person.

It acts as the owner of a repeating job with the rights that the owner has at that time, as if the owner had sent the
request again: so the service gains no right that it has not at a submit.

A time is dealt with in three steps: an id is taken for its job and noted in the history database, the job is submitted
with this id, and the next time is noted. Any number of services may do so, and each may be killed at any point: the
note of the first step is made once for each time, and no second job can have its id.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from contextlib import closing
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from gpuqueue.client import reads
from gpuqueue.client.connection import Connection
from gpuqueue.client.cron_times import next_time, passed
from gpuqueue.client.repeating import LATE_S, not_sealed, request_of
from gpuqueue.errors import GpuQueueError, JobNotFound, Unreachable
from gpuqueue.model.access import AccessPolicy
from gpuqueue.model.repeating import Missed, Repetition
from gpuqueue.queue.requests import TakenExpired
from gpuqueue.service.call import Call, Identity
from gpuqueue.service.new_jobs import repeated

if TYPE_CHECKING:
    from gpuqueue.client.signing import Signer
    from gpuqueue.clock import Clock
    from gpuqueue.settings.settings import Settings

log = logging.getLogger(__name__)

#: How often the history database is asked for times that have come, at least, in seconds.
POLL_S = 2.0
#: After this time a submit that another service has begun is finished here, in seconds: that one may have been killed.
LEFT_S = 10.0
#: The messages about times without a job.
DOWN = "nothing submitted repeating jobs then: the service was down, or the queue did not answer"
NO_PROOF = "its owner's account, or the access token by which it was added, is not valid any more"
NO_MORE = "no further time matches"


class Repeater:
    """Submits the jobs that are due. Use it in one thread."""

    def __init__(
        self,
        settings: Settings,
        identity: Identity,
        clock: Clock,
        signer: Signer | None = None,
        *,
        only_uid: int | None = None,
    ) -> None:
        """Submit for the owners that *identity* knows; with *only_uid*, for the one account of this uid."""
        self._identity, self._clock, self._signer, self._only_uid = identity, clock, signer, only_uid
        self._policy = AccessPolicy.parse(settings.admins, settings.access)
        self._connection = Connection(settings, signer=signer)
        #: Submits that were begun before, and since when they are known here, in seconds of the clock.
        self._begun: dict[tuple[str, int | None], float] = {}
        #: Whether the last turn has left something for the next one.
        self._has_left = False
        self._reported: str | None = None

    def loop(self, stopping: threading.Event) -> None:
        """Submit what is due until *stopping* is set."""
        with closing(self._connection):
            while not stopping.wait(self.pause_s()):
                self.turn()

    def pause_s(self) -> float:
        """Return how long to wait for the next turn: until the next time, at most ``POLL_S``."""
        if self._has_left:
            return POLL_S
        try:
            next_at = self._connection.database.next_repeating(uid=self._only_uid)
        except Unreachable as error:
            self._report(f"no repeating job is submitted for now: {error}")
            return POLL_S
        if next_at is None:
            return POLL_S
        return min(POLL_S, max(0.05, (next_at - self._clock.now()).total_seconds()))

    def turn(self) -> None:
        """Deal with all times that have come."""
        now = self._clock.now()
        try:
            found = self._connection.database.due_repeating(now=now, uid=self._only_uid)
        except Unreachable as error:
            self._has_left = True
            self._report(f"no repeating job is submitted for now: {error}")
            return
        begun = {(each.id, each.begun_job_id) for each in found if each.begun_job_id is not None}
        self._begun = {key: since_s for key, since_s in self._begun.items() if key in begun}
        trouble = None
        for kept in found:
            try:
                self._deal(kept, now)
            except Unreachable as error:
                trouble = f"the repeating job {kept.name} of {kept.owner.name} waits: {error}"
            except GpuQueueError as error:  # its request or its time zone cannot be read here
                self._stop(kept, str(error))
            except Exception:  # one repeating job must not keep the others from their times
                log.exception("the repeating job %s of %s failed", kept.name, kept.owner.name)
        self._has_left = trouble is not None or bool(self._begun)
        self._report(trouble)

    def _deal(self, kept: Repetition, now: datetime) -> None:
        if kept.begun_job_id is not None:
            self._finish_left(kept)
            return
        assert kept.next_at is not None  # noqa: S101 - the query says so
        count, last, before = passed(kept.times, kept.zone, kept.next_at, now)
        if not kept.catch_up and now - last > timedelta(seconds=LATE_S):
            self._settle(kept, last, missed=Missed(count=count, last_at=last, why=DOWN))
            return
        earlier = None if before is None else Missed(count=count - 1, last_at=before, why=DOWN)
        why = self._why_stopped(kept)
        if why is not None:
            self._stop(kept, why)
            return
        why = self._why_not_now(kept)
        if why is not None:
            self._settle(kept, last, missed=Missed(count=count, last_at=last, why=why))
            return
        self._begin(kept, last, earlier)

    def _why_stopped(self, kept: Repetition) -> str | None:
        """Return why *kept* must not go on, None if it may."""
        if self._signer is not None and not self._signer.is_sealed(kept):
            return f"{not_sealed(kept)}: remove it, and add it again"
        return NO_PROOF if self._call_of(kept) is None else None

    def _why_not_now(self, kept: Repetition) -> str | None:
        """Return why no job may start now, None if one may: the last one has ended."""
        if kept.overlap or kept.last_job_id is None:
            return None
        try:
            job = reads.get(self._connection, kept.last_job_id)
        except JobNotFound:
            return None
        return None if job.state.is_end else f"job {job.label} {job.state.in_words}"

    def _call_of(self, kept: Repetition) -> Call | None:
        """Return a call of the owner of *kept*, None if the owner's proof is not valid any more."""
        caller = self._identity.caller_of_repeating(kept.owner, kept.token_id)
        return None if caller is None else Call(caller, self._policy, self._connection, self._identity)

    def _begin(self, kept: Repetition, at: datetime, earlier: Missed | None) -> None:
        """Take an id for the job of the time *at*, and submit it, unless another service was faster."""
        job_id = self._connection.queue.requests.take_id(request_of(kept).array)
        if self._connection.database.begin_repeating(kept, at, job_id, earlier):
            self._finish(replace(kept, begun_at=at, begun_job_id=job_id))

    def _finish_left(self, kept: Repetition) -> None:
        """Finish a submit that was begun before, once its service has had time for it."""
        key, now_s = (kept.id, kept.begun_job_id), self._clock.monotonic_s()
        if now_s - self._begun.setdefault(key, now_s) < LEFT_S:
            return
        assert kept.begun_job_id is not None  # noqa: S101 - as the caller knows
        try:
            reads.get(self._connection, kept.begun_job_id)
        except JobNotFound:
            # As for a time that has come: a pause has begun it unseen, or somebody has written to the database.
            why = self._why_stopped(kept) or self._why_not_now(kept)
            if why is None or kept.begun_at is None:
                self._finish(kept)
            else:
                self._settle(kept, kept.begun_at, missed=Missed(count=1, last_at=kept.begun_at, why=why))
        else:
            self._settle(kept, kept.begun_at, job_id=kept.begun_job_id)

    def _finish(self, kept: Repetition) -> None:
        """Submit the job of the time that has begun, with the id that was taken for it."""
        assert kept.begun_at is not None  # noqa: S101 - it has begun
        assert kept.begun_job_id is not None  # noqa: S101 - as above
        call, at = self._call_of(kept), kept.begun_at
        if call is None:
            self._settle(kept, at, missed=Missed(count=1, last_at=at, why=NO_PROOF))
            return
        try:
            wanted, nonce = request_of(kept), _nonce(kept, at)
            job = repeated(call, wanted, name=kept.name, nonce=nonce, taken=kept.begun_job_id)
        except TakenExpired:  # nobody has submitted it in time
            job_id = self._connection.queue.requests.take_id(request_of(kept).array)
            self._connection.database.begin_repeating(kept, at, job_id, None)
            return
        except Unreachable:
            raise
        except GpuQueueError as error:
            log.warning("the repeating job %s of %s was refused: %s", kept.name, kept.owner.name, error)
            self._settle(kept, at, missed=Missed(count=1, last_at=at, why=str(error)))
            return
        self._settle(kept, at, job_id=job.id)

    def _settle(
        self, kept: Repetition, at: datetime | None, *, job_id: int | None = None, missed: Missed | None = None
    ) -> None:
        """Note what was done at the time *at*, and the next time."""
        next_at, stopped = None, kept.stopped
        if stopped is None and at is not None:
            is_later = kept.next_at is not None and kept.next_at > at  # resumed, or to run now, after it had begun
            next_at = kept.next_at if is_later else next_time(kept.times, kept.zone, at)
            stopped = NO_MORE if next_at is None else None
        self._connection.database.settle_repeating(kept, next_at=next_at, stopped=stopped, job_id=job_id, missed=missed)

    def _stop(self, kept: Repetition, why: str) -> None:
        log.warning("the repeating job %s of %s has stopped: %s", kept.name, kept.owner.name, why)
        self._connection.database.stop_repeating(kept.id, why)

    def _report(self, trouble: str | None) -> None:
        """Log each trouble once while it lasts."""
        if trouble is not None and trouble != self._reported:
            log.warning("%s", trouble)
        self._reported = trouble


def _nonce(kept: Repetition, at: datetime) -> str:
    """Return the key of the submit at the time *at*: the same key yields the same job."""
    return hashlib.sha256(f"repeating job {kept.id} {at.isoformat()}".encode()).hexdigest()
