"""Bounds on what a job may cost, in counts. A count does not depend on the load of the machine; a time does.

Each bound is a range. Above it something became more expensive: find out what, and whether it is worth it. Only then
raise the bound, in the same commit, and say there why. Below it something became cheaper, or the test measures nothing
any more: find out which, and lower the range, so that the gain stays. A count that does not vary has no range. The
ranges allow for the measured spread: two or three percent to either side for the store, which is always that of the
wheel, and about a tenth above for counts that depend on the version of Python.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Bound:
    """A range that includes both ends."""

    least: float
    most: float

    def hold(self, found: float, what: str) -> None:
        """Fail unless *found* is in the range."""
        assert found >= self.least, (
            f"{what}: {found:g}, at least {self.least:g} was usual: see tests/support/guard/bounds.py"
        )
        assert found <= self.most, (
            f"{what}: {found:g}, at most {self.most:g} is agreed: see tests/support/guard/bounds.py"
        )
