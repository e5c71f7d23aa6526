"""Tests that bound the files that a real worker creates for each run, and its waits for the disk.

test_new_files.py bounds the files of a run directory that the test fills itself. Here a worker fills it, traced by
strace.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from factories import make_spec
from guard.bounds import Bound
from guard.one_life import uncovered
from guard.traced import NEEDS_STRACE, OPENS, SYNCS, attached, calls
from own_store import OwnStore
from site_of_one import Site

from gpuqueue.settings.sources import LONGEST_HEARTBEAT_S
from gpuqueue.text.units import MIB

pytestmark = NEEDS_STRACE

#: The jobs that are counted, which run one after the other, and the jobs before them, during which everything is
#: created that is created once.
JOBS, BEFORE = 5, 2
#: What a worker creates for each run, once each: two directories, named after the job and the run, and files, by the
#: start of their names. The worker opens ``lock`` with O_CREAT and finds the second name of the claim. The shim's files
#: are bounded in test_forked_shim.py. One more file is one more inode for each run, and usually one more file that the
#: next worker must understand. If it is worth that, add it here and say why.
MADE = {"JOB": JOBS, "RUN": JOBS, ".claim": JOBS, "lock": JOBS, ".spec": JOBS, "heartbeat": JOBS}
#: Measurements are saved at a heartbeat, and at the end of a run that was sampled. Whether there was either depends on
#: the load of the machine.
PERHAPS = {".meters": Bound(0, 2 * JOBS + 2)}
#: A worker does not wait for the disk: after a power cut the worker, its shims and their jobs are gone, and the store
#: has the state.
WAITS = 0
#: Settings that make periodic work rare during the test. It creates only measurement files.
SELDOM = {"GPUQUEUE_HEARTBEAT": f"{LONGEST_HEARTBEAT_S:g}s", "GPUQUEUE_HOST_LOST_AFTER": "10h", "GPUQUEUE_POLL": "1h"}


def through(site: Site, jobs: int) -> None:
    """Run *jobs* jobs, one after the other."""
    for _ in range(jobs):
        site.until_recorded(site.queue.requests.submit(make_spec(argv=("true",), mem_bytes=MIB)).id)


def kind_of(path: str) -> str:
    """Return the kind of a path that a worker creates.

    The kind is the name without the ids of jobs, runs, processes and threads.
    """
    name = Path(path).name
    if re.fullmatch(r".*/runs/\d+", path):
        return "JOB"
    if re.fullmatch(r".*/runs/\d+/\d+\.[0-9a-f]+", path):
        return "RUN"
    return re.sub(r"^(\.[a-z.]+?)\.\d+\.\d+$", r"\1", name)


@pytest.mark.full
def test_a_worker_makes_no_more_on_the_disk_than_agreed(own_store: OwnStore, tmp_path: Path) -> None:
    """A worker creates no more files than agreed, in all its threads, from the claim to the reported end."""
    site, out = Site(tmp_path / "state", own_store.url, **SELDOM), tmp_path / "calls"
    site.environ = uncovered(site.environ)
    try:
        site.start_recorder()
        worker = site.start_worker()
        through(site, BEFORE)
        with attached(out, f"{OPENS},{SYNCS},mkdir,mkdirat", worker.pid):
            through(site, JOBS)
    finally:
        site.stop()

    done = list(calls(out))
    made = Counter(
        kind_of(call.file) for call in done if "O_CREAT" in call.words or call.name in {"creat", "mkdir", "mkdirat"}
    )
    for name, bound in PERHAPS.items():
        bound.hold(made.pop(name, 0), f"{name} of {JOBS} runs")
    assert made == MADE
    assert sum(call.name in SYNCS.split(",") for call in done) == WAITS
