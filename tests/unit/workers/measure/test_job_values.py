"""The reader of what a job reports: whole lines, once each, within bounds, whatever the job puts there."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from workers.measure.job_values import MOST_BYTES, ValuesReader


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """Return a run directory with an empty log."""
    (tmp_path / "log").touch()
    return tmp_path


def report(run_dir: Path, text: str, name: str = "metrics") -> None:
    """Append *text* to a file, as a job does."""
    with (run_dir / name).open("a") as file:
        file.write(text)


def counts(reader: ValuesReader) -> dict[str, int]:
    """Return how many values of each metric are known."""
    values = reader.values()
    return {} if values is None else {each.name: each.count for each in values.metrics}


def line(name: str, value: float = 1.0) -> str:
    """Return a report."""
    return json.dumps({"metric": {name: value}}) + "\n"


def test_each_line_counts_once_and_only_when_it_is_whole(run_dir: Path) -> None:
    """The rest of the last line comes with a later reading; at the end a line needs no end."""
    reader = ValuesReader(run_dir)
    report(run_dir, line("a") + line("b")[:9])
    report(run_dir, "metric: c=1\nmetric: d", name="log")
    for _ in range(2):
        reader.read(0.0, 1.0)
    assert {"a": 1, "c": 1} == counts(reader)

    report(run_dir, line("b")[9:] + line("e").rstrip())
    report(run_dir, "=1", name="log")
    for _ in range(2):
        reader.read(0.0, 2.0, (run_dir / "log").read_bytes())

    assert {"a": 1, "b": 1, "c": 1, "d": 1, "e": 1} == counts(reader)
    assert reader.gap is None


def test_another_reader_goes_on_where_the_figures_end(run_dir: Path) -> None:
    """What the first one read after it saved them is read again, into the saved state."""
    first, second = ValuesReader(run_dir), ValuesReader(run_dir)
    assert first.to_plain() is None
    report(run_dir, line("a") * 3)
    report(run_dir, "metric: b=1\n", name="log")
    first.read(0.0, 1.0)
    saved = json.loads(json.dumps(first.to_plain()))
    report(run_dir, line("a") * 2)
    first.read(0.0, 2.0)

    second.resume(saved)
    report(run_dir, line("a") * 4)
    second.read(0.0, 3.0, (run_dir / "log").read_bytes())

    assert {"a": 9, "b": 1} == counts(second)


def test_of_too_much_a_part_is_read_at_a_time(run_dir: Path) -> None:
    """The file is read on at each heartbeat. Of the log only the newest part is searched."""
    reader, lines = ValuesReader(run_dir), 3 * MOST_BYTES // len(line("a"))
    report(run_dir, line("a") * lines)
    report(run_dir, "metric: old=1\n" + "x" * 99 + "\n" * (MOST_BYTES + 1) + "metric: new=1\n", name="log")

    reader.read(0.0, 1.0)
    assert 0 < counts(reader)["a"] < lines // 2
    reader.read(0.0, 2.0, b"x" * MOST_BYTES)

    assert {"a": lines, "new": 1} == counts(reader)
    assert reader.gap is None


def test_what_was_removed_before_it_was_read_is_missing(run_dir: Path) -> None:
    """The shim cuts a hole into a file that is too large, or cuts it off; a note says how much is missing."""
    reader, path = ValuesReader(run_dir), run_dir / "metrics"
    report(run_dir, line("a"))
    reader.read(0.0, 1.0)
    with path.open("r+b") as file:
        file.seek(2**20)
        file.write(line("b").encode())
    reader.read(0.0, 2.0)
    assert {"a": 1, "b": 1} == counts(reader)
    assert reader.gap is not None
    assert 2**20 - 4096 <= (reader.gap.size_bytes or 0) <= 2**20

    os.truncate(path, 10)
    reader.read(0.0, 3.0)
    report(run_dir, "\n" + line("c"))
    reader.read(0.0, 4.0)
    assert {"a": 1, "b": 1, "c": 1} == counts(reader)
    assert "its metrics are incomplete: 2M of" in reader.gap.words.replace("2.0M", "2M")


@pytest.mark.parametrize("kind", ["link", "pipe", "directory", "endless"])
def test_something_else_is_not_read(run_dir: Path, kind: str) -> None:
    """No link is followed and no pipe is waited for."""
    place = run_dir / "metrics"
    if kind == "link":
        report(run_dir, line("a"), name="secret")
        place.symlink_to(run_dir / "secret")
    elif kind == "pipe":
        os.mkfifo(place)
    elif kind == "directory":
        place.mkdir()
    else:
        place.symlink_to("/dev/zero")
    reader = ValuesReader(run_dir)

    reader.read(0.0, 1.0)
    reader.read(0.0, 1.0, b"")

    assert reader.values() is None
    assert reader.to_plain() is None
