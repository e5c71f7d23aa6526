"""The figures of one run on one device, updated with each sample. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from gpuqueue.codec.wire import from_plain
from gpuqueue.model.device import Activity, Health, Timeline, Utilisation
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


@dataclass(slots=True)
class Mean:
    """The mean and the maximum of a series of figures."""

    count: int = 0
    total: float = 0.0
    largest: float | None = None

    def note(self, figure: float) -> None:
        """Take one figure."""
        self.count += 1
        self.total += figure
        self.largest = figure if self.largest is None else max(self.largest, figure)

    @property
    def value(self) -> float | None:
        """Return the mean, or None without figures."""
        return self.total / self.count if self.count else None


@dataclass(slots=True)
class Distribution:
    """The mean and the percentiles of a series of shares from 0 to 1, in a constant amount of memory."""

    total: float = 0.0
    #: How many shares there are of each step.
    counts: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if any(not 0 <= step <= _STEPS for step in self.counts):
            raise ValueError("a distribution has a share above 1")

    def note(self, share: float) -> None:
        """Take one share. Values outside 0 to 1 count as the nearer of the two."""
        share = min(1.0, max(0.0, share))
        step = round(share * _STEPS)
        self.counts[step] = self.counts.get(step, 0) + 1
        self.total += share

    @property
    def count(self) -> int:
        """Return the number of shares."""
        return sum(self.counts.values())

    @property
    def mean(self) -> float | None:
        """Return the mean, or None without shares."""
        return self.total / self.count if self.count else None

    def percentile(self, share: float) -> float | None:
        """Return the smallest value that this *share* of the series does not exceed, to a percent; None without one."""
        wanted = math.ceil(share * self.count)
        for step in sorted(self.counts):
            wanted -= self.counts[step]
            if wanted <= 0:
                return step / _STEPS
        return None


@dataclass(slots=True)
class OwnActivity:
    """The distribution of the samples for which the use of a run is known.

    Without such a sample, or if fewer than half of all samples are known, the figures are unknown: they would be those
    of a part of the run, such as the minute in which it was alone.
    """

    busy: Distribution = field(default_factory=Distribution)
    memory: Distribution = field(default_factory=Distribution)
    unknown: int = 0

    def note(self, own: Utilisation | None) -> None:
        """Take one sample; None: unknown."""
        if own is None:
            self.unknown += 1
            return
        self.busy.note(own.busy)
        if own.memory is not None:
            self.memory.note(own.memory)

    def figures(self) -> dict[str, float | None]:
        """Return the figures by their names in :class:`gpuqueue.model.device.Activity`."""
        samples = self.busy.count + self.unknown
        found = {}
        for name, each in (("own_utilisation", self.busy), ("own_bandwidth", self.memory)):
            is_known = each.count > 0 and 2 * each.count >= samples
            found[f"{name}_mean"] = each.mean if is_known else None
            found[f"{name}_p95"] = each.percentile(HIGH) if is_known else None
        return found


@dataclass(slots=True)
class Trace:
    """Keeps the largest sample of each step. When there are too many steps, each two are merged into one."""

    points: int = MOST_POINTS
    step_s: float = FIRST_STEP_S
    steps: list[int | None] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.points = max(2, self.points)
        if self.step_s < FIRST_STEP_S or len(self.steps) > self.points or self.points > MOST_POINTS:
            raise ValueError(f"a trace has steps of at least {FIRST_STEP_S} s, and at most {MOST_POINTS} points")

    def note(self, at_s: float, used_bytes: int) -> None:
        """Take one sample, *at_s* seconds after the start of the run."""
        while int(at_s / self.step_s) >= self.points:
            self._halve()
        place = max(0, int(at_s / self.step_s))
        self.steps += [None] * (place + 1 - len(self.steps))
        known = self.steps[place]
        self.steps[place] = used_bytes if known is None else max(known, used_bytes)

    def _halve(self) -> None:
        pairs = [self.steps[i : i + 2] for i in range(0, len(self.steps), 2)]
        known = [[each for each in pair if each is not None] for pair in pairs]
        self.steps = [max(pair) if pair else None for pair in known]
        self.step_s *= 2

    def timeline(self) -> Timeline | None:
        """Return the timeline so far; None if it has fewer than two points."""
        if len(self.steps) < 2:  # noqa: PLR2004 - a line has two ends
            return None
        return Timeline(step_s=self.step_s, bytes=tuple(self.steps))


@dataclass(slots=True)
class Figures:
    """The figures of a meter that another worker continues."""

    peak_bytes: int | None = None
    samples: int = 0
    na_samples: int = 0
    shared: bool | None = None
    #: The run's processes that were seen on the device, at most ``MOST_PIDS``.
    pids: frozenset[int] = frozenset()
    #: The device's used bytes right before the run started, and the largest increase since then.
    before_bytes: int | None = None
    delta_bytes: int | None = None
    #: Whether memory appeared on the device while it listed no process, so that a figure of 0 bytes says nothing.
    unlisted: bool = False
    #: The longest time without a figure, in seconds; 0 if none was too long.
    gap_s: float = 0.0
    #: The time of the last figure.
    figure_s: float = 0.0
    first_s: float | None = None
    last_s: float | None = None
    first_memory_s: float | None = None
    utilisation: Mean = field(default_factory=Mean)
    unused: Unused = field(default_factory=Unused)
    own: OwnActivity = field(default_factory=OwnActivity)
    temperature_max_c: float | None = None
    trace: Trace = field(default_factory=Trace)
    #: For the watchdog: whether the job was warned of its excess.
    warned: bool = False


class Meter(Figures):
    """Keeps the largest sample, the number of samples, and the other figures of the samples."""

    def __init__(self, **figures: Any) -> None:
        super().__init__(**figures)
        self.observed_bytes = 0
        #: How long after the last figure the next one may come.
        self._least_gap_s = GAP_S
        #: For the watchdog: its score, and whether the job was asked to end.
        self.excess = 0
        self.ended = False

    @classmethod
    def adopted(cls, plain: object) -> Meter:
        """Return the meter that another worker has written down as *plain*.

        Raises:
            Unreadable: *plain* is not a valid meter.

        """
        meter: Meter = from_plain(cls, plain, "a meter")
        meter._least_gap_s = ADOPTED_GAP_S
        return meter

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
        self.first_s = at_s if self.first_s is None else self.first_s
        self.last_s = at_s
        self.shared = bool(self.shared) or shared
        self.pids |= frozenset(list(pids)[: MOST_PIDS - len(self.pids)])
        if self.before_bytes is not None:
            more_bytes = device_bytes - self.before_bytes
            self.unlisted = self.unlisted or (not listed and more_bytes >= UNLISTED_BYTES)
            if alone:
                self.delta_bytes = max(self.delta_bytes or 0, more_bytes)
        if used_bytes is None:
            self.na_samples += 1
            return
        self.gap_s = self.gap_until_s(at_s)
        self.figure_s, self._least_gap_s = at_s, GAP_S
        self.samples += 1
        self.observed_bytes = used_bytes
        self.peak_bytes = max(self.peak_bytes or 0, used_bytes)
        self.trace.note(at_s, used_bytes)
        if used_bytes and self.first_memory_s is None:
            self.first_memory_s = at_s

    def gap_until_s(self, now_s: float) -> float:
        """Return the longest time without a figure until *now_s*, in seconds; 0 if none was too long."""
        gap_s = now_s - self.figure_s
        return max(self.gap_s, gap_s) if gap_s >= self._least_gap_s else self.gap_s

    @property
    def interval_s(self) -> float | None:
        """Return the mean time between two samples, in seconds; None for fewer than two samples."""
        samples = self.samples + self.na_samples
        if self.first_s is None or self.last_s is None or samples < 2:  # noqa: PLR2004 - an interval needs two samples
            return None
        return round(max(0.0, self.last_s - self.first_s) / (samples - 1), 3)

    def note_health(self, health: Health) -> None:
        """Record the device's health. Called at most once per ``INTERVAL_S``, so that the mean is a mean over time."""
        if health.utilisation is not None:
            self.utilisation.note(health.utilisation)
        if health.temperature_c is not None:
            self.temperature_max_c = max(self.temperature_max_c or health.temperature_c, health.temperature_c)

    def note_use(self, own: Utilisation | None, at_s: float) -> None:
        """Record how much the device worked for the run, at *at_s* seconds since the run's start; None: unknown."""
        self.unused.note(None if own is None else own.busy, at_s)
        self.own.note(own)

    def unused_since_s(self, now_s: float) -> float | None:
        """Return since when the run has not used the device, or None if it has used it or that is unknown.

        Both times are in seconds since the run's start.
        """
        return self.unused.since_s(now_s)

    @property
    def was_used(self) -> bool:
        """Return whether the run has used the device at any time, as far as that is known."""
        return self.unused.was_used

    def activity(self) -> Activity:
        """Return the run's activity on the device: utilisation, temperature, and the time of its first memory."""
        return Activity(
            first_memory_s=self.first_memory_s,
            utilisation_mean=self.utilisation.value,
            utilisation_max=self.utilisation.largest,
            temperature_max_c=self.temperature_max_c,
            **self.own.figures(),
        )

    def timeline(self) -> Timeline | None:
        """Return the run's memory over time; None for a run that is too short for a timeline."""
        return self.trace.timeline()
