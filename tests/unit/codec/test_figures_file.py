"""The file with what a run has used and reported so far."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuqueue.codec import figures_file
from gpuqueue.model.device import Timeline
from gpuqueue.model.job_values import JobValues, Metric, Reported
from gpuqueue.model.run_figures import RunFigures


def figures(metrics: int = 1, points: int = 2) -> RunFigures:
    """Return figures with so many metrics, each with a curve."""
    curve = tuple((float(at), at, 0.5) for at in range(points))
    made = [
        Metric(name=f"m{number}", count=points, last=Reported(value=0.5, after_s=1.0), curve=curve)
        for number in range(metrics)
    ]
    return RunFigures(
        timelines={"GPU-1": Timeline(step_s=1.0, bytes=(1, None, 3))}, values=JobValues(metrics=tuple(made))
    )


def test_what_is_written_is_read(tmp_path: Path) -> None:
    """Also steps without a sample."""
    (tmp_path / figures_file.NAME).write_text(figures_file.written(figures()))

    assert figures() == figures_file.read(tmp_path)


def test_many_curves_are_left_out_so_that_the_file_stays_small(tmp_path: Path) -> None:
    """The last values stay, and the memory."""
    (tmp_path / figures_file.NAME).write_text(figures_file.written(figures(metrics=200, points=500)))
    found = figures_file.read(tmp_path)

    assert found is not None
    assert figures().timelines == found.timelines
    assert found.values is not None
    assert [(), 0.5] == [found.values.metrics[-1].curve, found.values.metrics[-1].last.value]


@pytest.mark.parametrize("content", ["", "{", "[" * 100_000, '{"timelines": {"GPU-1": 3}}', "[]"])
def test_what_a_job_has_put_there_is_no_figures(tmp_path: Path, content: str) -> None:
    """A job may write to its run directory."""
    (tmp_path / figures_file.NAME).write_text(content)

    assert figures_file.read(tmp_path) is None


def test_no_link_is_followed(tmp_path: Path) -> None:
    """It may lead to a file that only the reader may read."""
    (tmp_path / "other").write_text(figures_file.written(figures()))
    (tmp_path / figures_file.NAME).symlink_to(tmp_path / "other")

    assert figures_file.read(tmp_path) is None
