"""What a run makes anew on the disk, from its claim to its end: each is an inode that the file system must find."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

import pytest
from one_shim import RUN_TOKEN, Shim

from workers.run.directory import LIVE
from workers.shim.client import Shims

#: Job and token as directories; the claim, which is the lock and the link as well; spec, then exit; beat, pid and log.
#: A claim with the job's spec beside it makes one more. There were five more: lock, link, exit, and twice what a
#: worker or a shim wrote whole to add a word to it.
NEW = 7


def inodes(runs: Path) -> set[int]:
    """Return those of all that lies below *runs*, but for the two directories of all runs."""
    found = {(path.lstat().st_ino, path) for path in runs.rglob("*")}
    return {inode for inode, path in found if path != runs / LIVE}


@pytest.mark.parametrize("old", [False, True], ids=["forked", "by an older worker"])
def test_a_run_makes_no_more_files_than_agreed(tmp_path: Path, *, old: bool) -> None:
    """Where many come and go, ext4 passes over each that was freed lately: a new one takes ten times a new name."""
    runs, seen = tmp_path / "runs", set[int]()

    with closing(Shims()) as forkserver:
        by = None if old else forkserver
        shim = Shim(runs, ["/bin/true"], before=lambda: seen.update(inodes(runs)), by=by)
        shim.ended()
        seen.update(inodes(runs))
        shim.process.close()
        shim.directory.close()

    assert NEW == len(seen)
    assert os.path.samefile(runs / "1" / RUN_TOKEN / "lock", runs / LIVE / f"1.{RUN_TOKEN}")  # noqa: PTH121 - both names
