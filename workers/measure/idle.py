"""Since when a run has not used its devices, and what follows from that. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

#: Longest time between two samples of one time without use, in seconds. In a longer gap the run may have used the
#: device: its worker was not running.
MAX_GAP_S = 10.0
#: How long before an action its last warning comes, in seconds, or half of the grace if that is shorter.
LAST_WARNING_S = 300.0


@dataclass(slots=True)
class Unused:
    """The time for which a run has not used one device: from the first of its latest samples without use.

    A sample with unknown use ends the time, and so does a gap between two samples of more than MAX_GAP_S: the run may
    have used the device.
    """

    begin_s: float | None = None
    last_s: float | None = None
    #: Whether the run has used the device at any time.
    was_used: bool = False

    def note(self, busy: float | None, at_s: float) -> None:
        """Take one sample: *busy*, the share of time in which the device worked for the run, at *at_s* seconds."""
        if busy is None or busy > 0:
            self.begin_s = None
            self.was_used = self.was_used or busy is not None
        elif self.begin_s is None or self._is_over(at_s):
            self.begin_s = at_s
        self.last_s = at_s

    def since_s(self, now_s: float) -> float | None:
        """Return since when the run has not used the device, or None if it has used it or that is unknown."""
        return None if self._is_over(now_s) else self.begin_s

    def _is_over(self, now_s: float) -> bool:
        return self.last_s is None or now_s - self.last_s > MAX_GAP_S


class Stage(IntEnum):
    """The stage that a run has reached by its idle time. The store has the number of the stage."""

    #: It uses its devices, or its use is unknown, or the time is too short.
    IN_USE = 0
    #: It is marked as idle.
    MARKED = 1
    #: It got the last warning before the action of the site.
    WARNED = 2
    #: The action of the site is due.
    DUE = 3


def last_warning_s(grace_s: float) -> float:
    """Return how long before the action the last warning comes, in seconds."""
    return min(LAST_WARNING_S, grace_s / 2)


def stage_of(
    unused_s: float | None, *, after_s: float | None, grace_s: float | None, warned_s: float | None = None
) -> Stage:
    """Return the stage of a run that has not used its devices for *unused_s* seconds.

    The action never comes without the last warning before it. If the warning was late, so is the action.

    Args:
        unused_s: The time without use, in seconds; None: it uses one of them, or that is unknown.
        after_s: The time from which on it is marked; None: never.
        grace_s: The time from the mark to the action; None: there is no action.
        warned_s: How long ago the last warning was given, in seconds; None: it was not.

    """
    if unused_s is None or after_s is None or unused_s < after_s:
        return Stage.IN_USE
    if grace_s is None:
        return Stage.MARKED
    last_s = last_warning_s(grace_s)
    if after_s + grace_s - unused_s > last_s:
        return Stage.MARKED
    return Stage.WARNED if warned_s is None or warned_s < last_s else Stage.DUE
