"""For tests on a real card or on the fake driver: jobs of job.py that hold memory while the test looks at them."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bounded import until
from fake_driver.fake_driver import JOB
from site_of_one import Site

from gpuqueue.model.device import Device, Peak
from gpuqueue.model.job import JobState
from gpuqueue.text.units import GIB, MIB


@contextmanager
def holding(site: Site, release: Path, mem_bytes: int, *sizes: int, deaf: bool = False) -> Iterator[int]:
    """Run job.py with these *sizes* through the queue; yield its id when it holds them, then let it exit.

    A *deaf* job ignores SIGTERM: its program inherits that from the shell.
    """
    os.mkfifo(release)
    open_end = os.open(release, os.O_RDWR)  # the job's read blocks while this end is open
    try:
        words = shlex.join([sys.executable, str(JOB), *map(str, sizes)])
        ignoring = "trap '' TERM; " if deaf else ""
        line = f"{ignoring}exec {words} <{shlex.quote(str(release))}"
        job = int(site.cli("submit", "--mem", f"{mem_bytes // MIB}M", "--", "sh", "-c", line).stdout)
        until(
            lambda: output(site, job) or site.client.jobs.get(job).state.is_end, timeout_s=60, what=f"job {job}'s word"
        )
        assert "ready\n" == output(site, job), f"{site.cli('show', str(job), check=False).stdout}\n{site.log()[-3000:]}"
        yield job
    finally:
        os.close(open_end)


def output(site: Site, job: int) -> str:
    """Return what a job has printed."""
    return "".join(log.read_text() for log in site.settings.runs_dir.glob(f"{job}/*/log"))


def peak_of(site: Site, release: Path, device: Device, *sizes: int) -> Peak:
    """Run a job that holds these *sizes* on *device* for a few samples, and return its recorded peak."""
    with holding(site, release, sum(sizes) + GIB, *sizes) as job:
        # The saved measurements can be as old as a heartbeat. The first turn ensures that they are current.
        for _ in range(2):
            before = samples(site, job, device)
            until(lambda seen=before: samples(site, job, device) >= seen + 2, what="two samples")
    record = site.until_recorded(job)
    assert JobState.SUCCEEDED is record.job.state
    assert record.last_run is not None
    (on,) = record.last_run.devices
    assert device.uuid == on.uuid
    return on.peak


def samples(site: Site, job: int, device: Device) -> int:
    """Return the number of samples that the worker has saved for a running job on *device*."""
    kept = [json.loads(each.read_text()) for each in site.settings.runs_dir.glob(f"{job}/*/meters")]
    return sum(each["devices"].get(device.uuid, {}).get("samples", 0) for each in kept)
