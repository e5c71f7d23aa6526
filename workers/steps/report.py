"""The last step: reports the conclusion about a run to the store, and settles the run directory."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from gpuqueue.model.job import JobState, WaitReason
from gpuqueue.model.run import EndingKind, state_after
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.queue.lease import Again
from gpuqueue.settings.settings import Settings
from workers.measure.active_runs import LiveRun, LiveRuns
from workers.run import deliveries
from workers.run.start_health import NO_START, StartHealth
from workers.run.verdict import host_refused
from workers.services.adoption import Adoption
from workers.steps.conclusion import Conclusion, NotStarted, answered
from workers.threads import SteadyEvent

log = logging.getLogger(__name__)

#: Outcome of a run whose claim was released, cancelled or stale.
NOT_STARTED = "not started"


class Report:
    """Reports the ends of one worker's runs. Each report is repeated until the store answers."""

    def __init__(
        self,
        settings: Settings,
        queue: JobQueue,
        runs: LiveRuns,
        start_health: StartHealth,
        adoption: Adoption,
        stopping: SteadyEvent,
    ) -> None:
        self._settings = settings
        self._queue = queue
        self._runs = runs
        self._start_health = start_health
        self._adoption = adoption
        self._stopping = stopping

    def report(self, run: LiveRun, conclusion: Conclusion | NotStarted) -> str:
        """Report the end of *run*, and return its outcome in a word or two for the log and for Celery.

        Raises:
            Detached: The worker stops before the store answers.

        """
        if isinstance(conclusion, NotStarted):
            return self._release(run, conclusion)
        if conclusion.ending.kind is EndingKind.LOST:
            return self._lose(run, conclusion)
        return self._finish(run, conclusion)

    def _release(self, run: LiveRun, refusal: NotStarted) -> str:
        """Release the claim of a run that started no process. The release does not count as an attempt."""
        why = str(refusal)
        if refusal.host_failed:
            self._start_health.failed(f"{NO_START}: {host_refused(why) or why}")
            why = f"it could not be started on {self._settings.host}: {why}"
        log.warning("%s does not start: %s", run, why)
        if refusal.host_lacks is not None:
            exclude = partial(self._queue.runs.exclude_host, run.held.job_id, run.held.token, why)
            answered(partial(exclude, evidence=refusal.host_lacks), self._stopping)
        elif not refusal.stale:
            answered(lambda: self._queue.runs.release_claim(run.held.job_id, run.held.token, why), self._stopping)
        deliveries.remove(self._settings, deliveries.Delivery(job_id=run.held.job_id, token=run.held.token))
        run.directory.discard()
        return NOT_STARTED

    def _lose(self, run: LiveRun, conclusion: Conclusion) -> str:
        held, limit, detail = run.held, self._settings.loss_limit, conclusion.ending.detail
        lose = partial(self._queue.runs.lose, held.job_id, held.token, loss_limit=limit, detail=detail)
        state = answered(partial(lose, evidence=conclusion.evidence), self._stopping)
        log.warning("%s was lost: %s; the job is %s now", run, detail, state or "no longer ours")
        run.directory.settle()
        return "lost"

    def _finish(self, run: LiveRun, conclusion: Conclusion) -> str:
        held, ending = run.held, conclusion.ending
        again = Again(reason=WaitReason.RETRY) if ending.kind is EndingKind.PREEMPTED else None
        state = state_after(ending, is_probe=held.probe is not None) if again is None else JobState.QUEUED
        run.hear_start()
        note = partial(self._queue.runs.note, held.job_id, held.token)
        # Each call is one try: the heartbeats, which send notes too, must not wait until the store is back.
        answered(lambda: run.send_notes(note), self._stopping)
        finish = partial(
            self._queue.runs.finish,
            held.job_id,
            held.token,
            state=state,
            ending=ending,
            duration_s=conclusion.duration_s,
            devices=conclusion.devices,
            peak_at_once_bytes=run.at_once_bytes,
            notes=conclusion.notes,
            values=conclusion.values,
            evidence=conclusion.evidence,
            again=again,
            shortage=conclusion.shortage,
            is_long=self._is_long(conclusion.duration_s),
        )
        after = answered(lambda: finish() or self._finish_if_adopted(run, finish), self._stopping)
        log.info("%s: %s (%s)", run, after or "stale, the result changes nothing", ending)
        if after is None:
            run.directory.settle()
            return "stale"
        self._keep(run)
        return str(after)

    def _is_long(self, duration_s: float | None) -> bool:
        """Return whether a run took so long that a requeue after it does not count."""
        least_s = self._settings.requeue_free_after_s
        return least_s is not None and duration_s is not None and duration_s >= least_s

    def _finish_if_adopted(self, run: LiveRun, finish: Callable[[], JobState | None]) -> JobState | None:
        """Offer a run that the store calls stale, and report its end if the store takes the run back.

        A store that lost its data does not know the run until a worker offers it. Return the job's state, or None if
        the run is stale.
        """
        state = self._adoption.offer(run)
        return state if state is None or state.is_end else finish()

    def _keep(self, run: LiveRun) -> None:
        """Keep the run's files until the history has the end. Errors are only logged: the store already has the end."""
        self._runs.report(run)
        try:
            run.directory.report()
            if run.was_seen:  # a run that ended before the first sample has no figures to keep
                run.directory.keep_meters(run.figures())
        except OSError as error:  # the next worker reports the end again, which changes nothing
            log.warning("%s: it cannot be noted that its end was reported: %s", run, error)
