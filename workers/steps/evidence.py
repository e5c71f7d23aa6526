"""Evidence for or against a run's devices, drawn from the run's end and reported to the store with that end."""

from __future__ import annotations

import logging

from gpuqueue.clock import Clock
from gpuqueue.model.run import Ending
from gpuqueue.queue.evidence import NO_EVIDENCE, Evidence
from workers.measure.active_runs import LiveRun
from workers.measure.admission import AdmissionCheck
from workers.run.failure_cause import QUICK_S, clears_devices, device_fault
from workers.run.values import Exit

log = logging.getLogger(__name__)


class EvidenceCollector:
    """Collects evidence for one worker."""

    def __init__(self, admission: AdmissionCheck, clock: Clock) -> None:
        self._admission = admission
        self._clock = clock

    def of_ending(self, run: LiveRun, ending: Ending, duration_s: float | None, log_tail: bytes) -> Evidence:
        """Return the evidence from the *ending* of *run*, from its duration and from the end of its log."""
        if clears_devices(ending, duration_s):
            return Evidence(well=True)
        return self._against(run, device_fault(ending, duration_s, log_tail, kind=run.held.devices[0].kind))

    def of_loss(self, run: LiveRun, end: Exit) -> Evidence:
        """Return the evidence from a vanished shim, which counts only if this worker started the run.

        The time at which an adopted run ended is unknown: the host may have been stopped or rebooted.
        """
        quick = self._clock.monotonic_s() - run.since_s < QUICK_S
        counts = end.shim_vanished and run.spec is not None and quick
        return self._against(run, "its shim vanished" if counts else None)

    def _against(self, run: LiveRun, why: str | None) -> Evidence:
        """Return the evidence against those devices of *run* that report no trouble.

        A device that reports trouble takes no job until the trouble ends, so it needs no evidence against it.
        """
        if why is None:
            return NO_EVIDENCE
        try:
            uuids = [device.uuid for device in run.held.devices]
            troubled = self._admission.in_trouble(uuids)
            return Evidence(against=tuple(uuid for uuid in uuids if uuid not in troubled), why=why)
        except Exception:
            log.exception("%s: the devices of the run could not be checked at its end", run)
            return NO_EVIDENCE
