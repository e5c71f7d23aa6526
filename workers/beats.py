"""The beat: every few seconds a worker vouches for its device and its runs, and hears what became of them."""

from __future__ import annotations

import logging
import threading

from gpuqueue.errors import Unreachable
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.queue.lease import Alive, Verdicts
from gpuqueue.run import EndingKind
from gpuqueue.settings import Settings
from workers.gate import Gate
from workers.live import LiveRuns

log = logging.getLogger(__name__)


class Beats:
    """Renews the leases in the store and passes each verdict on to the shim concerned."""

    def __init__(self, settings: Settings, queue: JobQueue, gate: Gate, runs: LiveRuns) -> None:
        self._settings = settings
        self._queue = queue
        self._gate = gate
        self._runs = runs
        # A store that is a file on this very host serves nobody else while it is away, and its reaper grants
        # every lease once more when it is back: so nobody can be given our runs meanwhile. A store across the
        # network may be serving others without us.
        self._alone_with_store = settings.redis_url.startswith("unix:")

    def loop(self, stopping: threading.Event) -> None:
        """Beat until *stopping* is set."""
        while not stopping.wait(self._settings.beat_s):
            try:
                self.beat()
            except Unreachable as error:
                log.warning("no answer to the beat: %s", error)
                if self._alone_with_store:
                    self._vouch_for_all()

    def beat(self) -> Verdicts:
        """Beat once.

        Raises:
            Unreachable: the store does not answer; no run is ended for that.

        """
        runs = self._runs.all()
        offer = self._gate.look() or self._gate.closed()
        alive = [Alive(job_id=run.held.job_id, token=run.held.token, observed=run.observed()) for run in runs]
        verdicts = self._queue.beat(offer, alive, lease_s=self._settings.lease_s)
        self._gate.heard(verdicts.others)
        for run in runs:
            if run.held.token in verdicts.stale:
                log.warning("%s is no longer ours: its processes are ended", run)
                run.directory.ask_end(EndingKind.LOST)
                continue
            run.directory.vouch(self._settings.shim_grace_s)
            if run.held.token in verdicts.cancelled:
                run.directory.ask_end(EndingKind.CANCELLED)
        return verdicts

    def _vouch_for_all(self) -> None:
        for run in self._runs.all():
            run.directory.vouch(self._settings.shim_grace_s)
