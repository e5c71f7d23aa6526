"""Tests of the estimates that are remembered for submits."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from factories import make_spec

from gpuqueue.client import estimates
from gpuqueue.model.job_spec import JobSpec
from gpuqueue.text.units import GIB


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a script of a user with an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "train.py"
    path.write_text("pass")
    return path


def spec_of(script: Path, *args: str) -> JobSpec:
    """Return the spec of a job that runs *script*."""
    return make_spec(argv=("/py", script.name, *args), script=script.name, interpreter="/py", cwd=str(script.parent))


def test_an_estimate_is_that_of_the_same_arguments(script: Path) -> None:
    """An estimate counts for the script and the arguments that were run."""
    assert estimates.known(spec_of(script)) is None
    estimates.remember(script, ("--batch", "8"), 5 * GIB)
    assert 5 * GIB == estimates.known(spec_of(script, "--batch", "8"))
    assert estimates.known(spec_of(script, "--batch", "16")) is None
    assert estimates.known(make_spec()) is None


def test_an_estimate_counts_for_a_script_that_uv_runs(script: Path) -> None:
    """The words before the script are no arguments."""
    argv = ("uv", "run", "--frozen", "python", script.name, "--batch", "8")
    spec = make_spec(argv=argv, script=script.name, interpreter="uv run", cwd=str(script.parent))
    estimates.remember(script, ("--batch", "8"), 5 * GIB)
    assert 5 * GIB == estimates.known(spec)


def test_an_estimate_of_a_changed_script_does_not_count(script: Path) -> None:
    """After an edit the script may need something else."""
    estimates.remember(script, (), 5 * GIB)
    os.utime(script, ns=(1, 1))
    assert estimates.known(spec_of(script)) is None


@pytest.mark.parametrize("content", [b"", b"[]", b'{"mem_bytes": 1}', b"\xff", b'{"changed_ns": 0, "mem_bytes": "x"}'])
def test_a_damaged_file_is_no_estimate(script: Path, content: bytes) -> None:
    """A file that cannot be read is ignored: a submit never fails because of it."""
    estimates.remember(script, (), 5 * GIB)
    (file,) = (script.parent / "cache" / "gpuqueue" / "estimates").iterdir()
    file.write_bytes(content)
    assert estimates.known(spec_of(script)) is None


def test_without_a_place_to_write_nothing_is_stored(script: Path) -> None:
    """An estimate is printed even if it cannot be remembered."""
    (script.parent / "cache").write_text("a file")
    estimates.remember(script, (), 5 * GIB)
    assert estimates.known(spec_of(script)) is None
