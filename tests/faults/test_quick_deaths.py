"""Tests of quick deaths with real processes.

A device that kills its jobs drains itself. A broken script drains nothing.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from bounded import until
from factories import make_spec
from fake_driver.fake_driver import GPU_IS_LOST, FakeGpus, build, compiler
from site_of_one import Site

from gpuqueue.model.job import JobState
from gpuqueue.queue import keys
from gpuqueue.queue.connect import connect
from gpuqueue.queue.drains import Drain
from gpuqueue.text.units import GIB, MIB


def dies(site: Site, script: str) -> int:
    """Run a job of this shell script until it fails or is lost, and return its id."""
    job = site.queue.requests.submit(make_spec(argv=("sh", "-c", script), mem_bytes=MIB, requeue=False))
    assert site.until_recorded(job.id).job.state in {JobState.FAILED, JobState.LOST}
    return job.id


def drains(site: Site) -> tuple[Drain, ...]:
    """Return the drains of the only device."""
    (device,) = site.queue.devices.all()
    return device.drains


def row(store_url: str) -> str | None:
    """Return the store's row of deaths of all devices, None if there is none."""
    client = connect(store_url)
    found = client.hgetall(keys.DEATHS)
    client.close()
    return "".join(found.values()) or None


@pytest.mark.full
def test_three_crashes_at_once_drain_the_device_until_somebody_resumes_it(site: Site) -> None:
    """A device with three crashes drains itself until it is resumed.

    A broken device costs three jobs, and not the whole queue.
    """
    site.start_recorder()
    site.start_worker()

    jobs = [dies(site, "kill -SEGV $$") for _ in range(3)]

    (output,) = drains(site)
    assert all(f"job {job_id} (killed by SIGSEGV)" in output.why for job_id in jobs)
    waits = int(site.cli("submit", "--mem", "1M", "--", "true").stdout)
    until(lambda: "takes no new job, drained after quick deaths" in site.log(), what="the worker's word")
    assert JobState.QUEUED is site.client.jobs.get(waits).state
    table = site.cli("gpus").stdout
    assert "drained after quick deaths\n" in table
    assert f"gpuqueue resume sim-{site.settings.host}-0\n" in table

    site.cli("resume", "0")

    assert JobState.SUCCEEDED is site.until_recorded(waits).job.state
    assert () == drains(site)


def test_a_broken_script_takes_the_card_from_nobody(site: Site, store_url: str) -> None:
    """Quick failures of a script, SIGTERMs and missing programs do not count against the device."""
    site.start_recorder()
    site.start_worker()

    for _ in range(3):
        dies(site, "echo 'ModuleNotFoundError: torch' >&2; exit 1")
        dies(site, "kill -TERM $$")
        dies(site, "exec no-such-program")

    assert (None, ()) == (row(store_url), drains(site))
    assert "0" == str(site.cli("run", "--mem", "1M", "--", "true").returncode)


def test_a_shim_that_vanishes_is_held_against_the_host(site: Site, tmp_path: Path) -> None:
    """A vanished shim counts against the device if the worker that started the run saw it.

    A worker that adopts the run cannot know how the shim ended, and so does not count it.
    """
    site.start_recorder()
    worker = site.start_worker()

    def lose(number: int, *, seen: bool) -> None:
        began = tmp_path / f"began{number}"
        spec = make_spec(argv=("sh", "-c", f"touch {began}; sleep 1000"), mem_bytes=MIB, requeue=False)
        job = site.queue.requests.submit(spec)
        until(began.exists, what="the job")
        (pid_file,) = site.settings.runs_dir.glob(f"{job.id}/*/pid")
        if not seen:
            site.end(worker, signal.SIGKILL)
        os.kill(int(pid_file.read_text().split()[0]), signal.SIGKILL)
        if not seen:
            site.start_worker()
        assert JobState.LOST is site.until_recorded(job.id).job.state

    for number in range(2):
        lose(number, seen=True)
    lose(2, seen=False)
    assert () == drains(site)

    lose(3, seen=True)

    assert "(its shim vanished)" in drains(site)[0].why


@pytest.fixture
def gpu(tmp_path: Path) -> FakeGpus:
    """Return the state of a fake driver with one card."""
    if compiler() is None:
        pytest.skip("no C compiler to build the fake driver with")
    return FakeGpus.create(tmp_path / "gpus", (24 * GIB,))


@pytest.fixture
def gpu_site(tmp_path: Path, store_url: str, gpu: FakeGpus) -> Iterator[Site]:
    """Return a site with the fake card, a worker and a recorder."""
    made = Site(tmp_path / "state", store_url, GPUQUEUE_DEVICES="auto")
    made.environ.update(gpu.environ(build(tmp_path)))
    made.start_recorder()
    made.start_worker()
    yield made
    made.stop()


@pytest.mark.full
@pytest.mark.parametrize(
    ("line", "lost", "drained"),
    [
        ("RuntimeError: CUDA error: unknown error", False, True),
        ("RuntimeError: CUDA error: unknown error", True, False),
        ("RuntimeError: CUDA error: device-side assert triggered", False, False),
    ],
    ids=["broken", "in trouble", "the script's own"],
)
def test_what_cuda_says_counts_unless_the_device_s_trouble_explains_it(
    gpu_site: Site, gpu: FakeGpus, tmp_path: Path, store_url: str, *, line: str, lost: bool, drained: bool
) -> None:
    """A CUDA error counts against the device unless the device's own trouble explains it.

    A lost card recovers by itself, and must not need a `resume`.
    """
    code = "import sys; open(sys.argv[1]).read(); sys.exit(sys.argv[2])"
    gates = [tmp_path / f"gate-{number}" for number in range(3)]
    for gate in gates:
        os.mkfifo(gate)  # a job waits until it is written to
    jobs = [
        gpu_site.queue.requests.submit(make_spec(argv=(sys.executable, "-c", code, str(gate), line), mem_bytes=MIB))
        for gate in gates
    ]
    for job in jobs:
        gpu_site.until_state(job.id, JobState.RUNNING)
    gpu.state.gpus[0].error = GPU_IS_LOST if lost else 0
    for gate in gates:
        gate.write_text("")
    for job in jobs:
        assert JobState.FAILED is gpu_site.until_recorded(job.id).job.state

    output = "".join(each.why for each in drains(gpu_site))
    assert (3 if drained else 0) == output.count("(CUDA error: unknown error)")
    assert row(store_url) is None
