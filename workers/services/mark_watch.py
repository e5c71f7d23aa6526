"""Marks the runs of one worker that look wrong, and ends those whose submitter wants that.

The rules are few, and say nothing where they would guess: see docs/howto/when-a-run-goes-wrong.md, which has them in
words. All that a rule needs is in the claim of a run and in its figures, so a worker that adopts the run goes on.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from gpuqueue.clock import Clock
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.device import DeviceKind
from gpuqueue.model.run import EndingKind
from gpuqueue.model.run_mark import MarkKind, over_of, sentence_of
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.settings.settings import Settings
from gpuqueue.text.units import format_duration
from workers.measure.active_runs import LiveRun

log = logging.getLogger(__name__)

#: A step that takes so many times as long as the longest one before it may be stuck.
STEP_FACTOR = 5
#: How long these must be over before their marks are: a metric may alternate, and a disk may be at its limit.
OVER_S = {MarkKind.NAN: 300.0, MarkKind.DISK: 300.0}


@dataclass(frozen=True, slots=True)
class Symptom:
    """What looks wrong about a run: for how many seconds, and what the mark names."""

    for_s: float = 0.0
    what: str = ""


class MarkWatch:
    """Checks the runs of one worker with each heartbeat. The checks of idle runs are in ``heartbeats.py``."""

    def __init__(self, settings: Settings, queue: JobQueue, clock: Clock) -> None:
        self._after_s = settings.stalled_after_s
        self._low_bytes = settings.disk_low_bytes
        self._queue = queue
        self._clock = clock

    def check(self, run: LiveRun) -> None:
        """Report to the store what has changed about the marks of *run*, and end the run if that is due.

        The store keeps the marks of a run, so a worker that adopts the run repeats no message.

        Raises:
            Unreachable: The store does not answer. The next check repeats the report.

        """
        now_s = self._clock.monotonic_s()
        for kind, symptom in self._symptoms(run, now_s):
            self._report(run, kind, symptom, now_s)
        self._end_if_wanted(run, now_s)

    def _symptoms(self, run: LiveRun, now_s: float) -> Iterator[tuple[MarkKind, Symptom | None]]:
        after_s = self._after_s
        what = run.values.broken
        yield MarkKind.NAN, None if what is None else Symptom(0.0, what)
        silent_s = stalled_s(run, now_s) if run.was_used and run.has_written and not run.held.has_terminal else None
        is_stalled = silent_s is not None and after_s is not None and silent_s >= after_s
        yield MarkKind.STALLED, Symptom(silent_s or 0.0) if is_stalled else None
        step = run.step(now_s)
        is_stuck = step is not None and after_s is not None and step.for_s >= max(after_s, STEP_FACTOR * step.longest_s)
        may_be = is_stuck and not run.held.has_terminal
        yield MarkKind.STEP, Symptom(step.for_s, step.counts) if may_be and step is not None else None
        if self._low_bytes is not None:
            low = run.disk.low(
                {"log": str(run.directory.path), "working directory": run.held.cwd}, self._low_bytes, now_s
            )
            yield MarkKind.DISK, None if low is None else Symptom(0.0, low)

    def _report(self, run: LiveRun, kind: MarkKind, symptom: Symptom | None, now_s: float) -> None:
        is_on = symptom is not None
        known = run.marked.get(kind)
        if is_on or known is None:
            run.over_since_s.pop(kind, None)
        elif known and now_s - run.over_since_s.setdefault(kind, now_s) < OVER_S.get(kind, 0.0):
            return
        if known is is_on:
            return
        found = symptom or Symptom()
        words = sentence_of(kind.value, found.what) if is_on else over_of(kind.value)
        words += f", for {format_duration(found.for_s)}" if found.for_s else ""
        is_news = self._queue.runs.mark(
            run.held.job_id, run.held.token, kind, stage=int(is_on), for_s=found.for_s, what=found.what, detail=words
        )
        if is_news:
            log.info("%s: %s", run, words)
            run.write_to_log(words)
        run.marked[kind] = is_on

    def _end_if_wanted(self, run: LiveRun, now_s: float) -> None:
        """Ask the shim to end *run* if its submitter wants that now. It is asked once; the first reason counts."""
        held, what = run.held, run.values.broken
        if run.end_words:
            return
        if held.stop_on_nan and what is not None:
            self._end(run, EndingKind.NAN, what)
        elif held.stop_when_stalled_s is not None:
            silent_s = stalled_s(run, now_s)
            if silent_s is not None and silent_s >= held.stop_when_stalled_s:
                words = f"no output and no use of its devices for {format_duration(silent_s)}"
                self._end(run, EndingKind.STALLED, words)

    def _end(self, run: LiveRun, kind: EndingKind, words: str) -> None:
        try:
            run.directory.ask_end(kind)
        except OSError as error:
            log.warning("%s: its end cannot be requested, it is tried again: %s", run, error)
            return
        run.end_words = words
        log.info("%s is ended: %s", run, words)
        run.write_to_log(f"{words}; it is ended ({_OPTIONS[kind]})")


_OPTIONS = {EndingKind.NAN: "--stop-on-nan", EndingKind.STALLED: "--stop-when-stalled"}


def stalled_s(run: LiveRun, now_s: float) -> float | None:
    """Return for how many seconds *run* has written no output and has not used its devices; None if that is unknown.

    A CPU and a simulated device have no use of their own, so there the output alone counts. A whole job that waits at
    its engine has not begun.
    """
    if run.is_whole and not any(run.directory.path.parent.glob("*/w*.out")):
        return None
    no_gpu = all(device.kind not in {None, DeviceKind.GPU} for device in run.held.devices)
    unused_s = now_s - run.since_s if no_gpu else run.unused_s(now_s)
    return None if unused_s is None else min(unused_s, run.silent_s(now_s))
