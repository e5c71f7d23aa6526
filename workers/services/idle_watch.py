"""Marks the runs that do not use their devices, warns their owners, and does what the site has set for them."""

from __future__ import annotations

import logging

from gpuqueue.clock import Clock
from gpuqueue.model.run import NO_USE, EndingKind
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.settings.parsers import IdleAction
from gpuqueue.settings.settings import Settings
from gpuqueue.text.units import format_bytes, format_duration
from workers.measure.active_runs import LiveRun
from workers.measure.idle import Stage, last_warning_s, stage_of

log = logging.getLogger(__name__)

#: The words before the action of the site, and those when it is due.
_BEFORE = {IdleAction.END: "it is ended", IdleAction.LOWER_PRIORITY: "its priority counts as low"}
_DUE = {
    IdleAction.END: "the site ends such jobs",
    IdleAction.LOWER_PRIORITY: "its priority counts as low until it uses its devices",
}


class IdleWatch:
    """Checks the runs of one worker with each heartbeat. See docs/explanation/idle-jobs.md."""

    def __init__(self, settings: Settings, queue: JobQueue, clock: Clock) -> None:
        self._after_s = settings.idle_after_s
        self._action = settings.idle_action
        self._grace_s = None if self._action is IdleAction.MARK else settings.idle_grace_s
        self._queue = queue
        self._clock = clock

    def check(self, run: LiveRun) -> None:
        """Report the stage of *run* to the store if it has changed, and do what is due.

        The store keeps the stage of a run, so a worker that adopts the run repeats no message.

        Raises:
            Unreachable: The store does not answer. The next check repeats the report.

        """
        now_s = self._clock.monotonic_s()
        unused_s = run.unused_s(now_s)
        warned_s = None if run.idle_warned_at_s is None else now_s - run.idle_warned_at_s
        stage = stage_of(unused_s, after_s=self._after_s, grace_s=self._grace_s, warned_s=warned_s)
        if stage is run.idle_stage:
            return
        words = self._words(run, stage, unused_s or 0.0)
        is_news = self._queue.runs.idle(
            run.held.job_id,
            run.held.token,
            stage=int(stage),
            unused_s=unused_s or 0.0,
            low=stage is Stage.DUE and self._action is IdleAction.LOWER_PRIORITY,
            detail=words,
        )
        if is_news:
            log.info("%s: %s", run, words)
            run.write_to_log(words)
        if stage is Stage.DUE and self._action is IdleAction.END and not self._end(run, unused_s or 0.0):
            return
        run.idle_stage = stage
        if stage is not Stage.DUE:
            run.idle_warned_at_s = now_s if stage is Stage.WARNED else None

    def _end(self, run: LiveRun, unused_s: float) -> bool:
        """Ask the run's shim to end it, and return whether that was possible."""
        run.end_words = f"{NO_USE} {_devices(run)} for {format_duration(unused_s)}"
        try:
            run.directory.ask_end(EndingKind.IDLE)
        except OSError as error:
            log.warning("%s: its end cannot be requested, it is tried again: %s", run, error)
            return False
        return True

    def _words(self, run: LiveRun, stage: Stage, unused_s: float) -> str:
        """Return the message for the owner of *run* about its *stage*."""
        which = _devices(run)
        if stage is Stage.IN_USE:
            return f"its {which} {'are' if which == 'devices' else 'is'} in use again, or the use is unknown"
        held = format_bytes(sum(device.lease_bytes for device in run.held.devices))
        words = f"{NO_USE} {which} for {format_duration(unused_s)}, and {held} are allocated to it"
        if self._grace_s is None or self._after_s is None:
            return words
        if stage is Stage.DUE:
            return f"{words}: {_DUE[self._action]}"
        is_last = stage is Stage.WARNED
        left_s = last_warning_s(self._grace_s) if is_last else self._after_s + self._grace_s - unused_s
        return f"{words}: {_BEFORE[self._action]} in {format_duration(left_s)} unless it uses its {which}"


def _devices(run: LiveRun) -> str:
    return "device" if len(run.held.devices) == 1 else "devices"
