"""Tests of the text that says when a probe ends early."""

from __future__ import annotations

import pytest
from factories import make_spec
from hypothesis import given
from hypothesis import strategies as st

from gpuqueue.errors import BadRequest
from gpuqueue.model.array import Array
from gpuqueue.model.probe import Probe
from gpuqueue.model.progress_reader import steps_in


@given(st.none() | st.integers(1, 10**11), st.none() | st.integers(1, 10**9))
def test_a_text_is_read_as_it_was_written(milliseconds: int | None, steps: int | None) -> None:
    """The text of a probe is that probe, to the millisecond."""
    probe = Probe(flat_s=None if milliseconds is None else milliseconds / 1000, steps=steps)

    assert probe == Probe.parse(str(probe))


@pytest.mark.parametrize("text", ["flat", "flat=", "flat=0", "steps=0", "flat=-1", "steps=1,flat=1", "flat=1 ", "x"])
def test_other_texts_are_refused(text: str) -> None:
    """A text that is no probe is refused where the request is made."""
    with pytest.raises(BadRequest):
        make_spec(probe=text, time_limit_s=60.0)


def test_a_probe_must_end_and_is_one_run() -> None:
    """A probe has a time limit, and is no array."""
    assert "flat=60" == make_spec(probe="flat=60", time_limit_s=60.0).probe
    with pytest.raises(BadRequest, match="give it a time limit"):
        make_spec(probe="flat=60")
    with pytest.raises(BadRequest, match="one run"):
        make_spec(probe="", time_limit_s=60.0, array=Array.asked("0-3", (), None))


@pytest.mark.parametrize(
    ("line", "steps"),
    [
        (b" 45%|####      | 45/100 [00:12<00:15,  3.6it/s]", 45),
        (b"12/100 [===>......] - ETA: 3s", 12),
        (b"step 7 of 9", 7),
        (b" 45%|####      | 4.5k/10.0k [00:12<00:15,  3.6it/s]", None),
        (b" 45%|####      |", None),
    ],
)
def test_steps_are_the_count_of_a_bar(line: bytes, steps: int | None) -> None:
    """Only a plain count is a number of steps."""
    assert steps == steps_in(line)
