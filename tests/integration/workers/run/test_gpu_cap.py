"""Tests of the memory cap of GPU jobs, and of the reports that they write, on a card of the fake driver."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from becoming import becoming
from bounded import until
from fake_driver.fake_driver import FakeGpus, build, compiler
from site_of_one import Site

from gpuqueue.model.device import PeakSource
from gpuqueue.model.job import JobState
from gpuqueue.model.run import EndingKind, Run
from gpuqueue.text.units import GIB, MIB

SUPPORT = Path(__file__).parents[3] / "support"

#: A stand-in for torch that held 4 GiB, more than the driver showed, and fails with OutOfMemoryError. The error is
#: printed nowhere, so only the report has it.
JOB = """
import os, sys, types
print(os.environ.get("GPUQUEUE_TORCH_FRACTION"), os.environ.get("PYTORCH_ALLOC_CONF"))
sys.path.insert(0, {tests!r})
from fake_driver.fake_driver import FakeGpus
from metered import until_seen
FakeGpus.here().hold_here(3 * 2**30)
until_seen(peak_bytes=3 * 2**30)
class OutOfMemoryError(RuntimeError): pass
torch = sys.modules["torch"] = types.ModuleType("torch")
torch.cuda = types.SimpleNamespace(
    is_initialized=lambda: True,
    device_count=lambda: 1,
    memory_stats=lambda device: {{}},
    max_memory_allocated=lambda device: 3 * 2**30,
    max_memory_reserved=lambda device: 4 * 2**30,
)
sys.excepthook = lambda *what: None
raise OutOfMemoryError
"""


@pytest.fixture
def gpu_site(tmp_path: Path, store_url: str) -> Iterator[Site]:
    """Return a site with one 24 GiB card of the fake driver, a worker and a recorder."""
    if compiler() is None:
        pytest.skip("no C compiler to build the fake driver with")
    fake = FakeGpus.create(tmp_path / "gpus", (24 * GIB,))
    made = Site(tmp_path / "state", store_url, GPUQUEUE_DEVICES="auto")
    made.environ.update(fake.environ(build(tmp_path)))
    (tmp_path / "job.py").write_text(JOB.format(tests=str(SUPPORT)))
    # A virtual environment whose packages are found by their files, with a torch version of our choice.
    (tmp_path / "venv" / "lib" / "python3.12" / "site-packages" / "torch-2.11.0.dist-info").mkdir(parents=True)
    (tmp_path / "venv" / "bin").mkdir()
    becoming(tmp_path / "venv" / "bin" / "python", sys.executable)
    (tmp_path / "venv" / "pyvenv.cfg").write_text("home = /usr/bin\n")
    made.start_recorder()
    made.start_worker()
    yield made
    made.stop()


def ran(site: Site, place: Path, *options: str) -> Run:
    """Run the job to its end and return its run from the history."""
    words = ("submit", str(place / "job.py"), "--mem", "6G", "--python", str(place / "venv" / "bin" / "python"))
    words = (*words, "--mem-retries", "0")
    record = site.until_recorded(int(site.cli(*words, *options).stdout))
    assert JobState.FAILED is record.job.state
    assert record.last_run is not None
    return record.last_run


def log_of(run: Run) -> str:
    """Return what the run printed."""
    assert run.log_path is not None
    return Path(run.log_path).read_text()


@pytest.mark.full
def test_a_job_on_a_gpu_is_capped_and_out_of_memory_is_reported(gpu_site: Site, tmp_path: Path) -> None:
    """The cap fits the card, its measured context and the torch version, and the ending is that of the job's report."""
    run = ran(gpu_site, tmp_path)

    share = "0.233724"  # 6 GiB less 300 MiB of context and 100 MiB of kernels
    assert f"{share} per_process_memory_fraction:{share}\n" == log_of(run)
    assert run.ending is not None
    assert (EndingKind.OUT_OF_MEMORY, 1) == (run.ending.kind, run.ending.exit_code)
    (device,) = run.devices
    assert (4 * GIB + 300 * MIB, PeakSource.TORCH) == (device.peak.bytes, device.peak.source)
    assert run.ending.detail.startswith("asked 6G, peak 4.3G")
    place = Path(str(run.log_path)).parent
    kept = {"log", "log.times", "user"}
    until(lambda: {entry.name for entry in place.iterdir()} <= kept, what="the run directory is settled")


@pytest.mark.full
def test_no_cap_leaves_a_job_free(gpu_site: Site, tmp_path: Path) -> None:
    """With `--no-cap` a job is not capped, and still writes its report."""
    run = ran(gpu_site, tmp_path, "--no-cap")

    assert "None None\n" == log_of(run)
    assert run.ending is not None
    assert EndingKind.OUT_OF_MEMORY is run.ending.kind
