"""What the end of a run says of its devices, told to the store together with the end itself."""

from __future__ import annotations

import logging
from collections.abc import Callable

from gpuqueue.clock import Clock
from gpuqueue.model.run import Ending
from gpuqueue.queue.lease import NO_EVIDENCE, Evidence
from workers.measure.active_runs import LiveRun
from workers.measure.admission import Gate
from workers.run.failure_cause import QUICK_S, blame, speaks_well

log = logging.getLogger(__name__)


class Witness:
    """Speaks for one worker. A bug in here must not keep an end from being told."""

    def __init__(self, gate: Gate, clock: Clock) -> None:
        self._gate = gate
        self._clock = clock

    def ended(self, run: LiveRun, ending: Ending, duration_s: float | None, log_tail: bytes) -> Evidence:
        """Return what the *ending* of *run* says, which lived for *duration_s* and last wrote *log_tail*."""
        if speaks_well(ending, duration_s):
            return Evidence(well=True)
        return self._against(run, lambda: blame(ending, duration_s, log_tail, kind=run.held.devices[0].kind))

    def lost(self, run: LiveRun, why: str) -> Evidence:
        """Return what the loss of *run* says: only where this very worker started it, and so saw it go alone.

        Of a run that was adopted nobody knows when it ended: the host may have been stopped or rebooted.
        """
        quick = self._clock.monotonic_s() - run.since_s < QUICK_S
        return self._against(run, lambda: why if run.spec is not None and quick else None)

    def _against(self, run: LiveRun, why: Callable[[], str | None]) -> Evidence:
        """Return the reason against those of the run's devices that are well: trouble explains, and ends by itself."""
        try:
            reason = why()
            if reason is None:
                return NO_EVIDENCE
            uuids = [device.uuid for device in run.held.devices]
            troubled = self._gate.in_trouble(uuids)
            return Evidence(against=tuple(uuid for uuid in uuids if uuid not in troubled), why=reason)
        except Exception:
            log.exception("%s: what its end says of its devices could not be told", run)
            return NO_EVIDENCE
