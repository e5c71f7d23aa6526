from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from datetime import timedelta
from itertools import groupby
from pathlib import Path

import pytest
from bounded import until
from fake_driver.fake_driver import GPU_IS_LOST, FakeGpus, build, compiler
from site_of_one import Site

from gpuqueue.model.device import PeakSource
from gpuqueue.model.job import JobState
from gpuqueue.queue import keys
from gpuqueue.queue.connect import connect
from gpuqueue.text.units import GIB

SUPPORT = Path(__file__).parents[2] / "support"

#: Allocates each size on its card and waits until it was measured, then waits for the gate file.
JOB = """
import pathlib, sys, time
sys.path.insert(0, {tests!r})
from fake_driver.fake_driver import FakeGpus
from metered import until_seen, until_seen_last
gpus = FakeGpus.here()
for gib in {steps}:
    gpus.hold_here(int(gib * 2**30))
    until_seen_last(int(gib * 2**30))
if {least}:
    until_seen(**{least})
while not pathlib.Path({gate!r}).exists():
    time.sleep(0.02)
"""


@pytest.fixture
def fake(tmp_path: Path) -> FakeGpus:
    """Return the state of a fake driver with two 24 GiB cards, half a GiB of each reserved by the driver."""
    return FakeGpus.create(tmp_path / "gpus", (24 * GIB, 24 * GIB))


@pytest.fixture
def gpu_site(tmp_path: Path, store_url: str, fake: FakeGpus) -> Iterator[Site]:
    """Return a site whose driver is the fake one."""
    if compiler() is None:
        pytest.skip("no C compiler to build the fake driver with")
    made = Site(tmp_path / "state", store_url, GPUQUEUE_DEVICES="auto")
    made.environ.update(fake.environ(build(tmp_path)))
    yield made
    made.stop()


def submit(site: Site, mem: str, gate: Path, *steps: float, options: tuple[str, ...] = (), **least: int) -> int:
    """Submit a job that allocates these sizes, in GiB, one after the other, and waits for the *least* measurements."""
    script = gate.with_suffix(".py")
    script.write_text(JOB.format(tests=str(SUPPORT), steps=steps, gate=str(gate), least=least))
    return int(site.cli("submit", "--mem", mem, *options, "--", sys.executable, str(script)).stdout)


@pytest.mark.full
def test_a_gpu_job_is_pinned_by_uuid_and_its_peak_is_the_drivers(
    gpu_site: Site, fake: FakeGpus, tmp_path: Path
) -> None:
    """The history has the device, the pinning and the peak memory that the driver saw.

    The real pynvml runs on the fake driver.
    """
    gpu_site.start_recorder()
    gpu_site.start_worker("1")
    gate = tmp_path / "gate"
    gate.touch()

    job = submit(gpu_site, "6G", gate, 2.0, 5.5, 1.0)

    run = gpu_site.until_recorded(job).last_run
    assert run is not None
    (device,) = run.devices
    assert (fake.uuid(1), "Fake 24G", 1) == (device.uuid, device.name, device.index)
    assert (round(5.5 * GIB), PeakSource.NVML_SAMPLED) == (device.peak.bytes, device.peak.source)
    assert device.peak.shared is False


@pytest.mark.full
def test_a_run_on_a_mig_instance_has_the_peak_of_that_instance(gpu_site: Site, fake: FakeGpus, tmp_path: Path) -> None:
    """A profile is a device type, and the peak of a run is what it used of its own instance.

    The instance beside it on the same card is used by an external process, which does not count for the run.
    """
    small, large = fake.divide(1, {0: 3 * GIB, 1: 12 * GIB})
    fake.hold(3, 4_000_001, 9 * GIB, always_alive=True)
    gpu_site.start_recorder()
    for instance in (small, large):
        gpu_site.start_worker(instance)
    gate = tmp_path / "gate"
    gate.touch()

    job = submit(gpu_site, "2G", gate, 1.0, 2.0, options=("--device-type", "1g.3gb"))

    run = gpu_site.until_recorded(job).last_run
    assert run is not None
    (device,) = run.devices
    assert (small, "Fake 24G MIG 1g.3gb", 200) == (device.uuid, device.name, device.index)
    assert (2 * GIB, PeakSource.NVML_SAMPLED, False) == (device.peak.bytes, device.peak.source, device.peak.shared)
    assert "Fake 24G MIG 4g.12gb" in gpu_site.cli("gpus").stdout


@pytest.mark.full
def test_the_history_has_the_activity_of_a_run_on_its_card(gpu_site: Site, fake: FakeGpus, tmp_path: Path) -> None:
    """The history has the time of the first memory, the card's load and temperature, and the memory timeline."""
    fake.state.gpus[0].utilisation, fake.state.gpus[0].temperature = 60, 71
    gpu_site.start_recorder()
    gpu_site.start_worker("0")
    gate = tmp_path / "gate"
    gate.touch()

    job = submit(gpu_site, "6G", gate, 2.0, 5.5, 1.0, temperature_max_c=71)  # read once a second

    gpu_site.until_recorded(job)
    run = gpu_site.client.jobs.show(job).last_run
    assert run is not None
    (device,) = run.devices
    activity, line = device.activity, device.timeline
    assert (0.6, 0.6, 71.0) == (activity.utilisation_mean, activity.utilisation_max, activity.temperature_max_c)
    assert activity.first_memory_s is not None
    assert run.duration_s is not None
    assert 0 < activity.first_memory_s < run.duration_s
    assert line is not None
    steps = [each / GIB for each, _ in groupby(filter(None, line.bytes))]  # on a busy machine some steps have no sample
    assert steps in ([2.0, 5.5, 1.0], [5.5, 1.0])  # the first may be shorter than a step of the timeline
    assert round(5.5 * GIB) == run.peak_at_once_bytes
    reported = gpu_site.cli("show", str(job)).stdout
    assert "5.5G" in reported
    assert "busy 60 %" in reported
    assert "71 °C" in reported


@pytest.mark.full
def test_the_history_has_how_much_each_of_two_runs_used_a_card(gpu_site: Site, fake: FakeGpus, tmp_path: Path) -> None:
    """Beside each other, each run has its own use of the card, and not that of the whole card.

    The card works only while both are there: a run that is alone on it is said to use what the whole card does.
    """
    gpu_site.start_recorder()
    gpu_site.start_worker("0")
    gates = [tmp_path / "first", tmp_path / "second"]
    jobs = [submit(gpu_site, "6G", gate, size) for gate, size in zip(gates, (1.0, 2.0), strict=True)]
    held = until(lambda: (found := fake.held(0)) and len(found) == 2 and found, what="both processes on the card")
    assert held
    for pid, percent in zip(sorted(held, key=lambda pid: held[pid]), (30, 60), strict=True):
        fake.use(0, pid, percent, memory=percent // 2)
    fake.state.gpus[0].utilisation = 90

    for job in jobs:
        started_at = gpu_site.until_state(job, JobState.RUNNING).started_at
        assert started_at is not None
    until(lambda: gpu_site.queue.jobs.page().at - started_at > timedelta(seconds=5), what="five seconds of both")
    fake.state.gpus[0].utilisation = 0
    for gate in gates:
        gate.touch()

    for job, share in zip(jobs, (0.3, 0.6), strict=True):
        run = gpu_site.until_recorded(job).last_run
        assert run is not None
        activity = run.devices[0].activity
        assert (share, share / 2) == (activity.own_utilisation_p95, activity.own_bandwidth_p95)
        assert 0.9 == activity.utilisation_max
    assert "by this run: utilisation" in gpu_site.cli("show", str(jobs[0])).stdout


#: Allocates 4 GiB in the first process, and at the same time 3 GiB in a daemon that leaves its session twice.
TWO_PROCESSES = """
import os, pathlib, sys, time
sys.path.insert(0, {tests!r})
from fake_driver.fake_driver import FakeGpus
gpus = FakeGpus.here()
gpus.hold_here(4 * 2**30)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.setsid()
        gpus.hold_here(3 * 2**30)
        time.sleep(600)
    os._exit(0)
os.wait()
while not pathlib.Path({gate!r}).exists():
    time.sleep(0.02)
"""


@pytest.mark.full
def test_processes_of_a_run_add_up_at_every_moment(gpu_site: Site, tmp_path: Path) -> None:
    """The memory of a run is the sum over its processes, including a daemon that left its session twice.

    The daemon ends with the run.
    """
    gpu_site.start_recorder()
    gpu_site.start_worker("0")
    gate = tmp_path / "gate"
    script = gate.with_suffix(".py")
    script.write_text(TWO_PROCESSES.format(tests=str(SUPPORT), gate=str(gate)))
    job = int(gpu_site.cli("submit", "--mem", "5G", "--no-cap", "--", sys.executable, str(script)).stdout)
    until(lambda: gpu_site.client.devices.list()[0].allocated_bytes == 7 * GIB, what="both processes are seen")

    gate.touch()

    run = gpu_site.until_recorded(job).last_run
    assert run is not None
    assert (7 * GIB, False) == (run.devices[0].peak.bytes, run.devices[0].peak.shared)


@pytest.mark.full
def test_the_drivers_own_maximum_is_taken_where_it_keeps_one(gpu_site: Site, fake: FakeGpus, tmp_path: Path) -> None:
    """With accounting on, a memory spike between two samples is recorded, with its source."""
    fake.state.gpus[0].accounting = 1
    gpu_site.start_recorder()
    gpu_site.start_worker("0")
    gate = tmp_path / "gate"
    gate.touch()
    script = gate.with_suffix(".py")
    spike = "gpus.hold_here(9 * 2**30); gpus.hold_here(2 * 2**30)"
    script.write_text(JOB.format(tests=str(SUPPORT), steps=(2.0,), gate=str(gate), least={}) + spike + "\n")

    job = int(gpu_site.cli("submit", "--mem", "10G", "--", sys.executable, str(script)).stdout)

    run = gpu_site.until_recorded(job).last_run
    assert run is not None
    peak = run.devices[0].peak
    assert (9 * GIB, PeakSource.NVML_ACCOUNTING) == (peak.bytes, peak.source)


@pytest.mark.full
def test_without_figures_of_processes_the_devices_figure_counts(gpu_site: Site, tmp_path: Path) -> None:
    """Where the driver does not report memory per process, the peak is the growth of the device's used memory.

    N/A is not zero. The growth counts only where no other process used the card, and its source is recorded.
    """
    gpu_site.start_recorder()
    gpu_site.start_worker("0")
    gate = tmp_path / "gate"
    gate.touch()
    script = gate.with_suffix(".py")
    silent = "gpus.hold(0, __import__('os').getpid(), 3 * 2**30, not_available=True); until_seen(delta_bytes=3 * 2**30)"
    script.write_text(JOB.format(tests=str(SUPPORT), steps=(), gate=str(gate), least={}) + silent + "\n")

    job = int(gpu_site.cli("submit", "--mem", "6G", "--", sys.executable, str(script)).stdout)

    run = gpu_site.until_recorded(job).last_run
    assert run is not None
    peak = run.devices[0].peak
    assert (3 * GIB, PeakSource.DEVICE_DELTA) == (peak.bytes, peak.source)
    assert peak.na_samples > 0


@pytest.mark.full
def test_external_memory_keeps_a_job_waiting(gpu_site: Site, fake: FakeGpus, tmp_path: Path) -> None:
    """Memory of an external process, in any pid namespace, keeps a job waiting while that process lives."""
    gpu_site.start_recorder()
    fake.hold(0, 4_000_001, 20 * GIB, always_alive=True)
    gpu_site.start_worker("0")
    gate = tmp_path / "gate"
    gate.touch()
    job = submit(gpu_site, "6G", gate, 1.0)
    small = int(gpu_site.cli("submit", "--mem", "3G", "--", "true").stdout)
    assert JobState.SUCCEEDED is gpu_site.until_recorded(small).job.state
    assert JobState.QUEUED is gpu_site.client.jobs.get(job).state

    fake.state.entry_count = 0  # the external process is gone

    assert JobState.SUCCEEDED is gpu_site.until_recorded(job).job.state


@pytest.mark.full
def test_allocated_and_unused_memory_is_not_allocated_twice(gpu_site: Site, tmp_path: Path) -> None:
    """Memory that was allocated to a job, and that the job does not use yet, is not allocated again."""
    gpu_site.start_recorder()
    gpu_site.start_worker("0")
    gate = tmp_path / "gate"
    loading = submit(gpu_site, "20G", gate)
    gpu_site.until_state(loading, JobState.RUNNING)

    second = int(gpu_site.cli("submit", "--mem", "6G", "--", "true").stdout)

    small = int(gpu_site.cli("submit", "--mem", "1G", "--", "true").stdout)
    assert JobState.SUCCEEDED is gpu_site.until_recorded(small).job.state
    assert JobState.QUEUED is gpu_site.client.jobs.get(second).state
    gate.touch()
    assert JobState.SUCCEEDED is gpu_site.until_recorded(second).job.state


@pytest.mark.full
def test_a_lost_gpu_takes_no_new_job_and_its_running_one_goes_on(
    gpu_site: Site, fake: FakeGpus, tmp_path: Path
) -> None:
    """A lost GPU takes no new job, because unknown memory is not free memory.

    Its running job goes on, and the GPU serves again without a restart once it is back.
    """
    gpu_site.start_recorder()
    gpu_site.start_worker("0")
    gate = tmp_path / "gate"
    running = submit(gpu_site, "2G", gate, 1.0)
    gpu_site.until_state(running, JobState.RUNNING)
    fake.state.gpus[0].error = GPU_IS_LOST
    until(lambda: gpu_site.client.devices.list()[0].free_bytes == 0, what="the lost card promises nothing")

    waiting = int(gpu_site.cli("submit", "--mem", "1G", "--", "true").stdout)

    until(lambda: "the GPU is lost" in gpu_site.log())
    assert (JobState.RUNNING, JobState.QUEUED) == tuple(
        gpu_site.client.jobs.get(each).state for each in (running, waiting)
    )
    fake.state.gpus[0].error = 0
    assert JobState.SUCCEEDED is gpu_site.until_recorded(waiting).job.state
    gate.touch()
    assert JobState.SUCCEEDED is gpu_site.until_recorded(running).job.state


@pytest.mark.full
def test_a_job_that_exceeds_its_request_is_ended_and_its_neighbour_is_not(gpu_site: Site, tmp_path: Path) -> None:
    """A job over its request is warned in its log, then ended beyond the tolerance, with the figures recorded."""
    gpu_site.start_recorder()
    gpu_site.start_worker("0")
    gate = tmp_path / "gate"
    neighbour = submit(gpu_site, "6G", gate, 5.0)
    liar = submit(gpu_site, "3G", tmp_path / "never", 2.0, 3.1, 9.0, options=("--mem-retries", "0"))

    record = gpu_site.until_recorded(liar)

    assert record.last_run is not None
    assert str(record.last_run.ending).startswith("out of memory: asked 3G, peak 9G")
    assert JobState.FAILED is record.job.state
    log = gpu_site.cli("logs", str(liar)).stdout
    assert "it holds 3.1G" in log
    assert "ended: it holds 9G" in log
    reported = gpu_site.cli("show", str(liar)).stdout
    assert "it holds 3.1G" in reported
    assert "ended: it holds 9G" in reported
    gate.touch()
    assert JobState.SUCCEEDED is gpu_site.until_recorded(neighbour).job.state


@pytest.mark.full
def test_no_cap_lets_a_job_take_what_it_likes(gpu_site: Site, tmp_path: Path) -> None:
    """With `--no-cap` a job may use any amount of memory, and its real use counts against new claims."""
    gpu_site.start_recorder()
    gpu_site.start_worker("0")
    gate = tmp_path / "gate"
    script = gate.with_suffix(".py")
    script.write_text(JOB.format(tests=str(SUPPORT), steps=(9.0,), gate=str(gate), least={}))
    free = int(gpu_site.cli("submit", "--mem", "3G", "--no-cap", "--", sys.executable, str(script)).stdout)
    until(lambda: gpu_site.client.devices.list()[0].allocated_bytes == 9 * GIB, what="what it holds is counted")

    gate.touch()

    assert JobState.SUCCEEDED is gpu_site.until_recorded(free).job.state


def test_a_worker_reports_the_distances_of_its_card(gpu_site: Site, fake: FakeGpus) -> None:
    """A worker publishes at its start how near its card is to the others, as the driver reports it.

    Jobs on several devices are placed by these figures.
    """
    fake.state.links[0][1] = 1
    gpu_site.start_worker("0")

    client = connect(gpu_site.settings.redis_url)
    (facts,) = (json.loads(text) for text in client.hvals(keys.FACTS))
    client.close()
    assert {fake.uuid(1): 0} == facts["near"]


#: Names its card itself, as a saved config of accelerate does, and holds memory there.
NAMES_A_CARD = """
import os, pathlib, sys, time
os.environ["CUDA_VISIBLE_DEVICES"] = {uuid!r}
sys.path.insert(0, {tests!r})
from fake_driver.fake_driver import FakeGpus
gpus = FakeGpus.here()
gpus.hold_here({size_bytes})
while not pathlib.Path({gate!r}).exists():
    time.sleep(0.02)
"""


def submit_to_other_card(site: Site, gate: Path, mem: str, gib: int, *options: str) -> int:
    """Submit a job that is given card 0, and holds *gib* GiB on card 1. Return its id."""
    script = gate.with_suffix(".py")
    text = NAMES_A_CARD.format(uuid=FakeGpus.uuid(1), tests=str(SUPPORT), size_bytes=gib * GIB, gate=str(gate))
    script.write_text(text)
    words = ("submit", "--device", "0", "--mem", mem, "--mem-retries", "0", *options)
    return int(site.cli(*words, "--", sys.executable, str(script)).stdout)


def start_both(site: Site) -> None:
    """Start the recorder, and a worker for each card."""
    site.start_recorder()
    site.start_worker("0")
    site.start_worker("1")


def test_memory_on_another_card_is_that_of_the_job(gpu_site: Site, fake: FakeGpus, tmp_path: Path) -> None:
    """Its memory on the card that it was not given is its own: in `gpus`, in `why`, in its log and in its peak."""
    start_both(gpu_site)
    fake.hold(1, 4_000_001, GIB, always_alive=True)  # an external process beside it
    gate = tmp_path / "gate"
    job_id = submit_to_other_card(gpu_site, gate, "6G", 5)
    line = "it was given device 0 and uses device 1: inside a job devices count from 0"
    until(lambda: line in gpu_site.cli("logs", str(job_id)).stdout, what="the line in the log")
    beside = int(gpu_site.cli("submit", "--device", "1", "--mem", "23G", "--", "true").stdout)

    def said(words: str) -> str:
        text = gpu_site.cli(*words.split()).stdout
        return text if "was given another device" in text else ""

    gpus = until(lambda: said("gpus"), what="the job in gpus")
    assert f"job {job_id}, which was given another device" in gpus
    why = until(lambda: said(f"why {beside}"), what="the job in why")
    assert f"{job_id}" in next(each for each in why.splitlines() if "was given another device" in each)
    gate.touch()

    run = gpu_site.until_recorded(job_id).last_run
    assert run is not None
    assert (5 * GIB, PeakSource.NVML_SAMPLED) == (run.devices[0].peak.bytes, run.devices[0].peak.source)


def test_a_job_is_held_to_its_request_on_another_card(gpu_site: Site, tmp_path: Path) -> None:
    """A job that takes more than it asked for ends, on whatever card it takes it."""
    start_both(gpu_site)

    run = gpu_site.until_recorded(submit_to_other_card(gpu_site, tmp_path / "never", "3G", 9)).last_run

    assert run is not None
    assert str(run.ending).startswith("out of memory: asked 3G, peak 9G")


def test_a_site_may_end_a_job_on_another_card(gpu_site: Site, tmp_path: Path) -> None:
    """With `on_wrong_device = end` the run has an ending of its own, which names both cards."""
    gpu_site.environ["GPUQUEUE_ON_WRONG_DEVICE"] = "end"
    start_both(gpu_site)
    gate = tmp_path / "never"

    record = gpu_site.until_recorded(submit_to_other_card(gpu_site, gate, "6G", 1, "--retries", "3"))

    run = record.last_run
    assert run is not None
    assert run.ending is not None
    assert (JobState.FAILED, "wrong_device", 1) == (record.job.state, run.ending.kind.value, len(record.runs))
    words = "it was given device 0 and uses device 1: inside a job devices count from 0, so a script must not set "
    assert f"{words}CUDA_VISIBLE_DEVICES" == run.ending.detail
    log = gpu_site.cli("logs", str(record.job.id)).stdout
    assert words in log
    assert "the site ends jobs on devices that they were not given" in log
    assert f"wrong device: {words}" in gpu_site.cli("show", str(record.job.id)).stdout
