"""What a real worker makes on the disk for each run, and how often it waits for the disk.

test_new_files.py holds what a run directory comes to; it fills that itself. Here the worker does, watched by strace.
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

from gpuqueue.settings.settings import LONGEST_BEAT_S
from gpuqueue.text.units import MIB

pytestmark = NEEDS_STRACE

#: One after the other, after some by which all is there that is made once.
JOBS, BEFORE = 5, 2
#: What a worker makes for each run, once each: two directories, named after the job and the run, and files by the names
#: that they begin with; ``lock`` it opens as one that may not be there, and finds the claim's second name. The shim's
#: are held in test_forked_shim.py. One more is an inode more for each run, and mostly a file more for the next worker
#: to understand: if it is worth that, name it here and say why.
MADE = {"JOB": JOBS, "RUN": JOBS, ".job": JOBS, ".claim": JOBS, "lock": JOBS, ".spec": JOBS, "beat": JOBS}
#: Figures are kept at the end of a run that was looked at while it lasted, and at a beat; whether there was either
#: depends on who else is on the machine.
PERHAPS = {".meters": Bound(0, 2 * JOBS + 2)}
#: A worker waits for no disk: after a power cut it, its shims and what they hold are gone, and the store remembers.
WAITS = 0
#: What comes by the clock comes seldom while we watch, and makes nothing but figures.
SELDOM = {"GPUQUEUE_BEAT": f"{LONGEST_BEAT_S:g}s", "GPUQUEUE_LEASE": "10h", "GPUQUEUE_POLL": "1h"}


def through(site: Site, jobs: int) -> None:
    """Take *jobs* through, one after the other."""
    for _ in range(jobs):
        site.until_recorded(site.queue.submit(make_spec(argv=("true",), mem_bytes=MIB)).id)


def kind_of(path: str) -> str:
    """Return what a path that a worker makes is: without the names of jobs, runs, processes and threads."""
    name = Path(path).name
    if re.fullmatch(r".*/runs/\d+", path):
        return "JOB"
    if re.fullmatch(r".*/runs/\d+/\d+\.[0-9a-f]+", path):
        return "RUN"
    return re.sub(r"^(\.[a-z.]+?)\.\d+\.\d+$", r"\1", name)


@pytest.mark.full
def test_a_worker_makes_no_more_on_the_disk_than_agreed(own_store: OwnStore, tmp_path: Path) -> None:
    """From the claim to the told end, in all its threads."""
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
