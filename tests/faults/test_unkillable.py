"""A process that SIGKILL does not end: its run ends, and its device is closed until it is gone. Both name it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from bounded import until
from factories import make_spec
from site_of_one import Site
from unanswered import unanswered

from gpuqueue.model.job import JobState
from gpuqueue.model.run import EndingKind
from gpuqueue.text.units import GIB, MIB

#: Takes some memory, and waits in the kernel for ever.
JOB = "import os, sys; kept = bytearray(64 * 2**20); os.stat(sys.argv[1])"


@pytest.mark.full
def test_an_unkillable_process_ends_its_run_and_closes_its_device(site: Site, tmp_path: Path) -> None:
    """Its memory is never given away, and the device is open again once the process is gone."""
    site.start_recorder()
    site.start_worker()
    with unanswered(tmp_path / "mount") as asked:
        argv = (sys.executable, "-c", JOB, str(tmp_path / "mount" / "x"))
        job = site.queue.requests.submit(make_spec(argv=argv, mem_bytes=GIB))
        assert asked.wait(60)
        site.client.jobs.cancel(job.id)

        run = site.until_recorded(job.id).last_run
        assert run is not None
        assert run.ending is not None
        assert EndingKind.CANCELLED is run.ending.kind
        assert "unkillable: SIGKILL does not end its process " in run.ending.detail
        pid = run.ending.detail.split()[-1]
        until(lambda: site.queue.devices.all()[0].trouble, what="the device to be closed", timeout_s=60)
        (device,) = site.queue.devices.all()
        assert f"it is held by an unkillable process: SIGKILL does not end process {pid} of " in str(device.trouble)
        assert (device.external_bytes or 0) >= 64 * MIB
        for words in (("gpus",), ("doctor",), ("show", str(job.id))):
            assert pid in " ".join(site.cli(*words, check=False).stdout.split())
        waiting = site.queue.requests.submit(make_spec(argv=("true",), mem_bytes=MIB))
        assert "unkillable" in site.cli("why", str(waiting.id)).stdout
    assert JobState.SUCCEEDED is site.until_recorded(waiting.id).job.state
    assert site.queue.devices.all()[0].trouble is None


@pytest.mark.full
def test_a_job_whose_directory_never_answers_can_be_cancelled(site: Site, tmp_path: Path) -> None:
    """The process that enters it cannot be killed. The run ends all the same."""
    site.start_recorder()
    site.start_worker()
    with unanswered(tmp_path / "mount") as asked:
        spec = make_spec(argv=("true",), mem_bytes=MIB, cwd=str(tmp_path / "mount" / "x"))
        job = site.queue.requests.submit(spec)
        assert asked.wait(60)
        site.client.jobs.cancel(job.id)

        assert JobState.CANCELLED is site.until_recorded(job.id).job.state
