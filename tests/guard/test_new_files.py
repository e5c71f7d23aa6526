"""Tests that bound the inodes that a run takes from its claim to its end; the file system must find each of them."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

from one_shim import RUN_TOKEN, Shim

from workers.run.links import LIVE
from workers.shim.client import Shims

#: The directories of the job and of the token; the claim, which is also the lock and the link; the spec, later the
#: exit; the heartbeat, the pid file and the log. There used to be six more: a lock, a link, an exit, the job's spec
#: beside the claim, and two files that were written whole again to add a line.
NEW = 7


def inodes(runs: Path) -> set[int]:
    """Return the inodes below *runs*, without the two directories of all runs."""
    found = {(path.lstat().st_ino, path) for path in runs.rglob("*")}
    return {inode for inode, path in found if path != runs / LIVE}


def test_a_run_makes_no_more_files_than_agreed(tmp_path: Path) -> None:
    """A run creates no more inodes than agreed.

    ext4 skips each inode that was freed lately, so on a busy host a new inode costs ten times as much as a new name.
    """
    runs, seen = tmp_path / "runs", set[int]()

    with closing(Shims()) as forkserver:
        shim = Shim(runs, ["/bin/true"], before=lambda: seen.update(inodes(runs)), by=forkserver)
        shim.ended()
        seen.update(inodes(runs))
        shim.process.close()
        shim.directory.close()

    assert NEW == len(seen)
    assert os.path.samefile(runs / "1" / RUN_TOKEN / "lock", runs / LIVE / f"1.{RUN_TOKEN}")  # noqa: PTH121 - both names
