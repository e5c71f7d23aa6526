"""Tests of the directory of the runs on a host whose jobs run as their submitters."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from tempfile import mkdtemp

import pytest

from gpuqueue.errors import Refused
from gpuqueue.settings.settings import Settings
from workers.worker import prepare_runs_directory


@pytest.fixture
def folder() -> Iterator[Path]:
    """Return a directory that every account may enter, unlike pytest's own."""
    found = Path(mkdtemp(prefix="gpuqueue-runs-"))
    found.chmod(0o755)
    yield found
    for each in (found / "state" / "runs", found / "state", found):
        if each.exists():
            each.rmdir()


def settings(folder: Path, **changes: str) -> Settings:
    """Return settings with the state directory in *folder*."""
    return Settings.load({"GPUQUEUE_CONFIG": os.devnull, "GPUQUEUE_STATE_DIR": str(folder / "state"), **changes})


def test_submitters_may_enter_the_runs_and_not_list_them(folder: Path) -> None:
    """If jobs run as their submitters, everybody may enter the directory of the runs."""
    prepare_runs_directory(settings(folder, GPUQUEUE_RUN_AS="submitter"))

    assert 0o711 == stat.S_IMODE((folder / "state" / "runs").stat().st_mode)


def test_a_closed_directory_above_the_runs_is_refused(folder: Path) -> None:
    """A worker does not start if submitters could not reach their run directories, and says what to set."""
    (folder / "state").mkdir(mode=0o700)

    with pytest.raises(Refused, match=r"cannot enter .*state, .*: set runs_dir to a directory outside of state_dir"):
        prepare_runs_directory(settings(folder, GPUQUEUE_RUN_AS="submitter"))


def test_nothing_is_opened_for_a_single_user(folder: Path) -> None:
    """If jobs run as the worker, its directory is made as any other: an idle pilot waited for one without end."""
    before = os.umask(0o077)
    try:
        prepare_runs_directory(settings(folder))
    finally:
        os.umask(before)

    assert 0o700 == stat.S_IMODE((folder / "state" / "runs").stat().st_mode)
