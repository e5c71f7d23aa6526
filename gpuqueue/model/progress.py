"""How much of a run's work is done, and how long the rest takes. Pure.

:mod:`gpuqueue.model.progress_reader` reads it from the output of the run.
"""

from __future__ import annotations

from datetime import datetime

from gpuqueue.lazy.frozen import dataclass
from gpuqueue.text.units import format_duration

#: The least share of the work from which the time of the whole is derived. The start of a program counts for too much
#: in less.
LEAST_SHARE = 0.01
#: A run that goes on shows no more than this: after its last step it still saves, tests or cleans up.
MAX_SHARE = 0.99


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """The done ``share`` of the work of a run, 0 to 1, and the ``counts`` that it was read from: ``epoch 3/20``.

    ``left_s`` is the time until the end of the work in seconds, None if it is unknown. ``ends_at`` is that end in an
    answer of the service, which says the same moment to all who ask.
    """

    share: float
    counts: str = ""
    left_s: float | None = None
    ends_at: datetime | None = None

    DERIVED = ("words",)

    @property
    def percent(self) -> str:
        """The share, rounded down: ``14 %``."""
        return f"{int(100 * self.share + 1e-9)} %"

    @property
    def words(self) -> str:
        """The progress in words: ``epoch 3/20, 14 %, 2:10:00 left``."""
        left = "" if self.left_s is None else f"{format_duration(max(1.0, round(self.left_s)))} left"
        return ", ".join(filter(None, (self.counts, self.percent, left)))


@dataclass(frozen=True, slots=True)
class Reading:
    """The ``progress`` that the output of a run shows. ``is_sure``: it is that of the whole job for certain.

    What is not sure may be that of the first epoch. See :mod:`gpuqueue.client.progress`.
    """

    progress: Progress
    is_sure: bool = True
