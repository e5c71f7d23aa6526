from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuqueue.errors import BadRequest
from gpuqueue.text.units import GIB, MIB, format_bytes, format_duration, parse_bytes, parse_duration


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("6G", 6 * GIB),
        ("6GiB", 6 * GIB),
        ("6gb", 6 * GIB),
        ("6000M", 6000 * MIB),
        ("512MiB", 512 * MIB),
        ("1.5G", 3 * GIB // 2),
    ],
)
def test_sizes_are_binary(text: str, size_bytes: int) -> None:
    """Every spelling of a unit means the binary unit."""
    assert size_bytes == parse_bytes(text)


@pytest.mark.parametrize("text", ["", "6", "-6G", "0G", "G", "6 gigs", "nan", "1e9G", "9999999T", "6G 6G"])
def test_what_is_no_size_is_refused_with_a_hint(text: str) -> None:
    """A number without a unit, a negative size and an invalid text each give one line that says what to write."""
    with pytest.raises(BadRequest) as caught:
        parse_bytes(text)

    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "duration_s"),
    [
        ("90s", 90),
        ("15m", 900),
        ("2h", 7200),
        ("1d", 86400),
        ("1h30m", 5400),
        ("1h30", 5400),
        ("2h30", 9000),
        ("1d12", 129600),
        ("5m30", 330),
        ("1d2h30", 95400),
        ("1:30:00", 5400),
        ("30:00", 1800),
        ("1-12:00:00", 129600),
        ("0.5s", 0.5),
    ],
)
def test_durations(text: str, duration_s: float) -> None:
    """A duration has units, sums of units, or a clock form of sbatch."""
    assert duration_s == parse_duration(text)


@pytest.mark.parametrize(
    "text", ["", "90", "-1h", "0s", "1:2", "1w", "99999d", "h", "2h60", "1d24", "30s5", "2.5h30", "h30", "2h305"]
)
def test_what_is_no_duration_is_refused(text: str) -> None:
    """An invalid or ambiguous duration raises `BadRequest`."""
    with pytest.raises(BadRequest):
        parse_duration(text)


@given(st.text(max_size=20))
def test_no_text_does_more_than_be_refused(text: str) -> None:
    """Any text gives a positive number or `BadRequest`."""
    for parse in (parse_bytes, parse_duration):
        with contextlib.suppress(BadRequest):
            assert parse(text) > 0


def test_figures_for_people() -> None:
    """An unknown value is printed as a dash and never as 0."""
    assert ["-", "0B", "6G", "1.5G", "512M"] == [format_bytes(n) for n in (None, 0, 6 * GIB, 3 * GIB // 2, 512 * MIB)]
    assert ["-", "0.4s", "12s", "3:05", "1:30:00", "2d 03:00:00"] == [
        format_duration(s) for s in (None, 0.42, 12, 185, 5400, 183600)
    ]
