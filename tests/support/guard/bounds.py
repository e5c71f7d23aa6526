"""What a job may cost, in counts. A count does not depend on who else is on the machine; a second does.

Each bound is a range. Above it something became dearer: find out what, and whether it is worth it; only then move the
bound, in the same commit, and say there why. Below it something became cheaper, or the test measures nothing any more:
look which, and pull the range down behind it, so that it stays held. What does not vary has no range but its count; the
ranges leave what the measured spread needs: two or three percent to either side for the store, which is always that of
our wheel, about a tenth above for what depends on the version of Python.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Bound:
    """A range with both ends in it."""

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
