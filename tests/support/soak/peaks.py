"""Is every peak in the book the truth? Compared with what the fake driver recorded of the run. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from soak.jobs import Kind

if TYPE_CHECKING:
    from soak.truth import Level

    from gpuqueue.model.device import Peak

#: What "longer than the sampler's step" is for the count of equal peaks: three steps of a young run, in seconds.
HELD_S = 0.3
#: The sampler's step for a young run, and what its look itself may take on an idle machine, in seconds.
STEP_S = 0.15


@dataclass(slots=True)
class Peaks:
    """How the peaks of honest runs compare with the truth."""

    compared: int = 0
    #: Of the runs that held their peak for longer than the sampler's step: how many there were, how many are equal.
    held: int = 0
    equal: int = 0
    #: The same of runs of one process on cards whose driver keeps accounts, however short their peak was.
    accounted: int = 0
    accounted_equal: int = 0
    #: Runs that nobody ever saw on the card, which only happens where the machine gave the sampler no time.
    unseen: int = 0
    #: Runs that held more than the recorded peak for longer than a step, without a look: the sampler was late.
    late: int = 0
    longest_unseen_s: float = 0.0
    largest_gap_bytes: int = 0
    #: By how much liars passed what they had asked for, in bytes.
    excesses: list[int] = field(default_factory=list)
    above: list[str] = field(default_factory=list)
    mismatches: list[str] = field(default_factory=list)

    def compare(self, who: str, kind: Kind, level: Level, peak: Peak, *, accounting: bool) -> None:
        """Take one run on one card."""
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
