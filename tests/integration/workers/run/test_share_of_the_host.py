"""What a worker gives each run of its host: threads, a port, a place when memory runs out; and what `show` says."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest
from site_of_one import Site

from gpuqueue.model.job import JobState
from gpuqueue.model.run import NoteKind
from workers.run.signed_environment import THREADS
from workers.shim.master_port import candidates
from workers.shim.tree import open_files


@pytest.fixture
def two(tmp_path: Path, store_url: str) -> Iterator[Site]:
    """Return a site with two devices and the worker of one."""
    made = Site(tmp_path / "state", store_url, GPUQUEUE_DEVICES="sim:2x8G", GPUQUEUE_OOM_SCORE_ADJ="450")
    for name in THREADS:
        made.environ.pop(name, None)
    made.start_recorder()
    made.start_worker()
    yield made
    made.stop()


def test_a_run_gets_its_share_and_show_says_so(two: Site) -> None:
    """Half of the processors for one of two devices, a port, open files; and one hint after a port was taken."""
    share = max(1, len(os.sched_getaffinity(0)) // 2)
    threads = " ".join(f"${name}" for name in THREADS)
    words = f"echo {threads}; echo $MASTER_ADDR $MASTER_PORT; cat /proc/self/oom_score_adj"
    error = "echo 'OSError: [Errno 98] Address already in use' >&2"

    job_id = int(two.cli("submit", "--mem", "1G", "--", "sh", "-c", f"{words}; {error}; {error}; exit 1").stdout)
    own = two.cli("submit", "--mem", "1G", "--env", "OMP_NUM_THREADS=7", "--", "sh", "-c", f"{words}; {error}")
    record, other = two.until_recorded(job_id), two.until_recorded(int(own.stdout))

    threads, address, adjustment = log_of(two, job_id)[:3]
    assert [str(share)] * 4 == threads.split()
    assert "127.0.0.1" == address.split()[0]
    assert int(address.split()[1]) in candidates()
    assert int(adjustment) >= 450  # an account may not lower what it has inherited
    files = open_files(resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    assert {"threads": share, "open_files": files} == record.runs[0].limits
    line = f"limits     {share} thread{'s' * (share > 1)} a library (OMP_NUM_THREADS), {files} open files"
    shown = two.cli("show", str(job_id)).stdout
    assert line in shown
    assert [NoteKind.PORT_TAKEN.value] == [note.kind for note in record.runs[0].notes]
    assert f"note       {record.runs[0].notes[0].words}" in shown
    assert (JobState.SUCCEEDED, ()) == (other.job.state, other.runs[0].notes)
    assert {"open_files": files} == other.runs[0].limits
    assert ["7"] == log_of(two, other.job.id)[0].split()


def log_of(site: Site, job_id: int) -> list[str]:
    """Return the lines of the log of a job."""
    return site.cli("logs", str(job_id)).stdout.splitlines()
