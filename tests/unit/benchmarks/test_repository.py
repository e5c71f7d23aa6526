"""Tests that the cost of git is measured only in a benchmark that asks for it."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest

from benchmarks.measure.home import whole_run
from benchmarks.measure.repository import small_repository
from gpuqueue.system.git_checkout import CheckoutReader


def test_a_run_is_in_no_repository_wherever_its_directory_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run is outside of any repository, also when TMPDIR is in a checkout.

    Regression: a submit asked git, and a quarter of the rate was reported as the rate without git.
    """
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "HEAD").write_text("a" * 40 + "\n")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    checkout = CheckoutReader(tmp_path).seen()
    assert checkout is not None

    with whole_run():
        below = Path(tempfile.mkdtemp())
        home = below.parent

        assert CheckoutReader(below).seen() is None

    assert tmp_path == home.parent


@pytest.mark.skipif(shutil.which("git") is None, reason="no git here")
def test_a_small_repository_has_a_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The small repository has a commit whatever the environment says.

    A git hook sets the variables of its own repository.
    """
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "of a hook"))

    assert small_repository(tmp_path / "small") is None

    seen = CheckoutReader(tmp_path / "small").seen()
    assert seen is not None
    assert len(seen.commit) == 40


def test_without_git_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without git the function returns a reason, and the other figures are still measured."""
    monkeypatch.setenv("PATH", str(tmp_path))

    assert "no git here" == small_repository(tmp_path / "small")
