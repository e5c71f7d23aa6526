"""When running jobs have probably ended: the same moment for all who ask."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

from gpuqueue.model.progress import Progress
from gpuqueue.service.foreseen import MOST_JOBS, Foreseen

START = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)


class Clock:
    """A clock that a test sets."""

    now = START


def shown(left_s: float | None) -> dict[int, Progress]:
    """Return what the output of job 1 shows."""
    return {1: Progress(share=0.5, left_s=left_s)}


def test_a_moment_stays_until_the_run_foretells_another_one() -> None:
    """Small changes of the pace change nothing, so that two answers agree; a large one counts at once."""
    clock = Clock()
    foreseen = Foreseen(lambda: clock.now)
    first = foreseen.settled(shown(1000.0))[1]
    clock.now = START + timedelta(seconds=5)
    assert (START + timedelta(seconds=1000), 1000.0) == (first.ends_at, first.left_s)

    near, far = foreseen.settled(shown(1080.0))[1], foreseen.settled(shown(2000.0))[1]

    assert (first.ends_at, 995.0) == (near.ends_at, near.left_s)
    assert (START + timedelta(seconds=2005), 2000.0) == (far.ends_at, far.left_s)


def test_a_moment_that_has_passed_is_another_one() -> None:
    """A run that goes on longer than it was said to is not over already."""
    clock = Clock()
    foreseen = Foreseen(lambda: clock.now)
    foreseen.settled(shown(10.0))
    clock.now = START + timedelta(seconds=20)

    assert START + timedelta(seconds=50) == foreseen.settled(shown(30.0))[1].ends_at


def test_what_is_not_known_stays_so() -> None:
    """A run without a time left has no end, and the number of moments is bounded."""
    foreseen = Foreseen(lambda: START)
    assert shown(None) == foreseen.settled(shown(None))
    foreseen.settled({number: Progress(share=0.5, left_s=60.0) for number in range(2 * MOST_JOBS)})

    assert MOST_JOBS == len(foreseen._ends)
