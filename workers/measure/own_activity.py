"""How much one run used one device, over its whole time. Pure."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from gpuqueue.model.device import Utilisation
from gpuqueue.text.json_fields import Fields

#: The percentile that is kept beside the mean.
HIGH = 0.95
#: Shares are counted in steps of this many parts of one: drivers report whole percents.
_STEPS = 100


class Distribution:
    """The mean and the percentiles of a series of shares from 0 to 1, in a constant amount of memory."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self._total = 0.0

    def note(self, share: float) -> None:
        """Take one share. Values outside 0 to 1 count as the nearer of the two."""
        share = min(1.0, max(0.0, share))
        self._counts[round(share * _STEPS)] += 1
        self._total += share

    @property
    def count(self) -> int:
        """Return the number of shares."""
        return self._counts.total()

    @property
    def mean(self) -> float | None:
        """Return the mean, or None without shares."""
        return self._total / self.count if self.count else None

    def percentile(self, share: float) -> float | None:
        """Return the smallest value that this *share* of the series does not exceed, to a percent; None without one."""
        wanted = math.ceil(share * self.count)
        for step in sorted(self._counts):
            wanted -= self._counts[step]
            if wanted <= 0:
                return step / _STEPS
        return None

    def to_plain(self) -> dict[str, Any]:
        """Return it as plain values."""
        steps = sorted(self._counts)
        return {"total": self._total, "steps": steps, "counts": [self._counts[step] for step in steps]}

    @classmethod
    def from_plain(cls, fields: Fields) -> Distribution:
        """Return what :meth:`to_plain` wrote.

        Raises:
            Unreadable: *fields* are not valid.

        """
        steps, counts = fields.wholes_or_none("steps"), fields.wholes_or_none("counts")
        known = {step: count for step, count in zip(steps, counts, strict=False) if step is not None and count}
        if len(steps) != len(counts) or len(known) != len(steps) or any(step > _STEPS for step in known):
            raise fields.wrong("counts", "a number for each step")
        found = cls()
        found._counts, found._total = Counter(known), fields.number("total")
        return found


class OwnActivity:
    """The distribution of the samples for which the use of a run is known.

    Without such a sample, or if fewer than half of all samples are known, the figures are unknown: they would be those
    of a part of the run, such as the minute in which it was alone.
    """

    def __init__(self) -> None:
        self._busy = Distribution()
        self._memory = Distribution()
        self._unknown = 0

    def note(self, own: Utilisation | None) -> None:
        """Take one sample; None: unknown."""
        if own is None:
            self._unknown += 1
            return
        self._busy.note(own.busy)
        if own.memory is not None:
            self._memory.note(own.memory)

    def figures(self) -> dict[str, float | None]:
        """Return the figures by their names in :class:`gpuqueue.model.device.Activity`."""
        samples = self._busy.count + self._unknown
        found = {}
        for name, each in (("own_utilisation", self._busy), ("own_bandwidth", self._memory)):
            is_known = each.count > 0 and 2 * each.count >= samples
            found[f"{name}_mean"] = each.mean if is_known else None
            found[f"{name}_p95"] = each.percentile(HIGH) if is_known else None
        return found

    def to_plain(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {"busy": self._busy.to_plain(), "memory": self._memory.to_plain(), "unknown": self._unknown}

    @classmethod
    def from_plain(cls, fields: Fields) -> OwnActivity:
        """Return what :meth:`to_plain` wrote.

        Raises:
            Unreadable: *fields* are not valid.

        """
        found = cls()
        found._busy = Distribution.from_plain(fields.below("busy", "a distribution"))
        found._memory = Distribution.from_plain(fields.below("memory", "a distribution"))
        found._unknown = fields.whole("unknown")
        return found
