"""The eighth step: measures an ended run, and decides its final ending."""

from __future__ import annotations

import logging
from dataclasses import replace

from gpuqueue.clock import Clock
from gpuqueue.model.run import NO_USE, Ending, EndingKind
from gpuqueue.system.logs import LOGS
from workers.measure.active_runs import LiveRun
from workers.measure.admission import AdmissionCheck
from workers.measure.monitor import DeviceMonitor
from workers.measure.peak import measured_devices
from workers.run.torch_report import read_reports
from workers.run.values import Exit
from workers.run.verdict import judged, tail
from workers.steps.conclusion import Conclusion, NotStarted
from workers.steps.evidence import EvidenceCollector
from workers.steps.shortage import shortage_of

log = logging.getLogger(__name__)


class Judge:
    """Draws the conclusion from the exit of a run. A bug here must not prevent the report of an end."""

    def __init__(self, admission: AdmissionCheck, monitor: DeviceMonitor, clock: Clock) -> None:
        self._start_health = admission.start_health
        self._monitor = monitor
        self._collector = EvidenceCollector(admission, clock)

    def judge(self, run: LiveRun, end: Exit) -> Conclusion:
        """Return the conclusion about *run*.

        Raises:
            NotStarted: The job never began, because the host was short of a resource or lacks what the job needs.

        """
        if end.hosts_fault:
            raise NotStarted(end.ending.detail, host_failed=True)
        if end.host_lacks:
            evidence = self._collector.of_ending(run, end.ending, end.duration_s, b"")
            raise NotStarted(end.ending.detail, host_lacks=evidence)
        if end.ending.kind is EndingKind.LOST:
            return Conclusion(ending=end.ending, evidence=self._collector.of_loss(run, end))
        self._start_health.run_began()
        log_tail = b"\n".join(tail(run.directory.path / name) for name in LOGS)
        found = self._judged(run, end, log_tail)
        evidence = self._collector.of_ending(run, found.ending, end.duration_s, log_tail)
        return replace(found, evidence=evidence)

    def _judged(self, run: LiveRun, end: Exit, log_tail: bytes) -> Conclusion:
        """Return the devices with their peaks, and the ending, which may become OUT_OF_MEMORY."""
        try:
            report = read_reports(run.directory.path)
            devices = measured_devices(run, end.max_rss_bytes, report, self._monitor)
            ran_out_on = report.ran_out_on([each.uuid for each in devices]) if report is not None else ()
            full = run.neighbours.fullest(ran_out_on)
            peaks = [each.peak.bytes for each in devices if full is None or each.uuid == full.device.uuid]
            lease_bytes = run.held.devices[0].lease_bytes
            peak_bytes = max((peak for peak in peaks if peak is not None), default=None)
            ending = judged(
                _explained(run, end.ending),
                report,
                log_tail,
                asked_bytes=lease_bytes,
                peak_bytes=peak_bytes,
                circumstances=full.in_words(several=len(devices) > 1) if full is not None else "",
            )
            shortage = shortage_of(
                ending,
                report,
                log_tail,
                kind=run.held.devices[0].kind,
                lease_bytes=lease_bytes,
                peak_bytes=peak_bytes,
                snapshot=full,
            )
            return Conclusion(ending=ending, devices=devices, duration_s=end.duration_s, shortage=shortage)
        except Exception:
            log.exception("%s: its peaks and its cause of failure could not be determined", run)
            return Conclusion(ending=end.ending, devices=run.held.devices, duration_s=end.duration_s)


def _explained(run: LiveRun, ending: Ending) -> Ending:
    """Return *ending*, with the words of the worker that ended an idle run. A later worker does not know them."""
    words = run.end_words or f"{NO_USE} devices for longer than the site allows"
    return replace(ending, detail=words) if ending.kind is EndingKind.IDLE else ending
