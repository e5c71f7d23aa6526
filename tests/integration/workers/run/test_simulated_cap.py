"""Tests the memory cap of jobs on simulated devices, and two sites whose simulated devices have the same UUIDs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, cast

import pytest
from bounded import until
from site_of_one import Site

from gpuqueue.model.job import JobState
from gpuqueue.model.run import EndingKind

#: Allocates 600 MiB and waits for a file for at most a minute.
HOLD = """
import pathlib, sys, time
taken = bytearray(600 * 2**20)
print("holds it", flush=True)
for _ in range(600):
    if pathlib.Path(sys.argv[1]).exists(): break
    time.sleep(0.1)
"""


def submit(site: Site, mem: str, enough: Path) -> int:
    """Submit a job that holds 600 MiB until the file *enough* exists."""
    return int(
        site.cli("submit", "--mem-retries", "0", "--mem", mem, "--", sys.executable, "-c", HOLD, str(enough)).stdout
    )


def test_a_job_that_holds_more_than_it_asked_for_is_ended(site: Site, tmp_path: Path) -> None:
    """On a simulated device a job that uses too much is ended as out of memory, as on a GPU.

    Regression: a job that asked for 1 GiB held 3.9 GiB and succeeded.
    """
    site.start_recorder()
    site.start_worker()

    record = site.until_recorded(submit(site, "100M", tmp_path / "never"))

    assert record.last_run is not None
    assert record.last_run.ending is not None
    assert EndingKind.OUT_OF_MEMORY is record.last_run.ending.kind
    assert "above 356M it is ended" in site.cli("logs", str(record.job.id)).stdout
    assert "give it more with --mem" in site.cli("logs", str(record.job.id)).stdout


@pytest.mark.full
def test_a_job_of_another_site_is_no_external_process(site: Site, store_url: str, tmp_path: Path) -> None:
    """Two simulated sites of one machine do not see each other's jobs, although their devices have the same UUIDs."""
    other = Site(tmp_path / "other", f"{store_url}?db=1", GPUQUEUE_HOST=site.settings.host)
    try:
        for each in (site, other):
            each.start_recorder()
            each.start_worker()
        job_id = submit(site, "1G", tmp_path / "enough")
        until(lambda: 600 * 2**20 < _observed_bytes(site), what="the site sees the memory of its job")

        whole = int(other.cli("submit", "--mem", "8G", "--", "true").stdout)  # fits only on a device without others

        assert JobState.SUCCEEDED is other.until_recorded(whole).job.state
        assert [] == _device(site)["external_processes"]
        (tmp_path / "enough").touch()
        assert JobState.SUCCEEDED is site.until_recorded(job_id).job.state
    finally:
        other.stop()


def _device(site: Site) -> dict[str, Any]:
    (device,) = json.loads(site.cli("gpus", "--json").stdout)
    return cast("dict[str, Any]", device)


def _observed_bytes(site: Site) -> int:
    return sum(each["observed_bytes"] for each in _device(site)["holdings"])
