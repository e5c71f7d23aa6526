from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpuqueue.codec.wire import from_plain, to_stored
from gpuqueue.model.device import Timeline
from workers.measure.meter import FIRST_STEP_S, MOST_POINTS, Trace


def test_a_line_is_the_largest_sample_of_each_step() -> None:
    """Each point is the largest sample of its step. A step without a sample is None, and not 0."""
    trace = Trace()
    for at_s, used in ((0.01, 1), (0.02, 5), (0.35, 3)):
        trace.note(at_s, used)

    assert Timeline(step_s=FIRST_STEP_S, bytes=(5, None, None, 3)) == trace.timeline()


def test_a_point_is_no_line() -> None:
    """A run that is too short has no timeline, so that a million short jobs need no space for it."""
    trace = Trace()
    assert trace.timeline() is None
    trace.note(0.05, 7)
    assert trace.timeline() is None


def test_three_days_take_no_more_room_than_three_minutes() -> None:
    """The step doubles until all points fit, and a spike of one sample is never lost."""
    trace = Trace()
    for second in range(3 * 24 * 3600):
        trace.note(float(second), 77 if second == 100_000 else 5)

    line = trace.timeline()

    assert line is not None
    assert MOST_POINTS / 2 < len(line.bytes) <= MOST_POINTS
    assert {5, 77} == set(line.bytes)
    assert 77 == line.bytes[int(100_000 / line.step_s)]


@given(
    st.lists(st.tuples(st.floats(0, 10**6, width=32), st.integers(0, 2**40)), min_size=1, max_size=200),
    st.integers(1, 240),
)
def test_whatever_comes_the_largest_stays_and_the_points_are_few(samples: list[tuple[float, int]], points: int) -> None:
    """The largest sample stays and the number of points is limited, for samples in any order.

    Times can go back when another worker adopts a run on another clock.
    """
    trace = Trace(points)
    for at_s, used in samples:
        trace.note(at_s, used)

    line = from_plain(Trace, to_stored(trace)).timeline()

    if line is None:
        assert max(at_s for at_s, _ in samples) < FIRST_STEP_S
        return
    assert len(line.bytes) <= max(2, points)
    assert max(used for _, used in samples) == max(each for each in line.bytes if each is not None)
