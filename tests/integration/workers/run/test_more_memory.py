"""Jobs that need more than they asked for, on two cards of the fake driver: they run again without a person."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_driver.fake_driver import FakeGpus, build, compiler
from site_of_one import Site

from gpuqueue.model.job import JobState
from gpuqueue.model.run import EndingKind, Record
from gpuqueue.text.units import GIB

SUPPORT = Path(__file__).parents[3] / "support"

#: Allocates as many GiB as a file says, one at a time. It stays within the cap of its worker as a framework does, and
#: fails there with the message of torch.
TRAIN = """
import os, pathlib, sys
sys.path.insert(0, {tests!r})
from fake_driver.fake_driver import FakeGpus
from metered import until_seen
gpus, gib = FakeGpus.here(), 2**30
most = int(os.environ["CUPY_GPU_MEMORY_LIMIT"])
for held in range(1, int(pathlib.Path({size!r}).read_text()) + 1):
    if held * gib > most:
        until_seen(peak_bytes=(held - 1) * gib)
        sys.exit("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total capacity")
    gpus.hold_here(held * gib)
until_seen(peak_bytes=held * gib, samples=10)
"""


@pytest.fixture
def gpu_site(tmp_path: Path, store_url: str) -> Iterator[Site]:
    """Return a site with a card of 8 GiB and one of 24 GiB, a worker on each, and a recorder."""
    if compiler() is None:
        pytest.skip("no C compiler to build the fake driver with")
    fake = FakeGpus.create(tmp_path / "gpus", (8 * GIB, 24 * GIB))
    made = Site(tmp_path / "state", store_url, GPUQUEUE_DEVICES="auto", GPUQUEUE_PLACEMENT="pack")
    made.environ.update(fake.environ(build(tmp_path)))
    (tmp_path / "train.py").write_text(TRAIN.format(tests=str(SUPPORT), size=str(tmp_path / "size")))
    made.start_recorder()
    made.start_worker("0")
    made.start_worker("1")
    yield made
    made.stop()


def ran(site: Site, place: Path, mem: str, gib: int) -> Record:
    """Run the script to the last end of its job. It needs so many GiB, and half a GiB of CUDA's own."""
    (place / "size").write_text(str(gib))
    words = ("submit", str(place / "train.py"), "--mem", mem, "--python", sys.executable)
    return site.until_recorded(int(site.cli(*words).stdout))


def kinds(record: Record) -> list[EndingKind | None]:
    """Return how the runs of a job ended."""
    return [run.ending.kind if run.ending else None for run in record.runs]


def test_a_script_that_needs_more_succeeds_on_its_second_run(gpu_site: Site, tmp_path: Path) -> None:
    """The second run gets twice as much, on the larger card. ``show`` tells it, and host memory is not repaired."""
    record = ran(gpu_site, tmp_path, "6G", 9)

    assert JobState.SUCCEEDED is record.job.state
    assert [EndingKind.OUT_OF_MEMORY, EndingKind.EXITED] == kinds(record)
    assert [6 * GIB, 12 * GIB] == [run.devices[0].lease_bytes for run in record.runs]
    assert ["Fake 8G", "Fake 24G"] == [run.devices[0].name for run in record.runs]
    shown = gpu_site.cli("show", str(record.job.id)).stdout
    assert "asked      12G (after out of memory)" in shown
    assert "mem retry  1 of 2, after out of memory" in shown
    assert "out of memory: queued again with 12G (memory retry 1 of 2)" in shown

    killed = int(gpu_site.cli("submit", "--mem", "6G", "--", sys.executable, "-c", "raise MemoryError").stdout)
    host = gpu_site.until_recorded(killed)
    assert (JobState.FAILED, [EndingKind.EXITED], 0) == (host.job.state, kinds(host), host.job.mem_retries)


@pytest.mark.full
def test_a_script_of_two_sizes_does_not_thrash(gpu_site: Site, tmp_path: Path) -> None:
    """Once the larger size was seen, ``--mem auto`` asks for it, and no run dies any more."""
    runs = [
        len(ran(gpu_site, tmp_path, mem, gib).runs) for mem, gib in (("4G", 3), ("auto", 6), ("auto", 3), ("auto", 6))
    ]

    assert [1, 2, 1, 1] == runs


@pytest.mark.full
def test_what_no_card_can_give_fails_with_a_line_that_says_so(gpu_site: Site, tmp_path: Path) -> None:
    """The last run gets all that the largest card can give. Then the job fails."""
    record = ran(gpu_site, tmp_path, "13G", 40)

    assert (JobState.FAILED, 2, 1) == (record.job.state, len(record.runs), record.job.mem_retries)
    shown = gpu_site.cli("show", str(record.job.id)).stdout
    assert "out of memory, and not queued again with more: no device that the job may use gives more than 2" in shown
