"""Tests what the history records when two jobs and an external process fill one card of the fake driver."""

from __future__ import annotations

import os
import pwd
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from bounded import until
from fake_driver.fake_driver import JOB, FakeGpus, build, compiler
from site_of_one import Site

from gpuqueue.model.job import JobState
from gpuqueue.model.run import EndingKind
from gpuqueue.queue import keys
from gpuqueue.queue.connect import connect
from gpuqueue.text.units import GIB, MIB

#: Allocates 1 GiB, waits for a file, then allocates 1 GiB at a time up to a number, or until CUDA has no more memory.
#: Then waits for another file and exits as a framework would.
HOLD = f"""
import pathlib, sys, time
sys.path.insert(0, {str(JOB.parent)!r})
from job import Cuda
def wait(path):
    while not pathlib.Path(path).exists(): time.sleep(0.02)
class Full(Exception): pass
class Gentle(Cuda):
    def call(self, name, *args):
        if getattr(self._library, name)(*args): raise Full
more, enough, gib = sys.argv[1:]
cuda = Gentle()
cuda.use(0)
cuda.allocate(2**30)
wait(more)
try:
    for _ in range(int(gib) - 1): cuda.allocate(2**30)
except Full:
    wait(enough)
    sys.exit("RuntimeError: CUDA_ERROR_OUT_OF_MEMORY: out of memory")
wait(enough)
"""


@pytest.fixture
def gpu(tmp_path: Path) -> FakeGpus:
    """Return the state of a fake driver with one 24 GiB card, half a GiB of which is the driver's own."""
    if compiler() is None:
        pytest.skip("no C compiler to build the fake driver with")
    return FakeGpus.create(tmp_path / "gpus", (24 * GIB,), context_bytes=256 * MIB)


@pytest.fixture
def gpu_site(tmp_path: Path, store_url: str, gpu: FakeGpus) -> Iterator[Site]:
    """Return a site with the fake card, a worker and a recorder."""
    made = Site(tmp_path / "state", store_url, GPUQUEUE_DEVICES="auto")
    made.environ.update(gpu.environ(build(tmp_path)))
    made.start_recorder()
    made.start_worker()
    yield made
    made.stop()


def submit(site: Site, mem: str, *words: str | Path) -> int:
    """Submit a job that holds memory."""
    command = ("submit", "--mem", mem, "--", sys.executable, "-c", HOLD, *map(str, words))
    return int(site.cli(*command).stdout)


@pytest.mark.full
def test_an_out_of_memory_names_what_was_free_and_who_had_the_rest(
    gpu_site: Site, gpu: FakeGpus, tmp_path: Path, store_url: str
) -> None:
    """An out-of-memory ending names the free memory and the other users of the card.

    They are measured while the job is alive: after its death its own memory is free again.
    """
    client = connect(store_url)

    def observed(job_id: int) -> float:
        """Return the GiB that the worker measured last for a job."""
        lease = client.hget(keys.device_leases(gpu.uuid(0)), str(job_id)) or "0:0:0"
        return int(lease.split(":")[1]) / GIB

    neighbour = submit(gpu_site, "9G", "/", tmp_path / "never", "8")
    until(lambda: observed(neighbour) == 8.25, what="the neighbour holds its memory")
    more, enough = tmp_path / "more", tmp_path / "enough"
    greedy = submit(gpu_site, "6G", more, enough, "100")
    until(lambda: observed(greedy) == 1.25, what="the greedy one has begun")
    gpu.hold(0, os.getpid(), round(9.5 * GIB))  # an external process takes memory that the queue saw free
    more.touch()
    until(lambda: observed(greedy) == 5.25, what="the card is full")
    enough.touch()

    # Between the end of its run and the next record of the history, a job that waits again shows no run.
    until(lambda: any(run.ending for run in gpu_site.client.jobs.show(greedy).runs), what="the end is recorded")
    record = gpu_site.client.jobs.show(greedy)

    client.close()
    ending = record.runs[0].ending
    assert ending is not None
    assert EndingKind.OUT_OF_MEMORY is ending.kind
    detail = ending.detail
    user = pwd.getpwuid(os.getuid()).pw_name
    assert detail.startswith(f"asked 6G, peak 5.2G, 512M were free; beside it: pid {os.getpid()} of {user} (")
    assert detail.endswith(f", 9.5G), job {neighbour} (8.2G)")
    assert len(detail) < 200
    assert detail in gpu_site.cli("show", str(greedy)).stdout
    # The external process took the memory, so the job asks for the same again. Its neighbour took none.
    assert (JobState.QUEUED, 6 * GIB, 1) == (record.job.state, record.job.spec.mem_bytes, record.job.mem_retries)
    (note,) = [note.text for note in record.notes if note.text.startswith("out of memory")]
    assert note.startswith(f"out of memory, because others took its memory: pid {os.getpid()} of {user} (")
    assert note.endswith(", 9.5G); queued again with 6G (memory retry 1 of 2)")
