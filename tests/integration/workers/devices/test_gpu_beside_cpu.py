"""Tests of a host that serves its CPU beside its GPUs, on the fake driver: which jobs run where, and which wait."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from bounded import until
from fake_driver.fake_driver import GPU_IS_LOST, FakeGpus, build, compiler
from site_of_one import Site

from gpuqueue.model.device import DeviceKind, PeakSource
from gpuqueue.model.job import JobState
from gpuqueue.text.units import GIB, MIB

SUPPORT = Path(__file__).parents[3] / "support"

#: Prints which cards it sees, and holds 100 MiB of host memory until it was measured.
JOB = f"""
import os, sys
sys.path.insert(0, {str(SUPPORT)!r})
from metered import until_seen
held = bytearray(100 * 2**20)
print(repr(os.environ["CUDA_VISIBLE_DEVICES"]))
until_seen(samples=1)
"""


@pytest.fixture
def fake(tmp_path: Path) -> FakeGpus:
    """Return the state of a fake driver with two 24 GiB cards."""
    return FakeGpus.create(tmp_path / "gpus", (24 * GIB, 24 * GIB))


@pytest.fixture
def host(tmp_path: Path, store_url: str, fake: FakeGpus) -> Iterator[Site]:
    """Return a host with the fake driver that serves its CPU as well; no worker runs yet."""
    if compiler() is None:
        pytest.skip("no C compiler to build the fake driver with")
    made = Site(tmp_path / "state", store_url, GPUQUEUE_DEVICES="auto,cpu")
    made.environ.update(fake.environ(build(tmp_path)))
    made.start_recorder()
    yield made
    made.stop()


@pytest.fixture
def both(host: Site) -> Site:
    """Return that host with workers of the first GPU and of the CPU."""
    host.start_worker("cpu")
    host.start_worker("0")
    return host


def submit(site: Site, *words: str) -> int:
    return int(site.cli("submit", "--mem", "200M", *words, "--", sys.executable, "-c", JOB).stdout)


@pytest.mark.full
def test_each_job_lands_where_it_should(both: Site, fake: FakeGpus) -> None:
    """Each job runs on the kind that it asked for, with its way of measuring; a CPU job sees no card."""
    cpu = submit(both, "--device", "cpu")
    gpu = submit(both, "--device", "gpu")
    unsaid = submit(both)

    on = {}
    for job in (cpu, gpu, unsaid):
        run = both.until_recorded(job).last_run
        assert run is not None
        (on[job],) = run.devices
    assert [DeviceKind.CPU, DeviceKind.GPU, DeviceKind.GPU] == [on[job].kind for job in (cpu, gpu, unsaid)]
    assert [f"cpu-{both.settings.host}", fake.uuid(0), fake.uuid(0)] == [on[job].uuid for job in (cpu, gpu, unsaid)]
    assert ["''\n", f"'{fake.uuid(0)}'\n"] == [both.client.logs.path(job).read_text() for job in (cpu, unsaid)]
    assert PeakSource.HOST_RSS is on[cpu].peak.source
    assert 100 * MIB <= (on[cpu].peak.bytes or 0) < GIB
    assert not on[gpu].peak.bytes  # the job used no card memory, and its 100 MiB of host memory do not count
    assert "  asked      200M on the CPU, priority normal\n" in both.cli("show", str(cpu)).stdout
    assert f"{both.settings.host}:cpu" in both.cli("history").stdout


@pytest.mark.full
def test_with_the_gpu_lost_its_jobs_wait_and_the_cpus_run(both: Site, fake: FakeGpus) -> None:
    """With the GPU lost, jobs for it wait and do not move to the CPU.

    Once the GPU is back, it runs them.
    """
    fake.state.gpus[0].error = GPU_IS_LOST
    until(lambda: both.client.devices.list()[0].trouble, what="the lost card is closed")

    waiting = [submit(both, "--device", "gpu"), submit(both)]
    ran = [submit(both, "--device", "cpu"), submit(both, "--device", "any")]

    for job in ran:
        record = both.until_recorded(job)
        assert JobState.SUCCEEDED is record.job.state
        assert [f"cpu-{both.settings.host}"] == [device.uuid for run in record.runs for device in run.devices]
    assert [JobState.QUEUED] * 2 == [both.client.jobs.get(job).state for job in waiting]
    fake.state.gpus[0].error = 0
    for job in waiting:
        assert (fake.uuid(0),) == both.until_recorded(job).job.devices


@pytest.mark.full
def test_while_the_gpus_worker_comes_up_the_cpu_leaves_it_its_jobs(host: Site, fake: FakeGpus) -> None:
    """The CPU leaves jobs to a GPU whose worker is still starting.

    The CPU's worker is ready first, and at that moment the queue has no GPU.
    """
    host.start_worker("cpu")
    unsaid = submit(host)
    assert JobState.SUCCEEDED is host.until_recorded(submit(host, "--device", "cpu")).job.state
    assert JobState.QUEUED is host.client.jobs.get(unsaid).state

    host.start_worker("0")

    assert (fake.uuid(0),) == host.until_recorded(unsaid).job.devices


@pytest.mark.full
def test_the_devices_are_distinguished(both: Site) -> None:
    """Tables show `cpu` where a card has its index, and the CPU is no second device for a job on two."""
    rows = both.cli("gpus").stdout.splitlines()

    assert ["0", "cpu"] == [row.split()[1] for row in rows[1:]]
    two = both.cli("submit", "--mem", "1G", "--gpus", "2", "--device", "any", "--", "true", check=False)
    assert "2 devices asked for, but no host has more than 1" in two.stderr


@pytest.mark.full
def test_a_job_on_several_mig_instances_is_refused(both: Site, fake: FakeGpus) -> None:
    """A job on two devices is refused where they are MIG instances; their worker reports that."""
    small, large = fake.divide(1, {0: 10 * GIB, 1: 14 * GIB})
    both.start_worker(small)
    both.start_worker(large)

    refused = both.cli("submit", "--mem", "1G", "--gpus", "2", "--", "true", check=False)

    assert (2, "") == (refused.returncode, refused.stdout)
    assert "a program can use only one MIG instance" in refused.stderr
