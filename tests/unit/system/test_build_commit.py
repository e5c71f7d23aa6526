"""``--version`` names the commit of the code, so that a report about a development build can be reproduced."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from gpuqueue.cli.main import commands
from gpuqueue.system import git_checkout
from gpuqueue.system.git_checkout import commit_of_code
from gpuqueue.version import VERSION

CHECKED_OUT, BUILT_FROM = "a" * 40, "b" * 40


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """Return the directory of a package that is no checkout and no archive."""
    made = tmp_path / "gpuqueue"
    made.mkdir()
    return made


def test_the_commit_of_an_archive_is_recorded_in_it(package: Path) -> None:
    """A wheel knows it, also one that was built from the source archive."""
    assert commit_of_code(package) is None
    (package / "commit").write_text(f"{BUILT_FROM}\n")
    assert BUILT_FROM == commit_of_code(package)
    (package / "commit").write_text("nonsense \udcff", errors="surrogateescape")
    assert commit_of_code(package) is None


def test_a_checkout_has_the_commit_that_is_checked_out(package: Path) -> None:
    """Not that of an archive that was built here before. A repository around an installation is another one."""
    (package / "commit").write_text(BUILT_FROM)
    git = package.parent / ".git"
    git.mkdir()
    (git / "HEAD").write_text(CHECKED_OUT)
    assert CHECKED_OUT == commit_of_code(package)

    inner = package.parent / "site-packages" / "gpuqueue"
    inner.mkdir(parents=True)
    assert commit_of_code(inner) is None


@pytest.mark.parametrize(("commit", "words"), [(CHECKED_OUT, " (commit aaaaaaaaaaaa)"), (None, "")])
def test_the_version_names_the_commit(monkeypatch: pytest.MonkeyPatch, commit: str | None, words: str) -> None:
    """Without one it is the version alone."""
    monkeypatch.setattr(git_checkout, "commit_of_code", lambda: commit)

    assert f"gpuqueue, version {VERSION}{words}\n" == CliRunner().invoke(commands, ["--version"]).output
