"""The fake driver's own record of each step, by runs and external processes. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from fake_driver.fake_driver import Change

#: A process: its pid and its start time, because pids are reused.
Process = tuple[int, int]
#: A run: its job and its token.
Run = tuple[int, str]


@dataclass(slots=True)
class Level:
    """What was held on one card from each of *at_ns* on."""

    at_ns: list[int] = field(default_factory=list)
    bytes: list[int] = field(default_factory=list)

    def note(self, at_ns: int, held_bytes: int) -> None:
        """Add the next step."""
        self.at_ns.append(at_ns)
        self.bytes.append(held_bytes)

    @property
    def peak_bytes(self) -> int:
        """Return the most that was ever held."""
        return max(self.bytes, default=0)

    def least(self, from_ns: int, to_ns: int) -> int:
        """Return the least that was held in a period: a correct reading cannot be lower."""
        first = bisect_right(self.at_ns, from_ns)
        before = self.bytes[first - 1] if first else 0
        return min([before, *self.bytes[first : bisect_right(self.at_ns, to_ns)]])

    def longest_above_s(self, level_bytes: int) -> float:
        """Return the longest continuous time for which more than *level_bytes* was held, in seconds.

        A sample in each such period would have seen more. A period whose end is not in the record does not count.
        """
        longest = since_ns = 0
        for at_ns, held_bytes in zip(self.at_ns, self.bytes, strict=True):
            if held_bytes > level_bytes:
                since_ns = since_ns or at_ns
                continue
            longest = max(longest, at_ns - since_ns if since_ns else 0)
            since_ns = 0
        return longest / 1e9

    def at_peak_s(self) -> float:
        """Return the longest continuous time at the peak, in seconds."""
        return self.longest_above_s(self.peak_bytes - 1)


@dataclass(frozen=True, slots=True)
class Refusal:
    """A request for memory that the driver did not have."""

    at_ns: int
    card: int
    process: Process
    wanted_bytes: int


@dataclass(slots=True)
class Truth:
    """The record by run and card, and of all external processes of each card together."""

    runs: dict[tuple[Run, int], Level] = field(default_factory=lambda: defaultdict(Level))
    external_processes: dict[int, Level] = field(default_factory=lambda: defaultdict(Level))
    refusals: list[Refusal] = field(default_factory=list)


def truth_of(changes: Iterable[Change], owners: Mapping[Process, Run]) -> Truth:
    """Return what each run and the external processes held.

    An external process that never freed its memory has died without a trace, as the worker's own measurement of a
    context does. When it died is not known, so its memory counts only at the moment of its last step.

    Args:
        changes: The record in order.
        owners: The run of each process of a run; all other processes are external.
    """
    truth = Truth()
    changes = list(changes)
    last = {(change.pid, change.start, change.gpu): change for change in changes}
    held: dict[tuple[Run | None, int], dict[Process, int]] = defaultdict(dict)
    for change in changes:
        process = (change.pid, change.start)
        if change.refused_bytes:
            truth.refusals.append(Refusal(change.at_ns, change.gpu, process, change.refused_bytes))
        run = owners.get(process)
        now = held[run, change.gpu]
        now[process] = change.held_bytes
        level = truth.external_processes[change.gpu] if run is None else truth.runs[run, change.gpu]
        level.note(change.at_ns, sum(now.values()))
        died = run is None and change is last[(*process, change.gpu)]
        if died or not change.held_bytes:
            del now[process]
        if died and change.held_bytes:
            level.note(change.at_ns, sum(now.values()))
    return truth
