"""When the run of a probe ends early: after some steps, or when its peak has not grown for a while. Pure.

A probe is a job that runs to find out its memory (``gpuqueue probe``). Requests and run directories store a text
such as ``flat=60,steps=200``: a time in seconds and a count. The worker of the run decides
(:mod:`workers.measure.probe_watch`). The time limit of a probe is that of its job.
"""

from __future__ import annotations

from gpuqueue.errors import BadRequest
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.lazy.imports import pattern
from gpuqueue.text.sanitize import brief
from gpuqueue.text.units import MAX_S

#: Most steps that a probe can wait for.
MAX_STEPS = 10**9
_WRITTEN = pattern(r"(?:flat=(?P<flat>\d{1,9}(?:\.\d{1,3})?))?,?(?:steps=(?P<steps>\d{1,10}))?")


@dataclass(frozen=True, kw_only=True, slots=True)
class Probe:
    """When a probe ends before its time limit. Without both, only the time limit ends it.

    ``flat_s`` is how long the peak may stay the same, in seconds, and ``steps`` the number of steps that the progress
    bar in the job's log counts.
    """

    flat_s: float | None = None
    steps: int | None = None

    def __post_init__(self) -> None:
        """Validate the fields.

        Raises:
            BadRequest: a value is out of range.

        """
        if self.flat_s is not None and not 0 < self.flat_s <= MAX_S:
            raise BadRequest("the time without growth that ends a probe must be above 0 and at most ten years")
        if self.steps is not None and not 0 < self.steps <= MAX_STEPS:
            raise BadRequest(f"a probe ends after 1 to {MAX_STEPS} steps, not {brief(self.steps)}")

    @classmethod
    def parse(cls, text: str) -> Probe:
        """Return the probe that *text* describes. An empty text is a probe that only its time limit ends.

        Raises:
            BadRequest: *text* is malformed, or a value is out of range.

        """
        match = _WRITTEN.fullmatch(text)
        if match is None:
            raise BadRequest(f"{brief(text)} does not describe a probe: write it like flat=60,steps=200")
        flat, steps = match["flat"], match["steps"]
        return cls(flat_s=None if flat is None else float(flat), steps=None if steps is None else int(steps))

    def check(self, time_limit_s: float | None, *, is_array: bool) -> None:
        """Check that a job with this time limit can be a probe.

        Raises:
            BadRequest: there is no time limit, or the job is an array.

        """
        if is_array:
            raise BadRequest("a probe is one run: leave out --array and --sweep")
        if time_limit_s is None:
            raise BadRequest("a probe must end: give it a time limit")

    def __str__(self) -> str:
        """Return the text that :meth:`parse` accepts."""
        words = [] if self.flat_s is None else [f"flat={self.flat_s:.3f}".rstrip("0").rstrip(".")]
        return ",".join([*words, *([] if self.steps is None else [f"steps={self.steps}"])])
