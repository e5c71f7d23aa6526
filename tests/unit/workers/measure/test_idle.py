from __future__ import annotations

import pytest

from workers.measure.idle import LAST_WARNING_S, MAX_GAP_S, Stage, Unused, stage_of

HOUR_S = 3600.0


def unused_of(*samples: tuple[float, float | None]) -> Unused:
    """Return the time without use after *samples*: the time of each, and the share in which the device worked."""
    unused = Unused()
    for at_s, busy in samples:
        unused.note(busy, at_s)
    return unused


@pytest.mark.parametrize(
    ("samples", "since_s"),
    [
        (((10, 0.0), (20, 0.0)), 10),
        (((10, 0.0), (20, 0.01), (30, 0.0)), 30),
        (((10, 0.0), (20, 0.5)), None),
        ((), None),
        (((10, None), (20, None)), None),
        (((10, 0.0), (20, None), (30, 0.0)), 30),
        (((10, 0.0), (20, 0.0), (30, None)), None),
    ],
)
def test_the_time_without_use_begins_after_the_last_use(
    samples: tuple[tuple[float, float | None], ...], since_s: float | None
) -> None:
    """The time begins with the first sample after the last use, or after the last sample whose use is unknown."""
    assert since_s == unused_of(*samples).since_s(30.0)


def test_what_is_unknown_for_long_is_no_time_without_use() -> None:
    """A gap without known samples ends the time, because the run may have used the device in it."""
    last_s = 20.0
    unused = unused_of((10, 0.0), (last_s, 0.0))
    assert 10 == unused.since_s(last_s + MAX_GAP_S)
    assert unused.since_s(last_s + MAX_GAP_S + 1) is None

    unused.note(0.0, last_s + MAX_GAP_S + 1)

    assert last_s + MAX_GAP_S + 1 == unused.since_s(last_s + MAX_GAP_S + 2)


@pytest.mark.parametrize(
    ("unused_s", "after_s", "grace_s", "stage"),
    [
        (None, HOUR_S, None, Stage.IN_USE),
        (HOUR_S - 1, HOUR_S, None, Stage.IN_USE),
        (9 * HOUR_S, None, HOUR_S, Stage.IN_USE),
        (HOUR_S, HOUR_S, None, Stage.MARKED),
        (9 * HOUR_S, HOUR_S, None, Stage.MARKED),
        (2 * HOUR_S - LAST_WARNING_S - 1, HOUR_S, HOUR_S, Stage.MARKED),
        (2 * HOUR_S - LAST_WARNING_S, HOUR_S, HOUR_S, Stage.WARNED),
        (HOUR_S + 4, HOUR_S, 10.0, Stage.MARKED),
        (HOUR_S + 6, HOUR_S, 10.0, Stage.WARNED),
    ],
)
def test_the_stages_come_one_after_the_other(
    unused_s: float | None, after_s: float | None, grace_s: float | None, stage: Stage
) -> None:
    """A run is marked, and warned before the action. Unknown use never marks it, and a mark alone has no action."""
    assert stage is stage_of(unused_s, after_s=after_s, grace_s=grace_s)


@pytest.mark.parametrize(
    ("warned_s", "stage"),
    [(None, Stage.WARNED), (0.0, Stage.WARNED), (LAST_WARNING_S - 1, Stage.WARNED), (LAST_WARNING_S, Stage.DUE)],
)
def test_no_action_comes_without_its_warning(warned_s: float | None, stage: Stage) -> None:
    """However long a run has been idle, its owner has the time of the last warning.

    The site may have set the action a moment ago.
    """
    assert stage is stage_of(99 * HOUR_S, after_s=HOUR_S, grace_s=HOUR_S, warned_s=warned_s)
