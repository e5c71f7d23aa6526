from __future__ import annotations

import fcntl
from pathlib import Path

import pytest

from gpuqueue.system import process
from gpuqueue.system.process import is_locked


@pytest.mark.parametrize("apart", [False, True])
def test_a_lock_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, apart: bool) -> None:
    """A lock is seen in the kernel's table, or with an attempt where that table is incomplete.

    A missing file has no lock.
    """
    monkeypatch.setattr(process, "has_own_pids", lambda: apart)
    path = tmp_path / "lock"
    assert not is_locked(path)
    with path.open("w") as file:
        assert not is_locked(path)
        fcntl.flock(file, fcntl.LOCK_EX)
        assert is_locked(path)
        fcntl.flock(file, fcntl.LOCK_UN)
        assert not is_locked(path)


def test_looking_never_takes_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check never takes the lock.

    A worker that tries once at the same moment must get the lock, or it would lose its job.
    """
    monkeypatch.setattr(process, "has_own_pids", lambda: False)
    monkeypatch.setattr(process, "is_locked_anywhere", lambda _: pytest.fail("the lock was tried"))
    path = tmp_path / "lock"
    with path.open("w") as file:
        assert not is_locked(path)
        fcntl.flock(file, fcntl.LOCK_EX)
        assert is_locked(path)
