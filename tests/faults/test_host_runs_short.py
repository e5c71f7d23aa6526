from __future__ import annotations

import errno
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from bounded import until
from factories import make_spec
from one_shim import RUN_TOKEN
from short_host import fill, no_descriptors, no_processes, own_disk
from site_of_one import Site

from gpuqueue.model.event import Act
from gpuqueue.model.job import JobState
from gpuqueue.model.run import EndingKind
from gpuqueue.system.process import ProcessIdentity
from gpuqueue.text.units import MIB
from workers.run import process_tree
from workers.run.environment import TOKEN
from workers.shim.supervisor import CANNOT_WRITE

NO_ROOM, NO_DESCRIPTOR, NO_PROCESS = (os.strerror(each) for each in (errno.ENOSPC, errno.EMFILE, errno.EAGAIN))


def trouble(site: Site) -> str:
    """Return why the site's device takes no job; empty if it takes jobs."""
    (device,) = site.queue.devices.all()
    return device.trouble or ""


def renewed_until(site: Site, job_id: int) -> float:
    """Return the deadline, in seconds of the monotonic clock, up to which heartbeats cover the job's only run."""
    (heartbeat,) = site.settings.runs_dir.glob(f"{job_id}/*/heartbeat")
    return float(heartbeat.read_text())


def outlive_the_grace(site: Site, job_id: int) -> None:
    """Wait until the run's current deadline has passed. Without further heartbeats its shim would end it by then."""
    end = renewed_until(site, job_id)
    until(lambda: time.monotonic() > end + 0.5, what="the grace is over")


def waiting_job(site: Site, tmp_path: Path, *, code: int = 3) -> tuple[int, ProcessIdentity, Path]:
    """Start a job that exits with *code* once a gate file exists; return its id, its process and the gate file."""
    pid, gate = tmp_path / "pid", tmp_path / "gate"
    script = f"echo $$ > {pid}.part; mv {pid}.part {pid}; while [ ! -e {gate} ]; do sleep 0.05; done; exit {code}"
    job = site.queue.requests.submit(make_spec(argv=("sh", "-c", script), mem_bytes=MIB))
    identity = ProcessIdentity.of(int(until(lambda: pid.exists() and pid.read_text())))
    assert identity is not None
    until(lambda: [2] == [_lines(each) for each in site.settings.runs_dir.glob("[0-9]*/*/pid")], what="the job runs")
    return job.id, identity, gate


def _lines(file: Path) -> int:
    return len(file.read_text().splitlines()) if file.exists() else 0


# ---- disk space ------------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_a_device_whose_host_has_no_room_takes_no_job_and_says_why(site: Site) -> None:
    """A device on a host with a full disk takes no job and names the reason.

    The worker used to claim and release the job once a second for ever, and each try left a directory.
    """
    site.start_recorder()
    with own_disk(site.settings.runs_dir) as disk:
        site.start_worker()
        filler = fill(disk)
        job = site.queue.requests.submit(make_spec(mem_bytes=MIB))

        until(lambda: NO_ROOM in trouble(site), what="the device says why")
        assert f"closed: no run can begin: {NO_ROOM}" in site.cli("gpus").stdout
        assert (JobState.QUEUED, 0, 0) == (site.client.jobs.get(job.id).state, *_counts(site, job.id))
        until(lambda: site.queue.outbox.backlog() == (0, None), what="a history that has what happened")
        before = len(site.client.jobs.events(job.id))
        for _ in range(2):  # the worker's retries cost the job nothing
            last = disk.stat().st_mtime_ns
            until(lambda: disk.stat().st_mtime_ns > last, what="the next try")  # noqa: B023 - called in this very turn
        assert before == len(site.client.jobs.events(job.id)) <= 3
        left = {entry.name for entry in disk.iterdir() if not entry.name.startswith(".try-")}
        assert {".filler", "live"} >= left, "each try left a directory"

        filler.unlink()
        record = site.until_recorded(job.id)
        assert "exit 0" == str(record.runs[-1].ending)
        assert "" == trouble(site)


def _counts(site: Site, job_id: int) -> tuple[int, int]:
    job = site.client.jobs.get(job_id)
    return job.attempt, job.losses


@pytest.mark.full
def test_a_full_disk_ends_no_healthy_job_and_keeps_nobody_from_cancelling_it(site: Site, tmp_path: Path) -> None:
    """A full disk ends no healthy job, and the job can still be cancelled.

    The heartbeat is written in place, the request to end is a link, and the spec's disk blocks are enough for the exit
    file.
    """
    site.environ.update(GPUQUEUE_HOST_LOST_AFTER="3s")
    site.start_recorder()
    with own_disk(site.settings.runs_dir) as disk:
        site.start_worker()
        job_id, process, _ = waiting_job(site, tmp_path)
        fill(disk)

        outlive_the_grace(site, job_id)
        assert process.alive()

        site.client.jobs.cancel(job_id)
        record = site.until_recorded(job_id)
        assert JobState.CANCELLED is record.job.state
        assert not process.alive()


def test_a_job_that_fills_the_disk_itself_has_failed_by_itself(site: Site) -> None:
    """A job that fills the disk fails with its own exit code and is not counted as lost."""
    site.start_recorder()
    script = "import os\nwith open(os.environ['GPUQUEUE_RUN_DIR'] + '/result', 'wb', buffering=0) as file:\n"
    script += "    while True: file.write(b'x' * 4096)\n"
    with own_disk(site.settings.runs_dir):
        site.start_worker()
        job = site.queue.requests.submit(make_spec(argv=(sys.executable, "-c", script), mem_bytes=MIB))

        record = site.until_recorded(job.id)
        assert ("exit 1", JobState.FAILED, 0) == (str(record.runs[-1].ending), record.job.state, record.job.losses)


def test_a_shim_that_cannot_write_its_identity_starts_nothing(shims: Any, tmp_path: Path) -> None:
    """A shim that cannot write its pid file starts no job.

    The disk filled up between claim and start. The shim's exit code tells the worker that nothing ran.
    """
    with own_disk(tmp_path / "disk") as disk:
        # The lock and the spec exist already. There is no space for one more file.
        shim = shims("sh", "-c", f"touch {tmp_path}/ran", runs=disk / "runs", cwd="/no", before=lambda: fill(disk))

        assert CANNOT_WRITE == shim.process.wait(timeout=30)
    assert not (tmp_path / "ran").exists()


def test_an_exit_waits_until_there_is_room_for_it(shims: Any, tmp_path: Path) -> None:
    """A shim that cannot write the exit file retries until the disk has space.

    In this test the disk blocks of the spec are used up as well.
    """
    with own_disk(tmp_path / "disk") as disk:
        shim = shims("sh", "-c", f"while [ ! -e {tmp_path}/gate ]; do sleep 0.05; done; exit 7", runs=disk / "runs")
        until(lambda: _lines(shim.directory.path / "pid") == 2, what="the job runs")
        (shim.directory.path / "spec").unlink()
        filler = fill(disk)
        job = int((shim.directory.path / "pid").read_text().splitlines()[1].split()[0])
        (tmp_path / "gate").touch()
        until(lambda: not Path(f"/proc/{job}").exists(), what="the end of the job")
        before = _sleeps(shim.process.pid)
        until(lambda: _sleeps(shim.process.pid) >= before + 2, what="it has tried in vain, and waits again")

        assert shim.process.poll() is None
        filler.unlink()

        assert "exit 7" == str(shim.ended().ending)


# ---- descriptors and processes ---------------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.parametrize("plain", [True, False], ids=["plain", "celery"])
def test_a_worker_without_descriptors_loses_no_run_and_recovers(site: Site, tmp_path: Path, *, plain: bool) -> None:
    """A worker without free file descriptors loses no run and recovers.

    It used to take an unreadable exit file for a missing one and lose that run, and to take a running job for gone and
    kill it.
    """
    site.environ.update(GPUQUEUE_HOST_LOST_AFTER="4s")
    site.start_recorder()
    worker = site.start_worker(plain=plain)
    job_id, process, gate = waiting_job(site, tmp_path)
    with no_descriptors(worker.pid):
        later = site.queue.requests.submit(make_spec(mem_bytes=MIB))
        until(lambda: NO_DESCRIPTOR in trouble(site), what="the device says why")
        outlive_the_grace(site, job_id)
        assert process.alive()
        assert JobState.RUNNING is site.client.jobs.get(job_id).state
        gate.touch()
        until(lambda: not process.alive())
        until(
            lambda: "it cannot be settled for now" in site.log() or site.client.jobs.get(job_id).state.is_end,
            what="the worker has looked for the exit",
        )
        assert worker.poll() is None, site.log()
        assert (JobState.QUEUED, 0) == (site.client.jobs.get(later.id).state, site.client.jobs.get(later.id).losses)

    for each, words in ((job_id, "exit 3"), (later.id, "exit 0")):
        record = site.until_recorded(each)
        assert (words, 0) == (str(record.runs[-1].ending), record.job.losses)
    assert worker.poll() is None


@pytest.mark.full
@pytest.mark.parametrize(
    ("plain", "idle"), [(True, True), (True, False), (False, True)], ids=["no process", "no thread", "celery"]
)
def test_a_worker_that_can_start_nothing_gives_back_and_recovers(
    site: Site, tmp_path: Path, *, plain: bool, idle: bool
) -> None:
    """A worker that can start no process or thread releases its claims and recovers.

    Each try used to count as a loss, so three tries within a second held the job, and then every other job of the
    queue.
    """
    site.start_recorder()
    worker = site.start_worker(plain=plain)
    running, _, gate = waiting_job(site, tmp_path)
    if idle:  # a thread of the pool is idle, so only the process cannot be created
        site.until_recorded(site.queue.requests.submit(make_spec(mem_bytes=MIB)).id)
    with no_processes(worker.pid):
        jobs = [site.queue.requests.submit(make_spec(mem_bytes=MIB)).id for _ in range(5)]
        until(lambda: trouble(site).startswith("no run can begin"), what="the device says why")
        until(lambda: any(Act.RELEASE_CLAIM in _acts(site, each) for each in jobs), what="it tried, and said so")
        until(
            lambda: {JobState.QUEUED} == {site.client.jobs.get(each).state for each in jobs},
            what="all that it had taken",
        )
        assert {(0, 0)} == {_counts(site, each) for each in jobs}
        gate.touch()
        assert "exit 3" == str(site.until_recorded(running).runs[-1].ending), "what runs is not touched"

    for each in jobs:
        record = site.until_recorded(each)
        assert ("exit 0", 0) == (str(record.runs[-1].ending), record.job.losses)


def _acts(site: Site, job_id: int) -> list[Act]:
    return [event.act for event in site.client.jobs.events(job_id)]


@pytest.mark.full
def test_a_shim_that_cannot_fork_blames_the_host_and_not_the_job(site: Site) -> None:
    """A shim that cannot fork causes a release, not a failed job.

    The job used to be recorded as failed for good, with `Resource temporarily unavailable`.
    """
    site.start_recorder()
    worker = site.start_worker()
    site.until_recorded(site.queue.requests.submit(make_spec(mem_bytes=MIB)).id)  # leaves an idle thread in the pool
    with no_processes(worker.pid):  # the shim waits already
        job = site.queue.requests.submit(make_spec(mem_bytes=MIB))
        until(lambda: f"cannot make a process: {NO_PROCESS}" in trouble(site), what="the device says why")
        until(lambda: Act.RELEASE_CLAIM in _acts(site, job.id), what="it tried, and said so")

    record = site.until_recorded(job.id)
    assert ("exit 0", 0) == (str(record.runs[-1].ending), record.job.losses)


def test_what_cannot_be_read_for_want_of_a_descriptor_is_not_taken_for_gone(shims: Any) -> None:
    """A missing file descriptor raises an error, and is not taken for a missing file or process.

    The exit file, the process and the leftovers each decide whether a run is over.
    """
    shim = shims("sh", "-c", "echo ready; sleep 1000")
    until(lambda: "ready" in shim.log())
    identity = shim.directory.shim()
    assert identity is not None
    asked: list[Callable[[], object]] = [
        shim.directory.exit,
        shim.directory.held,
        shim.directory.shim,
        identity.alive,
        lambda: process_tree.carrying(TOKEN, RUN_TOKEN),
        lambda: process_tree.sweep(TOKEN, RUN_TOKEN),
    ]
    for ask in asked:
        with no_descriptors(os.getpid()), pytest.raises(OSError, match=NO_DESCRIPTOR):
            ask()

    with no_descriptors(os.getpid(), but=1), pytest.raises(OSError, match=NO_DESCRIPTOR):
        identity.handle()  # one descriptor is free for the process, and none for the check of its identity
    with no_descriptors(os.getpid(), but=1), pytest.raises(OSError, match=NO_DESCRIPTOR):
        process_tree.sweep(TOKEN, RUN_TOKEN)
    assert identity.alive()


@pytest.mark.full
def test_a_host_process_that_cannot_start_a_worker_tries_again(site: Site) -> None:
    """A host process that cannot start the parent of its workers retries.

    It used to end itself, and every worker with it.
    """
    host = site.spawn("host", "--devices", "sim:1x8G", "--no-recorder")
    (device,) = until(site.queue.devices.all, what="the worker")
    with no_processes(host.pid):
        os.kill(psutil.Process(device.worker_pid).ppid(), signal.SIGKILL)
        until(lambda: "cannot be started" in site.log(), what="the host process says why")
        assert host.poll() is None

    until(lambda: site.queue.devices.all()[0].worker != device.worker, what="another worker")


@pytest.mark.full
def test_a_parent_that_cannot_fork_a_worker_tries_again(site: Site) -> None:
    """The log of the worker says why, and the host process asks again."""
    site.spawn("host", "--devices", "sim:1x8G", "--no-recorder")
    (device,) = until(site.queue.devices.all, what="the worker")
    log = site.settings.logs_dir / f"{device.device.uuid}.log"
    with no_processes(psutil.Process(device.worker_pid).ppid()):
        os.kill(device.worker_pid, signal.SIGKILL)
        until(lambda: f"the worker cannot be forked: {NO_PROCESS}" in log.read_text(), what="the parent says why")

    until(lambda: site.queue.devices.all()[0].worker != device.worker, what="another worker")


@pytest.mark.full
@pytest.mark.parametrize("removed", [False, True], ids=["no descriptor", "removed"])
def test_a_shim_that_cannot_read_its_heartbeat_goes_by_the_last_word_of_it(shims: Any, *, removed: bool) -> None:
    """A shim that cannot read its heartbeat file uses the last deadline it read.

    It used to end the run at once, as if no heartbeat had ever come.
    """
    until_s = time.monotonic() + 5
    shim = shims("sh", "-c", "echo ready; sleep 1000", renew_s=5.0, start_before=until_s)
    until(lambda: "ready" in shim.log())
    if removed:
        (shim.directory.path / "heartbeat").unlink()
        check_process(shim.process.pid)
    else:
        with no_descriptors(shim.process.pid):
            check_process(shim.process.pid)
    assert shim.process.poll() is None

    end = shim.ended()
    assert (EndingKind.LOST, True) == (end.ending.kind, time.monotonic() >= until_s)


def check_process(pid: int) -> None:
    """Make a shim check its files twice, and wait until it has done so."""
    for _ in range(2):
        before = _sleeps(pid)
        os.kill(pid, signal.SIGUSR1)
        until(lambda: _sleeps(pid) > before, what="the shim sleeps again")  # noqa: B023 - called in this very turn


def _sleeps(pid: int) -> int:
    """Return the number of voluntary context switches of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("voluntary_ctxt_switches")))
