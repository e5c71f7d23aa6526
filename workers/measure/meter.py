"""The figures of one run on one device, updated with each sample. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection
from typing import Any

from gpuqueue.model.device import Activity, Health, Timeline, Utilisation
from gpuqueue.text.json_fields import Fields
from gpuqueue.text.units import MIB
from workers.measure.idle import Unused

#: Time between two samples of a run that is no longer young, in seconds.
INTERVAL_S = 1.0
#: From so many seconds without a figure on, the run may have used more than its largest sample shows. After a run was
#: adopted, less is enough: the samples that its last worker had not written down are lost as well.
GAP_S, ADOPTED_GAP_S = 5.0, 1.5
#: From so many bytes on, memory that appears on a device that lists no process is that of a process all the same. A
#: context takes more.
UNLISTED_BYTES = 64 * MIB
#: Most pids that a meter stores. At the end of the run the driver is asked for the peak of each.
MOST_PIDS = 64
#: The percentile that is kept beside the mean.
HIGH = 0.95
#: Shares are counted in steps of this many parts of one: drivers report whole percents.
_STEPS = 100
#: Most points of a run, over all its devices.
MOST_POINTS = 240
#: The length of the first steps, in seconds: the shortest time between two samples.
FIRST_STEP_S = 0.1


class Meter:
    """Keeps the largest sample, the number of samples, and the other figures of the samples."""

    def __init__(self, points: int | None = None) -> None:
        self.observed_bytes = 0
        self.peak_bytes: int | None = None
        self.samples = 0
        self.na_samples = 0
        self.shared: bool | None = None
        #: The run's processes that were seen on the device, at most ``MOST_PIDS``.
        self.pids: set[int] = set()
        #: The device's used bytes right before the run started, and the largest increase since then.
        self.before_bytes: int | None = None
        self.delta_bytes: int | None = None
        #: Whether memory appeared on the device while it listed no process, so that a figure of 0 bytes says nothing.
        self.unlisted = False
        #: The longest time without a figure, in seconds; 0 if none was too long.
        self.gap_s = 0.0
        #: The time of the last figure, and how long after it the next one may come.
        self._figure_s, self._least_gap_s = 0.0, GAP_S
        #: For the watchdog: its score, whether the job was warned of its excess, and whether it was asked to end.
        self.excess = 0
        self.warned = False
        self.ended = False
        self._first_s: float | None = None
        self._last_s: float | None = None
        self._first_memory_s: float | None = None
        self._utilisation = _Mean()
        self._unused = Unused()
        self._own = OwnActivity()
        self._temperature_max_c: float | None = None
        self._trace = Trace() if points is None else Trace(points)

    def note(
        self,
        used_bytes: int | None,
        *,
        at_s: float,
        shared: bool,
        device_bytes: int,
        pids: Collection[int] = (),
        listed: bool = True,
        alone: bool = True,
    ) -> None:
        """Take one sample.

        Args:
            used_bytes: Bytes that the run uses on the device; None where the driver does not report them.
            at_s: The time of the sample, in seconds since the run's start.
            shared: Whether other processes were on the device.
            device_bytes: Bytes in use on the device, by all processes.
            pids: The run's processes on the device.
            listed: Whether the device lists any process.
            alone: Whether no other run of this host is on the device.

        """
        self._first_s = at_s if self._first_s is None else self._first_s
        self._last_s = at_s
        self.shared = bool(self.shared) or shared
        self.pids.update(list(pids)[: MOST_PIDS - len(self.pids)])
        if self.before_bytes is not None:
            more_bytes = device_bytes - self.before_bytes
            self.unlisted = self.unlisted or (not listed and more_bytes >= UNLISTED_BYTES)
            if alone:
                self.delta_bytes = max(self.delta_bytes or 0, more_bytes)
        if used_bytes is None:
            self.na_samples += 1
            return
        self.gap_s = self.gap_until_s(at_s)
        self._figure_s, self._least_gap_s = at_s, GAP_S
        self.samples += 1
        self.observed_bytes = used_bytes
        self.peak_bytes = max(self.peak_bytes or 0, used_bytes)
        self._trace.note(at_s, used_bytes)
        if used_bytes and self._first_memory_s is None:
            self._first_memory_s = at_s

    def gap_until_s(self, now_s: float) -> float:
        """Return the longest time without a figure until *now_s*, in seconds; 0 if none was too long."""
        gap_s = now_s - self._figure_s
        return max(self.gap_s, gap_s) if gap_s >= self._least_gap_s else self.gap_s

    @property
    def interval_s(self) -> float | None:
        """Return the mean time between two samples, in seconds; None for fewer than two samples."""
        samples = self.samples + self.na_samples
        if self._first_s is None or self._last_s is None or samples < 2:  # noqa: PLR2004 - an interval needs two samples
            return None
        return round(max(0.0, self._last_s - self._first_s) / (samples - 1), 3)

    def note_health(self, health: Health) -> None:
        """Record the device's health. Called at most once per ``INTERVAL_S``, so that the mean is a mean over time."""
        if health.utilisation is not None:
            self._utilisation.note(health.utilisation)
        if health.temperature_c is not None:
            self._temperature_max_c = max(self._temperature_max_c or health.temperature_c, health.temperature_c)

    def note_use(self, own: Utilisation | None, at_s: float) -> None:
        """Record how much the device worked for the run, at *at_s* seconds since the run's start; None: unknown."""
        self._unused.note(None if own is None else own.busy, at_s)
        self._own.note(own)

    def unused_since_s(self, now_s: float) -> float | None:
        """Return since when the run has not used the device, or None if it has used it or that is unknown.

        Both times are in seconds since the run's start.
        """
        return self._unused.since_s(now_s)

    @property
    def was_used(self) -> bool:
        """Return whether the run has used the device at any time, as far as that is known."""
        return self._unused.was_used

    def activity(self) -> Activity:
        """Return the run's activity on the device: utilisation, temperature, and the time of its first memory."""
        return Activity(
            first_memory_s=self._first_memory_s,
            utilisation_mean=self._utilisation.value,
            utilisation_max=self._utilisation.largest,
            temperature_max_c=self._temperature_max_c,
            **self._own.figures(),
        )

    def timeline(self) -> Timeline | None:
        """Return the run's memory over time; None for a run that is too short for a timeline."""
        return self._trace.timeline()

    def to_plain(self) -> dict[str, Any]:
        """Return the figures as plain values."""
        return {
            "peak_bytes": self.peak_bytes,
            "samples": self.samples,
            "na_samples": self.na_samples,
            "shared": self.shared,
            "pids": sorted(self.pids),
            "before_bytes": self.before_bytes,
            "delta_bytes": self.delta_bytes,
            "unlisted": self.unlisted,
            "gap_s": self.gap_s,
            "figure_s": self._figure_s,
            "first_s": self._first_s,
            "last_s": self._last_s,
            "first_memory_s": self._first_memory_s,
            "utilisation": self._utilisation.to_plain(),
            "unused": self._unused.to_plain(),
            "own": self._own.to_plain(),
            "temperature_max_c": self._temperature_max_c,
            "trace": self._trace.to_plain(),
            "warned": self.warned,
        }

    @classmethod
    def from_plain(cls, plain: object) -> Meter:
        """Return the meter that :meth:`to_plain` wrote, perhaps in another worker.

        Raises:
            Unreadable: *plain* is not a valid meter.

        """
        fields = Fields(plain, "a meter")
        meter = cls()
        meter.peak_bytes = fields.whole_or_none("peak_bytes")
        meter.samples = fields.whole("samples")
        meter.na_samples = fields.whole("na_samples")
        meter.shared = fields.flag_or_none("shared")
        meter.pids = {pid for pid in fields.wholes_or_none("pids")[:MOST_PIDS] if pid is not None}
        meter.before_bytes = fields.whole_or_none("before_bytes")
        meter.delta_bytes = fields.whole_or_none("delta_bytes")
        meter.warned = fields.flag("warned")
        if "figure_s" in fields:
            meter.unlisted, meter.gap_s = fields.flag("unlisted"), fields.number("gap_s")
            meter._figure_s, meter._least_gap_s = fields.number("figure_s"), ADOPTED_GAP_S
        meter._first_s, meter._last_s = fields.number_or_none("first_s"), fields.number_or_none("last_s")
        meter._first_memory_s = fields.number_or_none("first_memory_s")
        meter._temperature_max_c = fields.number_or_none("temperature_max_c")
        mean = fields.below("utilisation", "a mean")
        meter._utilisation = _Mean(mean.whole("count"), mean.number("total"), mean.number_or_none("largest"))
        if "unused" in fields:
            meter._unused = Unused.from_plain(fields.below("unused", "a time without use"))
        if "own" in fields:
            meter._own = OwnActivity.from_plain(fields.below("own", "the use by a run"))
        meter._trace = Trace.from_plain(fields.plain("trace"))
        return meter


class _Mean:
    """The mean and the maximum of a series of figures."""

    def __init__(self, count: int = 0, total: float = 0.0, largest: float | None = None) -> None:
        self._count = count
        self._total = total
        self.largest = largest

    def note(self, figure: float) -> None:
        """Take one figure."""
        self._count += 1
        self._total += figure
        self.largest = figure if self.largest is None else max(self.largest, figure)

    @property
    def value(self) -> float | None:
        """Return the mean, or None without figures."""
        return self._total / self._count if self._count else None

    def to_plain(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {"count": self._count, "total": self._total, "largest": self.largest}


class Distribution:
    """The mean and the percentiles of a series of shares from 0 to 1, in a constant amount of memory."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self._total = 0.0

    def note(self, share: float) -> None:
        """Take one share. Values outside 0 to 1 count as the nearer of the two."""
        share = min(1.0, max(0.0, share))
        self._counts[round(share * _STEPS)] += 1
        self._total += share

    @property
    def count(self) -> int:
        """Return the number of shares."""
        return self._counts.total()

    @property
    def mean(self) -> float | None:
        """Return the mean, or None without shares."""
        return self._total / self.count if self.count else None

    def percentile(self, share: float) -> float | None:
        """Return the smallest value that this *share* of the series does not exceed, to a percent; None without one."""
        wanted = math.ceil(share * self.count)
        for step in sorted(self._counts):
            wanted -= self._counts[step]
            if wanted <= 0:
                return step / _STEPS
        return None

    def to_plain(self) -> dict[str, Any]:
        """Return it as plain values."""
        steps = sorted(self._counts)
        return {"total": self._total, "steps": steps, "counts": [self._counts[step] for step in steps]}

    @classmethod
    def from_plain(cls, fields: Fields) -> Distribution:
        """Return what :meth:`to_plain` wrote.

        Raises:
            Unreadable: *fields* are not valid.

        """
        steps, counts = fields.wholes_or_none("steps"), fields.wholes_or_none("counts")
        known = {step: count for step, count in zip(steps, counts, strict=False) if step is not None and count}
        if len(steps) != len(counts) or len(known) != len(steps) or any(step > _STEPS for step in known):
            raise fields.wrong("counts", "a number for each step")
        found = cls()
        found._counts, found._total = Counter(known), fields.number("total")
        return found


class OwnActivity:
    """The distribution of the samples for which the use of a run is known.

    Without such a sample, or if fewer than half of all samples are known, the figures are unknown: they would be those
    of a part of the run, such as the minute in which it was alone.
    """

    def __init__(self) -> None:
        self._busy = Distribution()
        self._memory = Distribution()
        self._unknown = 0

    def note(self, own: Utilisation | None) -> None:
        """Take one sample; None: unknown."""
        if own is None:
            self._unknown += 1
            return
        self._busy.note(own.busy)
        if own.memory is not None:
            self._memory.note(own.memory)

    def figures(self) -> dict[str, float | None]:
        """Return the figures by their names in :class:`gpuqueue.model.device.Activity`."""
        samples = self._busy.count + self._unknown
        found = {}
        for name, each in (("own_utilisation", self._busy), ("own_bandwidth", self._memory)):
            is_known = each.count > 0 and 2 * each.count >= samples
            found[f"{name}_mean"] = each.mean if is_known else None
            found[f"{name}_p95"] = each.percentile(HIGH) if is_known else None
        return found

    def to_plain(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {"busy": self._busy.to_plain(), "memory": self._memory.to_plain(), "unknown": self._unknown}

    @classmethod
    def from_plain(cls, fields: Fields) -> OwnActivity:
        """Return what :meth:`to_plain` wrote.

        Raises:
            Unreadable: *fields* are not valid.

        """
        found = cls()
        found._busy = Distribution.from_plain(fields.below("busy", "a distribution"))
        found._memory = Distribution.from_plain(fields.below("memory", "a distribution"))
        found._unknown = fields.whole("unknown")
        return found


class Trace:
    """Keeps the largest sample of each step. When there are too many steps, each two are merged into one."""

    def __init__(self, points: int = MOST_POINTS) -> None:
        self._points = max(2, points)
        self._step_s = FIRST_STEP_S
        self._steps: list[int | None] = []

    def note(self, at_s: float, used_bytes: int) -> None:
        """Take one sample, *at_s* seconds after the start of the run."""
        while int(at_s / self._step_s) >= self._points:
            self._halve()
        place = max(0, int(at_s / self._step_s))
        self._steps += [None] * (place + 1 - len(self._steps))
        known = self._steps[place]
        self._steps[place] = used_bytes if known is None else max(known, used_bytes)

    def _halve(self) -> None:
        pairs = [self._steps[i : i + 2] for i in range(0, len(self._steps), 2)]
        known = [[each for each in pair if each is not None] for pair in pairs]
        self._steps = [max(pair) if pair else None for pair in known]
        self._step_s *= 2

    def timeline(self) -> Timeline | None:
        """Return the timeline so far; None if it has fewer than two points."""
        if len(self._steps) < 2:  # noqa: PLR2004 - a line has two ends
            return None
        return Timeline(step_s=self._step_s, bytes=tuple(self._steps))

    def to_plain(self) -> dict[str, Any]:
        """Return the trace as plain values."""
        return {"points": self._points, "step_s": self._step_s, "steps": list(self._steps)}

    @classmethod
    def from_plain(cls, plain: object) -> Trace:
        """Return the trace that :meth:`to_plain` wrote, perhaps in another worker.

        Raises:
            Unreadable: *plain* is not a valid trace.

        """
        fields = Fields(plain, "a trace")
        trace = cls(fields.whole("points"))
        trace._step_s, trace._steps = fields.number("step_s"), list(fields.wholes_or_none("steps"))
        if trace._step_s < FIRST_STEP_S:
            raise fields.wrong("step_s", f"a step of at least {FIRST_STEP_S} s")
        if len(trace._steps) > trace._points or trace._points > MOST_POINTS:
            raise fields.wrong("steps", f"a list of at most {min(trace._points, MOST_POINTS)} points")
        return trace
