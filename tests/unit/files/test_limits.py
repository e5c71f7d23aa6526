"""Tests of the limits of a snapshot and of the message about them."""

from __future__ import annotations

import pytest

from gpuqueue.errors import BadRequest
from gpuqueue.files import limits
from gpuqueue.files.errors import SnapshotTooLarge
from gpuqueue.files.limits import Limits, ignore_line
from gpuqueue.text.units import MIB


def refusal(sizes: list[tuple[str, int]], at_most: Limits) -> SnapshotTooLarge:
    """Return the refusal of files with these sizes."""
    with pytest.raises(SnapshotTooLarge) as raised:
        limits.check(sizes, at_most)
    return raised.value


def test_what_is_exactly_at_the_limits_is_allowed() -> None:
    """The limits themselves are allowed."""
    limits.check([("a", 5), ("b", 5)], Limits(total_bytes=10, file_bytes=5, files=2))


def test_the_defaults() -> None:
    """A snapshot may have 200 MiB in 20 000 files of at most 20 MiB."""
    assert Limits(total_bytes=200 * MIB, file_bytes=20 * MIB, files=20_000) == limits.DEFAULT


def test_the_ten_largest_files_are_named_with_a_line_to_leave_them_out() -> None:
    """The message has the ten largest files, the largest first, and a line for the ignore file."""
    sizes = [(f"data/part-{n:02}.bin", n * MIB) for n in range(1, 20)]

    error = refusal(sizes, Limits(total_bytes=100 * MIB))

    assert [f"data/part-{n}.bin" for n in range(19, 9, -1)] == [path for path, _ in error.largest]
    assert "190M in 19 files, above the limit of 100M" in str(error)
    assert "data/part-19.bin 19M, data/part-18.bin 18M" in str(error)
    assert str(error).endswith("by a line in .gpuqueueignore, for example /data/*.bin")
    assert "/data/*.bin" == error.ignore_line


def test_one_large_file() -> None:
    """A file above the limit is named with its own line, in which special characters are escaped."""
    error = refusal([("a.py", 10), ("w [1]*.bin", 30 * MIB)], Limits())

    assert "a file of 30M, above the limit of 20M for a file" in str(error)
    assert "/w \\[1]\\*.bin" == error.ignore_line


def test_too_many_files_name_the_directory_that_has_them() -> None:
    """The line leaves out the deepest directory that has most of the files."""
    sizes = [(f"runs/images/{n}.png", 1) for n in range(30)] + [(f"src/{n}.py", 1) for n in range(10)]

    error = refusal(sizes, Limits(files=39))

    assert "more than 39 files" in str(error)
    assert "/runs/images/" == error.ignore_line
    assert "/*.txt" == refusal([(f"{n}.txt", 1) for n in range(3)], Limits(files=2)).ignore_line


def test_long_paths_do_not_push_the_remedy_out_of_the_message() -> None:
    """The message stays short enough to be shown whole."""
    error = refusal([(f"{'d' * 200}/{'e' * 200}/{n}.bin", 2) for n in range(10)], Limits(file_bytes=1))

    assert len(str(error)) < 2000
    assert "\x1b" not in str(refusal([("\x1b[2J", 2)], Limits(file_bytes=1)))


@pytest.mark.parametrize(
    ("path", "line"),
    [("a b", "/a b"), ("a ", "/a\\ "), ("a?", "/a\\?"), ("a\\", "/a\\\\"), ("#a", "/#a"), ("!a", "/!a")],
)
def test_a_line_names_one_file(path: str, line: str) -> None:
    """A path becomes an anchored pattern for itself."""
    assert line == ignore_line(path)


@pytest.mark.parametrize("wrong", [0, -1, True, 1.5])
def test_a_limit_is_a_whole_number_above_0(wrong: int) -> None:
    """Other limits are refused."""
    with pytest.raises(BadRequest, match="no limit"):
        Limits(files=wrong)
