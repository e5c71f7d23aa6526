"""Tests of the files that hold the values of an array."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuqueue.client import placeholders
from gpuqueue.errors import BadRequest
from gpuqueue.model.sweep import Axis


def values(text: str) -> list[str]:
    """Return the values of the sweep *text*."""
    axis = Axis.typed(text)
    return [axis.value(place) for place in range(len(axis))]


def test_each_line_of_a_file_is_a_value(tmp_path: Path) -> None:
    """A value is the line as it is written: no comma, range, bracket or quote in it has a meaning."""
    lines = ["a,b", "[64", "0..4", 'it\'s "one"', "#fff", "--lr 1e-3 --seed 0", "@x", "0.1..0.5"]
    file = tmp_path / "values.txt"
    file.write_text("\n".join(lines))

    assert lines == values(placeholders.with_file(f"data=@{file}"))
    assert lines == values(placeholders.each_line(str(file)))
    assert "line" == Axis.typed(placeholders.each_line(str(file))).name


def test_a_file_of_another_system_has_the_same_values(tmp_path: Path) -> None:
    """A byte order mark, carriage returns, empty lines and the space around a line belong to no value."""
    file = tmp_path / "values.txt"
    file.write_bytes("\ufeff1e-3\r\n\r\n  1e-4 \r\nü\r\n".encode())

    assert ["1e-3", "1e-4", "ü"] == values(placeholders.with_file(f"lr=@{file}"))


def test_other_sweeps_stay_as_they_are() -> None:
    """Only an @ right after the equals sign names a file."""
    for text in ("lr=1e-3,@x", "lr", "lr=0..4"):
        assert text == placeholders.with_file(text)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, r"cannot read the file \(No such file or directory\)"),
        (b"\n \n", "the file is empty"),
        (b"\xff\xfe1\x00", "no text in UTF-8"),
        (b"1\n" * (placeholders.MAX_VALUES_BYTES // 2 + 1), "more than 256K of values"),
    ],
)
def test_a_file_without_values_is_refused_in_one_line(tmp_path: Path, content: bytes | None, why: str) -> None:
    """The line names what was typed, the trouble and the remedy."""
    file = tmp_path / "values.txt"
    if content is not None:
        file.write_bytes(content)

    for typed, read in (
        (f"--sweep lr=@{file}", lambda: placeholders.with_file(f"lr=@{file}")),
        (f"--each-line {file}", lambda: placeholders.each_line(str(file))),
    ):
        with pytest.raises(BadRequest, match=why) as refused:
            read()
        assert str(refused.value).startswith(f"{typed}: ")
        assert "\n" not in str(refused.value)
