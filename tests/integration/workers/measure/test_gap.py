"""A run whose memory was not measured for a time, on the fake driver."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from bounded import until
from fake_driver.fake_driver import FakeGpus, build, compiler
from site_of_one import Site

from gpuqueue.text.units import GIB
from workers.measure.meter import ADOPTED_GAP_S

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C compiler to build the fake driver with")

SUPPORT = Path(__file__).parents[3] / "support"
#: Holds a gibibyte on its card until the gate file is there.
JOB = """
import pathlib, sys, time
sys.path.insert(0, {tests!r})
from fake_driver.fake_driver import FakeGpus
FakeGpus.here().hold_here(2**30)
while not pathlib.Path({gate!r}).exists():
    time.sleep(0.02)
"""


@pytest.fixture
def site(tmp_path: Path, store_url: str) -> Iterator[Site]:
    """Return a site on the fake driver, with a recorder."""
    made = Site(tmp_path / "state", store_url, GPUQUEUE_DEVICES="auto")
    made.environ.update(FakeGpus.create(tmp_path / "gpus", (24 * GIB,)).environ(build(tmp_path)))
    made.start_recorder()
    yield made
    made.stop()


def observed_bytes(site: Site) -> int:
    """Return what the last heartbeat has reported of the only run."""
    (status,) = site.queue.devices.all()
    return max((holding.observed_bytes or 0 for holding in status.holdings), default=0)


def test_a_peak_is_at_least_what_was_measured_while_a_worker_was_there(site: Site, tmp_path: Path) -> None:
    """After a time without a worker the peak is a lower bound. `show` says so, and gives no advice."""
    script = tmp_path / "job.py"
    script.write_text(JOB.format(tests=str(SUPPORT), gate=str(tmp_path / "gate")))
    worker = site.start_worker()
    job_id = int(site.cli("submit", "--mem", "6G", "--", sys.executable, str(script)).stdout)
    until(lambda: observed_bytes(site) >= GIB, what="the first samples")

    site.end(worker)
    ended_s = time.monotonic()
    until(lambda: time.monotonic() - ended_s > ADOPTED_GAP_S, what="a time without samples")
    site.start_worker()
    until(lambda: "adopted" in site.log(), what="the adoption")
    (tmp_path / "gate").touch()

    run = site.until_recorded(job_id).last_run
    assert run is not None
    assert ["peak_in_part"] == [note.kind for note in run.notes]
    shown = site.cli("show", str(job_id)).stdout
    assert "peak at least 1G" in shown
    assert "used at least 1G: its memory was not measured for" in shown
