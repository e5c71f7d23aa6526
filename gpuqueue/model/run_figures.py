"""What a run that goes on has used and reported so far. Its worker writes it with each heartbeat. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from typing import TYPE_CHECKING

from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.device import Timeline
from gpuqueue.model.job_values import JobValues

if TYPE_CHECKING:
    from gpuqueue.model.run import Run


@dataclass(frozen=True, kw_only=True, slots=True)
class RunFigures:
    """The memory of a run on each device over time, by UUID, and the values that it has reported.

    ``values`` is None if there are none, or the reader may not see them.
    """

    timelines: Mapping[str, Timeline] = field(default_factory=dict)
    values: JobValues | None = None

    def within(self, run: Run) -> Run:
        """Return *run* with these figures in place of its own, which a run has after its end."""
        devices = tuple(replace(each, timeline=self.timelines.get(each.uuid)) for each in run.devices)
        return replace(run, devices=devices, values=self.values)
