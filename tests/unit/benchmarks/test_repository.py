"""What git takes of a submit is told where it is asked, and has no part in what is measured elsewhere."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest

from benchmarks.measure.home import whole_run
from benchmarks.measure.repository import small_repository
from gpuqueue.system.git_checkout import CheckoutLook


def test_a_run_is_in_no_repository_wherever_its_directory_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With TMPDIR in a checkout a submit asked git: a quarter of the rate, told as that of one that does not."""
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "HEAD").write_text("a" * 40 + "\n")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    look = CheckoutLook(tmp_path).seen()
    assert look is not None

    with whole_run():
        below = Path(tempfile.mkdtemp())
        home = below.parent

        assert CheckoutLook(below).seen() is None

    assert tmp_path == home.parent


@pytest.mark.skipif(shutil.which("git") is None, reason="no git here")
def test_a_small_repository_has_a_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is around it, and whoever runs it: a hook of git has its own repository in the environment."""
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "of a hook"))

    assert small_repository(tmp_path / "small") is None

    seen = CheckoutLook(tmp_path / "small").seen()
    assert seen is not None
    assert len(seen.commit) == 40


def test_without_git_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told as absent, and the rest is measured."""
    monkeypatch.setenv("PATH", str(tmp_path))

    assert "no git here" == small_repository(tmp_path / "small")
