"""A run's memory over time in a fixed number of points; the steps get coarser as the run gets longer. Pure."""

from __future__ import annotations

from typing import Any

from gpuqueue.model.device import Timeline
from gpuqueue.text.json_fields import Fields

#: Most points of a run, over all its devices.
MOST_POINTS = 240
#: The length of the first steps, in seconds: the shortest time between two samples.
FIRST_STEP_S = 0.1


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
