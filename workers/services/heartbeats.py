"""The beat: every few seconds a worker vouches for its device and its runs, and hears what became of them."""

from __future__ import annotations

import contextlib
import logging
import threading

from gpuqueue.clock import Clock
from gpuqueue.errors import StoreNotOpen, Unreachable
from gpuqueue.model.run import EndingKind
from gpuqueue.queue.drains import Drain, DrainOrigin
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.queue.lease import Alive, MakePlace, Verdicts
from gpuqueue.settings.parsers import OnPartition
from gpuqueue.settings.settings import Settings
from gpuqueue.text.units import format_duration
from workers.measure.active_runs import LiveRun, LiveRuns
from workers.measure.admission import Gate
from workers.services.adoption import Adoption

log = logging.getLogger(__name__)


class Beats:
    """Renews the leases in the store and passes each verdict on to the shim concerned."""

    def __init__(
        self, settings: Settings, queue: JobQueue, gate: Gate, runs: LiveRuns, clock: Clock, adoption: Adoption
    ) -> None:
        self._settings = settings
        self._adoption = adoption
        self._epoch: str | None = None
        self._clock = clock
        self._queue = queue
        self._gate = gate
        self._runs = runs
        self._drains: tuple[Drain, ...] = ()
        # A store that is a file on this very host serves nobody else while it is away, and its reaper grants
        # every lease once more when it is back: so nobody can be given our runs meanwhile. A store across the
        # network may be serving others without us: there the site decides.
        alone_with_store = settings.redis_url.startswith("unix:")
        self._keeps_runs = alone_with_store or settings.on_partition is OnPartition.KEEP

    def loop(self, stopping: threading.Event) -> None:
        """Beat until *stopping* is set."""
        while not stopping.wait(self._settings.beat_s):
            asked_s = self._clock.monotonic_s()
            try:
                self.beat()
            except StoreNotOpen as error:
                # It knows nobody's runs and gives nothing to anybody; once it is open again, claims wait for a lease.
                log.warning("the runs go on: %s", error)
                self.vouch_for_all(asked_s)
            except Unreachable as error:
                log.warning("no answer to the beat: %s", error)

    def beat(self) -> Verdicts:
        """Beat once. A store that does not know us is told all first: before, its verdicts are worth nothing.

        Raises:
            Unreachable: the store does not answer; no run is ended for that.

        """
        while True:
            asked_s = self._clock.monotonic_s()  # the lease may count from here on: nobody is vouched for longer
            runs = self._runs.all()
            offer = self._gate.look()
            verdicts = self._queue.beat(offer, [_alive(run) for run in runs], lease_s=self._settings.lease_s)
            if verdicts.epoch == self._epoch:
                break
            self._adoption.introduce(offer)
            if self._epoch is not None:
                self._say_drains_again(offer.device.uuid)
            self._epoch = verdicts.epoch
        self._tell_drains(offer.device.uuid, verdicts.drains)
        for run in runs:
            self._tell_notes(run)
        for run in runs:
            if self._runs.get(run.held.token) is not None:  # else it has ended during the beat
                self._pass_on(run, verdicts, asked_s + self._settings.shim_grace_s)
        self._adoption.forget_recorded(verdicts.epoch)
        return verdicts

    def _say_drains_again(self, uuid: str) -> None:
        """Tell a store that lost it why the device takes no new job. What ``down`` said the next ``up`` takes back."""
        for said in self._drains:
            if said.origin is not DrainOrigin.DOWN:
                self._queue.drain([uuid], origin=said.origin, why=said.why, by=said.by or "")

    def _tell_drains(self, uuid: str, drains: tuple[Drain, ...]) -> None:
        """Say in our log when the device takes no new job any more, by whose say, and when it does again."""
        for said in drains:
            if said not in self._drains:
                log.warning("%s takes no new job, drained %s%s", uuid, said, f": {said.why}" if said.why else "")
        if self._drains and not drains:
            log.info("%s takes jobs again", uuid)
        self._drains = drains

    def _pass_on(self, run: LiveRun, verdicts: Verdicts, until_s: float) -> None:
        """Let the run's shim know. One run's trouble with its files must not keep the others from hearing."""
        try:
            if run.held.token in verdicts.stale:
                log.warning("%s is no longer ours: its processes are ended", run)
                run.directory.ask_end(EndingKind.LOST)
                return
            run.directory.vouch(until_s)
            if run.held.token in verdicts.cancelled:
                run.directory.ask_end(EndingKind.CANCELLED)
            elif run.held.token in verdicts.places:
                self.ask_for_place(run, verdicts.places[run.held.token])
            run.directory.keep_meters(run.figures())
        except OSError as error:
            log.warning("%s: its run directory cannot be written: %s", run, error)

    def ask_for_place(self, run: LiveRun, place: MakePlace) -> None:
        """Let the run know that it must make place, and its owner, by a note.

        Raises:
            OSError: it cannot be told now.

        """
        if run.directory.ask_for_place(place.by, place.left_s):
            run.notes.append(
                f"asked to make place for job {place.by}, in {format_duration(place.left_s)} at the latest"
            )
        if place.left_s < -self._settings.kill_grace_s:  # a shim of an older version knows only this word
            run.directory.ask_end(EndingKind.PREEMPTED)

    def _tell_notes(self, run: LiveRun) -> None:
        run.hear_start()
        for text in run.taken_notes():
            try:
                self._queue.note(run.held.job_id, run.held.token, text)
            except Unreachable:
                run.notes.append(text)
                raise

    def keep(self, stopping: threading.Event) -> None:
        """Vouch for the runs whether the store answers or not, where that is right, until *stopping* is set.

        Beside the beats and not after them: it takes a while until no answer counts as none.
        """
        while not stopping.wait(self._settings.beat_s):
            if self._keeps_runs:
                self.vouch_for_all(self._clock.monotonic_s())

    def vouch_for_all(self, asked_s: float) -> None:
        """Keep every run going for one more grace, counted from *asked_s*, when the store was asked."""
        until_s = asked_s + self._settings.shim_grace_s
        for run in self._runs.all():
            with contextlib.suppress(OSError):
                run.directory.vouch(until_s)


def _alive(run: LiveRun) -> Alive:
    return Alive(job_id=run.held.job_id, token=run.held.token, observed=run.observed())
