"""A job that is killed with its shared memory: the note is where a person reads of the end, or the memory is gone."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from bounded import until
from site_of_one import Site

from gpuqueue.model.job import JobState

SHARED = Path("/dev/shm")
#: Keeps segments as libraries do that manage their own.
SCRIPT = """
import sys, time
from multiprocessing import resource_tracker, shared_memory

segments = [shared_memory.SharedMemory(name=f"{sys.argv[1]}_{i}", create=True, size=64 << 20) for i in range(4)]
for segment in segments:
    resource_tracker.unregister(segment._name, "shared_memory")
print("made", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("removes", [False, True])
def test_shared_memory_that_a_cancelled_job_leaves(site: Site, tmp_path: Path, *, removes: bool) -> None:
    """256 MiB stay after a cancel, are named with the command that removes them, and are removed by a setting."""
    site.environ["GPUQUEUE_REMOVE_SHARED_MEMORY"] = str(removes).lower()
    site.start_recorder()
    site.start_worker()
    name = f"gpuqueue-test-{os.getpid()}-cli"
    (tmp_path / "train.py").write_text(SCRIPT)
    words = ("submit", "--no-git", "--cwd", str(tmp_path), "--mem", "1G", "train.py", "--", name)
    job = int(site.cli(*words).stdout)
    until(lambda: "made" in site.cli("logs", str(job), check=False).stdout, what="the segments")
    names = [f"{name}_{number}" for number in range(4)]
    try:
        site.cli("cancel", str(job))
        record = site.until_recorded(job)

        assert JobState.CANCELLED is record.job.state
        assert record.last_run is not None
        (note,) = (note for note in record.last_run.notes if name in note.words)
        size = f"256M of {record.job.spec.account.name} in /dev/shm, which"
        command = f"rm {' '.join(str(SHARED / each) for each in names)}"
        left = f"left {size} no process uses; remove it with `{command}`"
        assert note.words == (f"removed {size} the run had left: {', '.join(names)}" if removes else left)
        assert f"  note       {note.words}" in site.cli("show", str(job)).stdout
        assert note.words in [
            item["words"] for item in json.loads(site.cli("show", "--json", str(job)).stdout)["runs"][-1]["notes"]
        ]
        assert f"gpuqueue: {note.words}" in site.cli("logs", str(job)).stdout
        assert note.words in site.cli("wait", str(job), check=False).stderr
        assert [not removes] * 4 == [(SHARED / each).exists() for each in names]
    finally:
        for each in names:
            (SHARED / each).unlink(missing_ok=True)
