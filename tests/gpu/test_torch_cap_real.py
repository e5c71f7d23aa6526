"""Tests of the memory cap in torch itself. They need a card and a torch that can use it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from machine_with_cards import Machine
from site_of_one import Site

from gpuqueue.model.job import JobState
from gpuqueue.model.run import EndingKind
from gpuqueue.text.units import GIB, MIB

#: Allocates half a GiB, and then three more.
JOB = """
import torch
held = torch.empty(2**29, dtype=torch.uint8, device="cuda")
more = torch.empty(3 * 2**30, dtype=torch.uint8, device="cuda")
print("both")
"""
#: An interpreter whose torch is built for CUDA, if the tests' own interpreter has none.
TORCH_PYTHON = os.environ.get("TORCH_PYTHON", sys.executable)

pytestmark = [pytest.mark.gpu, pytest.mark.parametrize("machine", ["card"], indirect=True)]


@pytest.fixture
def torch_site(gpu_site: Site, machine: Machine, tmp_path: Path) -> Site:
    """Return a site with a worker and the job; skip where torch cannot use the card."""
    device = machine.card(5 * GIB)
    asked = "import torch; print(torch.__version__, torch.cuda.is_available())"
    answer = subprocess.run([TORCH_PYTHON, "-c", asked], capture_output=True, text=True, timeout=100, check=False)
    if not answer.stdout.endswith("True\n"):
        why = answer.stdout.strip() or answer.stderr.strip().rpartition("\n")[2]
        pytest.skip(f"no torch for CUDA in {TORCH_PYTHON} ({why}): name an interpreter that has one in TORCH_PYTHON")
    (tmp_path / "job.py").write_text(JOB)
    gpu_site.start_worker(str(device.index))
    return gpu_site


def submit(site: Site, place: Path, *options: str) -> int:
    """Submit the job with 2 GiB."""
    words = ("submit", str(place / "job.py"), "--mem", "2G", "--python", TORCH_PYTHON, *options)
    return int(site.cli(*words).stdout)


def test_torch_gives_a_job_no_more_than_it_asked_for(torch_site: Site, tmp_path: Path) -> None:
    """A job over its cap fails with torch's own OutOfMemoryError, and the history has the figures.

    The card has room for it, and the job does not run again with more.
    """
    job = submit(torch_site, tmp_path, "--mem-retries", "0")

    record = torch_site.until_recorded(job, timeout_s=100)

    assert JobState.FAILED is record.job.state
    run = record.last_run
    assert run is not None
    assert run.ending is not None
    assert EndingKind.OUT_OF_MEMORY is run.ending.kind
    assert re.match(r"asked 2G, peak \d", run.ending.detail)
    assert 512 * MIB <= (run.devices[0].peak.bytes or 0) <= 2 * GIB
    log = torch_site.cli("logs", str(job)).stdout
    assert "OutOfMemoryError" in log
    assert "gpuqueue: ended" not in log  # the watchdog was not needed


def test_a_job_over_its_cap_runs_again_with_more(torch_site: Site, tmp_path: Path) -> None:
    """The first run dies of its cap, and a later one has enough."""
    job = submit(torch_site, tmp_path)

    record = torch_site.until_recorded(job, timeout_s=200)

    assert JobState.SUCCEEDED is record.job.state, torch_site.cli("logs", str(job)).stdout
    endings = [run.ending.kind for run in record.runs if run.ending is not None]
    assert len(endings) > 1
    assert {EndingKind.OUT_OF_MEMORY} == set(endings[:-1])


def test_torch_takes_what_it_likes_without_a_cap(torch_site: Site, tmp_path: Path) -> None:
    """The same job succeeds with --no-cap."""
    job = submit(torch_site, tmp_path, "--no-cap")

    record = torch_site.until_recorded(job, timeout_s=100)

    assert JobState.SUCCEEDED is record.job.state, torch_site.cli("logs", str(job)).stdout
    assert "both\n" == torch_site.cli("logs", str(job)).stdout
