"""The eighth step: measures an ended run, and decides its final ending.

It also collects facts for the report: what a run that lacked device memory had tried to allocate, who had taken its
memory, and the evidence for or against its devices.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from gpuqueue.clock import Clock
from gpuqueue.lazy.imports import later
from gpuqueue.model.device import DeviceKind
from gpuqueue.model.mem_source import Shortage
from gpuqueue.model.run import NO_USE, PROBE_ENDED, Ending, EndingKind, NoteKind
from gpuqueue.queue.evidence import NO_EVIDENCE, Evidence
from gpuqueue.system.logs import LOGS
from gpuqueue.text.units import GIB, MIB
from workers.measure.active_runs import LiveRun
from workers.measure.admission import AdmissionCheck
from workers.measure.monitor import DeviceMonitor
from workers.measure.neighbours import Snapshot
from workers.measure.peak import gap_note, measured_devices
from workers.run.directory import Exit
from workers.run.memory_texts import lacks_host_memory
from workers.run.verdict import (
    QUICK_S,
    InsideReport,
    clears_devices,
    device_fault,
    hidden_failure,
    hints,
    judged,
    read_reports,
    tail,
)
from workers.steps.conclusion import Conclusion, NotStarted

if TYPE_CHECKING:
    from workers.whole import outcome
else:  # only the worker of an engine
    outcome = later("workers.whole.outcome")

log = logging.getLogger(__name__)
#: How the messages of frameworks name the allocation that failed: PyTorch, Paddle, TensorFlow and llama.cpp; JAX, XLA,
#: CuPy, ONNX Runtime and rmm; TensorFlow's requests.
_TRIED = re.compile(
    rb"(?:[Tt]ried to allocate|Cannot allocate|memory trying to allocate|allocating)"
    rb" (?P<size>[0-9]{1,9}(?:\.[0-9]{1,9})?) ?(?P<unit>bytes|[KMG]i?B)(?! memory in| of pinned| on host)"
    rb"|(?:trying to allocate|Out of memory allocating|failed to allocate) (?P<bytes>[0-9][0-9,]{0,24}) bytes"
    rb"|requested buffer of size (?P<buffer>[0-9]{1,20})"
    rb"|Failed to allocate request for [^(\n]{1,20}\((?P<request>[0-9]{1,18})B\)"
)
_UNITS = {b"bytes": 1, b"KiB": 1024, b"KB": 1024, b"MiB": MIB, b"MB": MIB, b"GiB": GIB, b"GB": GIB}
#: Why workers end runs, for a worker that does not know more.
_ENDED_BY_WORKER = {
    EndingKind.IDLE: f"{NO_USE} devices for longer than the site allows",
    EndingKind.WRONG_DEVICE: "it used a device that it was not given",
    EndingKind.NAN: "a metric was no number",
    EndingKind.STALLED: "no output and no use of its devices",
}
#: A size that is larger than any device. The job writes the texts, so they may hold anything.
_ABSURD = 2**50


class Judge:
    """Draws the conclusion from the exit of a run. A bug here must not prevent the report of an end."""

    def __init__(self, admission: AdmissionCheck, monitor: DeviceMonitor, clock: Clock) -> None:
        self._start_health = admission.start_health
        self._monitor = monitor
        self._clock = clock
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
        logs = [tail(run.directory.path / name) for name in LOGS]
        log_tail = b"\n".join(logs)
        found = self._judged(run, end, logs)
        for note in found.notes:
            is_new = note.words.encode() not in log_tail  # an earlier worker may have ended before its report
            if is_new and note.kind != NoteKind.PEAK_IN_PART:
                run.write_to_log(note.words)
        hides = any(note.kind == NoteKind.HIDDEN_FAILURE for note in found.notes)
        ending = Ending.from_status(1) if hides else found.ending  # such a success does not show that the devices work
        evidence = self._collector.of_ending(run, ending, end.duration_s, log_tail)
        return replace(found, evidence=evidence)

    def _judged(self, run: LiveRun, end: Exit, logs: Sequence[bytes]) -> Conclusion:
        """Return the devices with their peaks, the notes, and the ending, which may become OUT_OF_MEMORY."""
        log_tail = b"\n".join(logs)
        try:
            run.values.read(run.since_s, self._clock.monotonic_s(), logs[0])
            report = read_reports(run.directory.path)
            devices = measured_devices(run, end.max_rss_bytes, report, self._monitor)
            if run.is_whole:
                devices = outcome.with_memory(run, devices)
            ran_out_on = report.ran_out_on([each.uuid for each in devices]) if report is not None else ()
            full = run.neighbours.fullest(ran_out_on)
            there = [each for each in devices if full is not None and each.uuid == full.device.uuid]
            peaks = [each.peak.bytes for each in there or devices]
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
            gap = gap_note(run, devices, report, end.duration_s)
            more = (hidden_failure(ending, report, logs), gap, run.values.gap)
            return Conclusion(
                ending=ending,
                devices=devices,
                duration_s=end.duration_s,
                shortage=shortage,
                notes=(*end.notes, *(note for note in more if note is not None), *hints(ending, log_tail)),
                values=run.values.values(),
            )
        except Exception:
            log.exception("%s: its peaks and its cause of failure could not be determined", run)
            devices = run.held.devices
            return Conclusion(ending=end.ending, devices=devices, duration_s=end.duration_s, notes=end.notes)


def _explained(run: LiveRun, ending: Ending) -> Ending:
    """Return *ending*, with the words of the worker that ended the run, or that it was a probe.

    A later worker does not know the words.
    """
    if ending.kind is EndingKind.TIMED_OUT and run.held.probe is not None:
        return replace(ending, detail=PROBE_ENDED)
    words = _ENDED_BY_WORKER.get(ending.kind)
    return ending if words is None else replace(ending, detail=run.end_words or words)


def shortage_of(
    ending: Ending,
    report: InsideReport | None,
    log_tail: bytes,
    *,
    kind: DeviceKind | None,
    lease_bytes: int,
    peak_bytes: int | None,
    snapshot: Snapshot | None,
) -> Shortage | None:
    """Return the facts about a run with this *ending*, None if it did not lack device memory.

    A run on a CPU, or one that failed to allocate host memory, lacks none. The queue decides from these facts whether
    the job runs again, and with how much memory.

    Args:
        ending: The final ending.
        report: What the run's processes reported.
        log_tail: The end of the log.
        kind: The kind of the run's devices.
        lease_bytes: What was allocated to the run on each device.
        peak_bytes: The most that the run used on the device that was full.
        snapshot: The last sample of that device with the run alive.

    """
    if ending.kind is not EndingKind.OUT_OF_MEMORY or (kind is not None and not kind.is_gpu):
        return None
    tried = tried_bytes(report.message.encode()) if report is not None else None
    tried = tried_bytes(log_tail) if tried is None else tried
    if tried is None and lacks_host_memory(log_tail):
        return None
    needed_bytes = (peak_bytes or 0) + (tried or 0)
    blamed = snapshot.blamed(lease_bytes) if snapshot is not None and needed_bytes <= lease_bytes else None
    return Shortage(peak_bytes=peak_bytes, tried_bytes=tried, blamed=blamed)


def tried_bytes(text: bytes) -> int | None:
    """Return the bytes of the last allocation of which *text* says that it failed, None if it says none."""
    found = None
    for each in _TRIED.finditer(text):
        found = each
    if found is None:
        return None
    if found["size"] is not None:
        size = round(float(found["size"]) * _UNITS[found["unit"]])
    else:
        size = int((found["bytes"] or found["buffer"] or found["request"]).replace(b",", b""))
    return size if 0 < size < _ABSURD else None


class EvidenceCollector:
    """Draws the evidence for or against a run's devices from the run's end, for one worker."""

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
        if why is None or run.is_whole:  # an engine is no device, and its own machines are not ours to judge
            return NO_EVIDENCE
        try:
            uuids = [device.uuid for device in run.held.devices]
            troubled = self._admission.in_trouble(uuids)
            return Evidence(against=tuple(uuid for uuid in uuids if uuid not in troubled), why=why)
        except Exception:
            log.exception("%s: the devices of the run could not be checked at its end", run)
            return NO_EVIDENCE
