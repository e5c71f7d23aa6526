"""Compares every recorded peak with the fake driver's record of the run. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from soak.jobs import Kind

if TYPE_CHECKING:
    from soak.truth import Level

    from gpuqueue.model.device import Peak

#: The time that counts as longer than the sampler's step for the count of equal peaks: three steps of a young run, in
#: seconds.
HELD_S = 0.3
#: The sampler's step for a young run plus the time of the sample itself on an idle machine, in seconds.
STEP_S = 0.15


@dataclass(slots=True)
class Peaks:
    """Counts of how the peaks of honest runs compare with the driver's record."""

    compared: int = 0
    #: The runs that held their peak for longer than the sampler's step, and those of them with an equal recorded peak.
    held: int = 0
    equal: int = 0
    #: The same for runs of one process on cards with accounting, for any length of the peak.
    accounted: int = 0
    accounted_equal: int = 0
    #: Runs without any sample, which only happens if the machine gave the sampler no time.
    unseen: int = 0
    #: Runs that held more than the recorded peak for longer than a step without a sample: the sampler was late.
    late: int = 0
    longest_unseen_s: float = 0.0
    largest_gap_bytes: int = 0
    #: By how much liars exceeded their request, in bytes.
    excesses: list[int] = field(default_factory=list)
    above: list[str] = field(default_factory=list)
    mismatches: list[str] = field(default_factory=list)

    def compare(self, who: str, kind: Kind, level: Level, peak: Peak, *, accounting: bool) -> None:
        """Compare one run on one card."""
        recorded = peak.bytes or 0
        if recorded > level.peak_bytes:
            self.above.append(f"{who}: recorded {recorded}, the truth is {level.peak_bytes} ({peak.source})")
        if not kind.honest:
            return
        self.compared += 1
        equal = recorded == level.peak_bytes
        if level.at_peak_s() >= HELD_S:
            self.held += 1
            self.equal += equal
        if not recorded:
            self.unseen += 1
        elif accounting and kind is not Kind.TWO:
            self.accounted += 1
            self.accounted_equal += equal
        if equal:
            return
        unseen_s = level.longest_above_s(recorded)
        self.longest_unseen_s = max(self.longest_unseen_s, unseen_s)
        self.largest_gap_bytes = max(self.largest_gap_bytes, level.peak_bytes - recorded)
        if unseen_s > STEP_S:
            self.late += 1
            gap = (level.peak_bytes - recorded) / 2**20
            self.mismatches.append(
                f"{who} ({kind.value}): {gap:.0f} MiB below the truth for {unseen_s:.2f} s, {peak.samples} samples"
            )
