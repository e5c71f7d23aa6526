"""Heartbeats: every few seconds a worker renews its leases in the store, and receives a verdict on each run.

With each heartbeat it checks whether the runs use their devices: it marks those that do not, warns their owners, and
does what the site has set for them. The other marks are in :mod:`workers.services.mark_watch`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Iterable
from dataclasses import replace
from functools import partial

from gpuqueue.clock import Clock
from gpuqueue.errors import BadRequest, HostTaken, Refused, StoreNotOpen, Unreachable
from gpuqueue.model.calendar import CalendarReservation
from gpuqueue.model.run import NO_USE, EndingKind
from gpuqueue.model.run_mark import MarkKind, over_of
from gpuqueue.queue.drains import Drain, DrainOrigin
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.queue.lease import Alive, PreemptRequest, Verdicts
from gpuqueue.settings.parsers import IdleAction, OnPartition
from gpuqueue.settings.settings import Settings
from gpuqueue.system.process import stop_signal
from gpuqueue.text.units import format_bytes, format_duration
from workers.measure.active_runs import LiveRun, LiveRuns
from workers.measure.admission import AdmissionCheck
from workers.measure.idle import Stage, last_warning_s, stage_of
from workers.services.adoption import Adoption
from workers.services.mark_watch import MarkWatch

log = logging.getLogger(__name__)
#: The words about an idle run: before the action of the site, and when it is due.
_BEFORE = {IdleAction.END: "it is ended", IdleAction.LOWER_PRIORITY: "its priority counts as low"}
_DUE = {
    IdleAction.END: "the site ends such jobs",
    IdleAction.LOWER_PRIORITY: "its priority counts as low until it uses its devices",
}


def ask_preempt(run: LiveRun, place: PreemptRequest) -> None:
    """Preempt the run through its run directory, and add a note for the job's owner.

    The note is added first: the run can end, and its notes be sent, before this thread goes on.

    Raises:
        OSError: The run directory cannot be written now.

    """
    cause = f"for job {place.by}" if place.by else "at the end of its time on the device"
    note = f"preemption requested {cause}, in {format_duration(place.left_s)} at the latest"
    run.notes.append(note)
    is_first = False
    try:
        is_first = run.directory.ask_preempt(place.by, place.left_s)
    finally:
        if not is_first:
            with contextlib.suppress(ValueError):  # it was sent meanwhile
                run.notes.remove(note)


class Heartbeats:
    """Renews the leases in the store, and passes each verdict on to the shim of its run."""

    def __init__(
        self,
        settings: Settings,
        queue: JobQueue,
        admission: AdmissionCheck,
        runs: LiveRuns,
        clock: Clock,
        adoption: Adoption,
    ) -> None:
        self._settings = settings
        self._adoption = adoption
        self._epoch: str | None = None
        self._clock = clock
        self._queue = queue
        self._admission = admission
        self._runs = runs
        self._drains: tuple[Drain, ...] = ()
        self._calendar: tuple[CalendarReservation, ...] = ()
        self._idle = IdleWatch(settings, queue, clock)
        self._marks = MarkWatch(settings, queue, clock)
        # A store behind a unix socket is on this host. While it is down it serves no other worker, and after its
        # return the reaper extends every lease, so no other worker can claim these jobs meanwhile. A store across the
        # network may still serve other workers; there the setting `on_partition` decides.
        self._keeps_runs = settings.store_is_here or settings.on_partition is OnPartition.KEEP

    def loop(self, stopping: threading.Event) -> None:
        """Send heartbeats until *stopping* is set."""
        while not stopping.wait(self._settings.heartbeat_s):
            asked_s = self._clock.monotonic_s()
            try:
                self.heartbeat()
            except HostTaken as error:
                log.error("the worker ends: %s", error)  # noqa: TRY400 - a traceback does not help
                os.kill(os.getpid(), stop_signal())
                return
            except StoreNotOpen as error:
                # A store that is not open grants no claims. After it opens, claims wait for one lease, so the runs are
                # safe until then.
                log.warning("the runs go on: %s", error)
                self.renew_all(asked_s)
            except Unreachable as error:
                log.warning("no answer to the heartbeat: %s", error)

    def heartbeat(self) -> Verdicts:
        """Send one heartbeat. If the store has a new epoch, announce the worker first, because it knows no run.

        Raises:
            Unreachable: The store does not answer. No run is ended for that.
            HostTaken: Another machine has the host name. It got the name when the jobs of this one were given up.

        """
        while True:
            asked_s = self._clock.monotonic_s()  # the lease counts from here at the earliest, so the grace does too
            runs = self._runs.all()
            offer = self._admission.offer()
            try:
                alive = [_alive(run) for run in runs]
                verdicts = self._queue.devices.heartbeat(offer, alive, lease_s=self._settings.lease_s)
            except HostTaken:
                self._end_all()
                raise
            if verdicts.epoch == self._epoch:
                break
            self._adoption.introduce(offer)
            if self._epoch is not None:
                self._restore_drains(offer.device.uuid)
                for run in runs:
                    run.idle_stage = None  # the store has lost it, and the marks
                    run.marked.clear()
            self._epoch = verdicts.epoch
        self._log_drains(offer.device.uuid, verdicts.drains)
        self._calendar = verdicts.calendar
        for run in runs:
            self._send_notes(run)
        for run in runs:
            if self._runs.get(run.held.token) is not None:  # the run may have ended during the heartbeat
                self._pass_on(run, verdicts, asked_s + self._settings.shim_grace_s)
        self._adoption.forget_recorded(verdicts.epoch)
        self._read_values(runs)
        self._check_marks(run for run in runs if run.held.token in verdicts.go_on)
        return verdicts

    def _check_marks(self, runs: Iterable[LiveRun]) -> None:
        """Check whether *runs* look wrong. Last of all: its errors must not keep runs from being renewed."""
        for run in runs:
            if self._runs.get(run.held.token) is not None:
                self._idle.check(run)
                self._marks.check(run)

    def _read_values(self, runs: Iterable[LiveRun]) -> None:
        """Read what the jobs of *runs* report, which the next heartbeat saves. A bug here must not end a run."""
        for run in runs:
            try:
                run.values.read(run.since_s, self._clock.monotonic_s())
            except Exception:
                log.exception("%s: what it reports cannot be read", run)

    def _end_all(self) -> None:
        """End the processes of all runs: their jobs may run elsewhere."""
        for run in self._runs.all():
            with contextlib.suppress(OSError):
                run.directory.ask_end(EndingKind.LOST)

    def _restore_drains(self, uuid: str) -> None:
        """Repeat what a store that lost its data should know: the device's drains and calendar reservations.

        Drains by ``down`` are left out: ``up`` ends those.
        """
        for drain in self._drains:
            if drain.origin is not DrainOrigin.DOWN:
                begins_at, by = drain.begins_at, drain.by or ""
                self._queue.devices.drain([uuid], origin=drain.origin, why=drain.why, by=by, begins_at=begins_at)
        for reservation in self._calendar:
            with contextlib.suppress(Refused, BadRequest):  # another one was made meanwhile, or it is over
                self._queue.devices.reserve(
                    replace(reservation, devices=(uuid,)), grace_s=self._settings.preempt_grace_s
                )

    def _log_drains(self, uuid: str, drains: tuple[Drain, ...]) -> None:
        """Log when the device is drained, with the origin of the drain, and when it takes jobs again."""
        for drain in drains:
            if drain not in self._drains:
                when = "" if drain.begins_at is None else f" from {drain.begins_at.isoformat()} on"
                why = f": {drain.why}" if drain.why else ""
                log.warning("%s takes no new job%s, drained %s%s", uuid, when, drain, why)
        if self._drains and not drains:
            log.info("%s takes jobs again", uuid)
        self._drains = drains

    def _pass_on(self, run: LiveRun, verdicts: Verdicts, until_s: float) -> None:
        """Pass the verdict on to the run's shim. A file error of one run must not affect the other runs."""
        try:
            if run.held.token in verdicts.stale:
                log.warning("%s is no longer ours: its processes are ended", run)
                run.directory.ask_end(EndingKind.LOST)
                return
            run.directory.renew(until_s)
            if run.held.token in verdicts.limits:
                run.directory.extend(verdicts.limits[run.held.token])
            if run.held.token in verdicts.cancelled:
                run.directory.ask_end(EndingKind.CANCELLED)
            elif run.held.token in verdicts.preemptions:
                ask_preempt(run, verdicts.preemptions[run.held.token])
            run.directory.keep_meters(run.figures())
            run.directory.keep_figures(run.figures_so_far())
        except OSError as error:
            log.warning("%s: its run directory cannot be written: %s", run, error)

    def _send_notes(self, run: LiveRun) -> None:
        run.hear_start()
        run.send_notes(partial(self._queue.runs.note, run.held.job_id, run.held.token))

    def keep(self, stopping: threading.Event) -> None:
        """Keep the runs alive without the store, if the site allows that, until *stopping* is set.

        This loop has its own thread, because a heartbeat to an unreachable store blocks until its timeout.
        """
        while not stopping.wait(self._settings.heartbeat_s):
            if self._keeps_runs:
                self.renew_all(self._clock.monotonic_s())

    def renew_all(self, asked_s: float) -> None:
        """Write a heartbeat for every run, valid for the shim's grace from *asked_s*, the time of the request."""
        until_s = asked_s + self._settings.shim_grace_s
        for run in self._runs.all():
            with contextlib.suppress(OSError):
                run.directory.renew(until_s)


def _alive(run: LiveRun) -> Alive:
    return Alive(job_id=run.held.job_id, token=run.held.token, observed=run.observed())


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
        is_news = self._queue.runs.mark(
            run.held.job_id,
            run.held.token,
            MarkKind.IDLE,
            stage=int(stage),
            for_s=unused_s or 0.0,
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
        run.end_words = f"{NO_USE} {_devices_in_words(run)} for {format_duration(unused_s)}"
        try:
            run.directory.ask_end(EndingKind.IDLE)
        except OSError as error:
            log.warning("%s: its end cannot be requested, it is tried again: %s", run, error)
            return False
        return True

    def _words(self, run: LiveRun, stage: Stage, unused_s: float) -> str:
        """Return the message for the owner of *run* about its *stage*."""
        which = _devices_in_words(run)
        if stage is Stage.IN_USE:
            return over_of(MarkKind.IDLE.value)
        held = format_bytes(sum(device.lease_bytes for device in run.held.devices))
        words = f"{NO_USE} {which} for {format_duration(unused_s)}, and {held} are allocated to it"
        if self._grace_s is None or self._after_s is None:
            return words
        if stage is Stage.DUE:
            return f"{words}: {_DUE[self._action]}"
        is_last = stage is Stage.WARNED
        left_s = last_warning_s(self._grace_s) if is_last else self._after_s + self._grace_s - unused_s
        return f"{words}: {_BEFORE[self._action]} in {format_duration(left_s)} unless it uses its {which}"


def _devices_in_words(run: LiveRun) -> str:
    return "device" if len(run.held.devices) == 1 else "devices"
