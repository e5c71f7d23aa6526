"""Ends the run of a probe when its peak has not grown for a while, or after some steps.

The time limit of a probe is that of its job, which the shim enforces. A worker that adopts the run begins anew: the run
is then ended later, never sooner.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from gpuqueue.errors import BadRequest
from gpuqueue.model.probe import ENDED, Probe
from gpuqueue.model.progress import TAIL_BYTES, progress_in, steps_of
from gpuqueue.model.run import EndingKind
from gpuqueue.system.logs import last_bytes
from gpuqueue.text.units import MIB, format_bytes, format_duration
from workers.measure.active_runs import LiveRun

log = logging.getLogger(__name__)

#: A peak has grown if it is larger by this share and by this many bytes. The resident memory of a process on a CPU or a
#: simulated device always changes a little.
GROWTH, GROWTH_BYTES = 1.01, 16 * MIB


class ProbeWatch:
    """Decides when the run of a probe may end. It has the state of one run."""

    def __init__(self, probe: Probe) -> None:
        self.probe = probe
        self._peak_bytes = 0
        self._grown_s: float | None = None
        self._steps = self._last = 0

    def reason(self, peak_bytes: int, now_s: float, steps: int | None) -> str | None:
        """Return why the run may end, or None.

        Args:
            peak_bytes: The peak so far over all devices; 0 if the run has used no memory.
            now_s: The time on the host's monotonic clock, in seconds.
            steps: The number of done steps on the job's progress bar, None if there is no bar.

        """
        wanted = self.probe.steps
        if wanted is not None and steps is not None and self._counted(steps) >= wanted:
            return f"it has made {self._steps} steps"
        if self._grown_s is None or peak_bytes > max(GROWTH * self._peak_bytes, self._peak_bytes + GROWTH_BYTES):
            self._peak_bytes = max(peak_bytes, self._peak_bytes)
            self._grown_s = now_s
        flat_s = self.probe.flat_s
        if flat_s is not None and self._peak_bytes and now_s - self._grown_s >= flat_s:
            return f"its peak of {format_bytes(peak_bytes)} has not grown for {format_duration(now_s - self._grown_s)}"
        return None

    def _counted(self, steps: int) -> int:
        """Return the steps of all bars so far. A bar that counts fewer than before is a new one."""
        self._steps += steps - self._last if steps >= self._last else steps
        self._last = steps
        return self._steps


class Probes:
    """The probes among the runs of a worker. Used by one thread."""

    def __init__(self) -> None:
        self._watches: dict[str, ProbeWatch] = {}
        #: The tokens of the runs that were asked to end.
        self._ended: set[str] = set()

    def check(self, runs: Sequence[LiveRun], now_s: float) -> None:
        """End those of *runs*, all live runs of probes, that may end. Forget the state of all other runs."""
        tokens = {run.held.token for run in runs}
        self._ended &= tokens
        self._watches = {token: watch for token, watch in self._watches.items() if token in tokens}
        for run in runs:
            token = run.held.token
            watch = self._watches.setdefault(token, ProbeWatch(_probe_of(run)))
            why = None if token in self._ended else _reason(run, watch, now_s)
            if why is not None and run.ask_end(EndingKind.TIMED_OUT, f"{ENDED}: {why}"):
                self._ended.add(token)


def _reason(run: LiveRun, watch: ProbeWatch, now_s: float) -> str | None:
    """Return why *run* may end, or None."""
    progress = None if watch.probe.steps is None else progress_in(last_bytes(run.directory.log, TAIL_BYTES))
    peak_bytes = sum(meter.peak_bytes or 0 for meter in list(run.meters.values()))
    return watch.reason(peak_bytes, now_s, None if progress is None else steps_of(progress))


def _probe_of(run: LiveRun) -> Probe:
    """Return the probe of *run*. One that this version cannot read is ended by its time limit only."""
    try:
        return Probe.parse(run.held.probe or "")
    except BadRequest as error:
        log.warning("%s: %s", run, error)
        return Probe()
