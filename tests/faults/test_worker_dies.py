from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest
from bounded import until
from factories import make_offer, make_spec
from site_of_one import Site

from gpuqueue.model.event import Act
from gpuqueue.model.job import JobState
from gpuqueue.model.run import RunDevice
from gpuqueue.queue import keys
from gpuqueue.queue.connect import connect
from gpuqueue.system.process import ProcessIdentity
from gpuqueue.text.units import MIB
from workers.run.directory import Held, RunDir


def runs_of(file: Path) -> list[str]:
    """Return what each copy of the job wrote when it began."""
    return file.read_text().split() if file.exists() else []


@pytest.mark.promise("P1")
def test_a_worker_killed_right_after_the_claim_costs_nothing(site: Site, tmp_path: Path) -> None:
    """A worker killed between the claim and the run directory costs nothing.

    In the end the history has exactly one successful run.
    """
    site.start_recorder()
    worker = site.start_worker()
    site.end(worker, signal.SIGKILL)
    effects = tmp_path / "effects"
    job = site.queue.requests.submit(make_spec(argv=("sh", "-c", f"echo run >> {effects}"), mem_bytes=MIB))
    # Repeats the last step of the killed worker: it claims the job and then does nothing.
    uuid = f"sim-{site.settings.host}-0"
    offer = make_offer(uuid, host=site.settings.host)
    claimed = site.queue.runs.claim(offer, worker="killed", lease_s=300, nonce="dead")
    assert claimed is not None

    site.start_worker()

    record = site.until_recorded(job.id)
    assert (JobState.SUCCEEDED, 1) == (record.job.state, record.job.losses)
    assert ["lost", "exited"] == [str(run.ending.kind) for run in record.runs if run.ending]
    assert ["run"] == runs_of(effects)


@pytest.mark.promise("P4")
@pytest.mark.parametrize("plain", [True, False], ids=["plain", "celery"])
def test_a_worker_killed_while_its_job_runs_is_survived(site: Site, tmp_path: Path, *, plain: bool) -> None:
    """A job survives its worker: it goes on under its shim.

    The next worker adopts the run and gets its exit code.
    """
    site.start_recorder()
    worker = site.start_worker(plain=plain)
    effects, gate = tmp_path / "effects", tmp_path / "gate"
    script = f"echo $$ >> {effects}; while [ ! -e {gate} ]; do sleep 0.05; done; exit 5"
    job = site.queue.requests.submit(make_spec(argv=("sh", "-c", script), mem_bytes=MIB))
    (pid,) = until(lambda: runs_of(effects))
    site.end(worker, signal.SIGKILL)
    alive = ProcessIdentity.of(int(pid))
    assert alive is not None

    site.start_worker(plain=plain)
    gate.touch()

    record = site.until_recorded(job.id)
    assert ("exit 5", 0) == (str(record.runs[-1].ending), record.job.losses)
    assert [pid] == runs_of(effects)


def test_a_job_that_ends_while_no_worker_is_there_is_settled_by_the_next(site: Site, tmp_path: Path) -> None:
    """The exit code of a job that ends without a worker is recorded by the next worker."""
    site.start_recorder()
    worker = site.start_worker()
    started, gate = tmp_path / "started", tmp_path / "gate"
    script = f"echo run > {started}; while [ ! -e {gate} ]; do sleep 0.02; done; exit 6"
    job = site.queue.requests.submit(make_spec(argv=("sh", "-c", script), mem_bytes=MIB))
    until(lambda: runs_of(started))
    site.end(worker)
    gate.touch()
    until(lambda: list(site.settings.runs_dir.glob("[0-9]*/*/exit")), what="the shim's last word")
    assert JobState.RUNNING is site.client.jobs.get(job.id).state

    site.start_worker()

    assert "exit 6" == str(site.until_recorded(job.id).runs[-1].ending)


@pytest.mark.full
def test_a_stopped_worker_leaves_its_jobs_alone(site: Site, tmp_path: Path) -> None:
    """SIGTERM to a worker leaves its jobs running.

    An upgrade stops the worker, and must not end three days of training.
    """
    site.start_recorder()
    worker = site.start_worker(plain=False)
    effects = tmp_path / "effects"
    job = site.queue.requests.submit(make_spec(argv=("sh", "-c", f"echo $$ >> {effects}; sleep 1000"), mem_bytes=MIB))
    (pid,) = until(lambda: runs_of(effects))

    assert 0 == site.end(worker)

    assert ProcessIdentity.of(int(pid)) is not None
    site.start_worker(plain=False)
    site.client.jobs.cancel(job.id)
    assert JobState.CANCELLED is site.until_recorded(job.id).job.state
    assert until(lambda: ProcessIdentity.of(int(pid)) is None)
    assert [pid] == runs_of(effects)


def test_a_killed_shim_loses_the_run_and_leaves_no_process(site: Site, tmp_path: Path) -> None:
    """When a shim is killed, its run is lost, its other processes are swept, and the job runs again."""
    site.start_recorder()
    site.start_worker()
    effects, left, gate = tmp_path / "effects", tmp_path / "left", tmp_path / "gate"
    # The shim's own child dies with the shim. A process that left the session is found only by the sweep.
    script = f"setsid sleep 1000 & echo $! >> {left}; echo $$ >> {effects}; [ -e {gate} ] || sleep 1000; kill %1"
    job = site.queue.requests.submit(make_spec(argv=("sh", "-c", script), mem_bytes=MIB))
    (first,) = until(lambda: runs_of(effects))
    (pid_file,) = site.settings.runs_dir.glob("[0-9]*/*/pid")
    gate.touch()

    os.kill(int(pid_file.read_text().split()[0]), signal.SIGKILL)

    record = site.until_recorded(job.id)
    assert ["lost", "exited"] == [str(run.ending.kind) for run in record.runs if run.ending]
    assert "its shim vanished" in str(record.runs[0].ending)
    assert [None, None] == [ProcessIdentity.of(int(each)) for each in (first, left.read_text().split()[0])]
    assert Act.LOSE in [event.act for event in site.client.jobs.events(job.id)]


@pytest.mark.full
def test_the_database_may_be_away(site: Site) -> None:
    """Jobs are accepted, run and end without the history, which is complete in the end."""
    site.start_worker()
    job = site.queue.requests.submit(make_spec(mem_bytes=MIB))
    until(lambda: site.queue.jobs.get(job.id).state is JobState.SUCCEEDED)  # type: ignore[union-attr]

    site.start_recorder()

    assert "exit 0" == str(site.until_recorded(job.id).runs[-1].ending)


@pytest.mark.full
def test_two_recorders_at_once_write_everything_once(site: Site) -> None:
    """Two recorders record each event once.

    The position of the recorders is a row in the history itself.
    """
    site.start_recorder()
    site.spawn("record")
    site.start_worker()
    jobs = [site.queue.requests.submit(make_spec(mem_bytes=MIB)).id for _ in range(10)]

    for job in jobs:
        assert 1 == len(site.until_recorded(job).runs)
        assert 4 == len(site.client.jobs.events(job))


def test_a_damaged_run_directory_keeps_no_worker_from_starting(site: Site) -> None:
    """A damaged run directory does not stop a worker from starting.

    A power cut can leave an empty file, and the host's other runs must not wait until a user removes it.
    """
    site.start_recorder()
    held = Held(job_id=77, token="1.damaged", devices=(RunDevice(uuid="x", lease_bytes=1),))
    directory = RunDir.create(site.settings.runs_dir, held)
    (directory.path / "claim").write_text("")

    site.start_worker()

    job = site.queue.requests.submit(make_spec(mem_bytes=MIB))
    assert "exit 0" == str(site.until_recorded(job.id).runs[-1].ending)


@pytest.mark.promise("P6")
def test_the_peak_outlives_the_worker_that_saw_it(site: Site, tmp_path: Path) -> None:
    """A run's peak memory includes what an earlier worker measured.

    The job is large under the first worker and small under the second, so its peak is the larger figure.
    """
    site.start_recorder()
    worker = site.start_worker()
    shrink, gate = tmp_path / "shrink", tmp_path / "gate"
    os.mkfifo(shrink)  # the job waits until it is written to
    script = (
        "import os\n"
        "data = bytearray(200 * 2**20)\n"
        f"open({str(shrink)!r}).read()\n"
        # exec frees all memory and resets the kernel's own maximum
        f"os.execv('/bin/sh', ['sh', '-c', 'while [ ! -e {gate} ]; do sleep 0.05; done'])\n"
    )
    job = site.queue.requests.submit(make_spec(argv=(sys.executable, "-c", script), mem_bytes=MIB))
    until(lambda: any("peak_bytes" in path.read_text() for path in site.settings.runs_dir.glob("[0-9]*/*/meters")))

    def seen() -> bool:
        (meters,) = site.settings.runs_dir.glob("[0-9]*/*/meters")
        devices = json.loads(meters.read_text())["devices"]
        return max(plain.get("peak_bytes") or 0 for plain in devices.values()) > 200 * MIB

    until(seen, what="the peak is kept")
    site.end(worker, signal.SIGKILL)
    shrink.write_text("")
    site.start_worker()
    gate.touch()

    (device,) = site.until_recorded(job.id).runs[-1].devices
    assert (device.peak.bytes or 0) > 200 * MIB


def test_an_event_that_the_history_refuses_stops_no_other(site: Site, store_url: str) -> None:
    """An event with a number out of the database's range does not stop the recorder.

    Such an event used to end the recorder, and each of its successors.
    """
    client = connect(store_url)
    client.xadd(
        keys.OUTBOX,
        {"act": "hold", "job": str(10**30), "state": "held", "at": "0", "attempt": "0", "losses": "0", "reason": ""},
    )
    client.close()
    site.start_worker()
    job = site.queue.requests.submit(make_spec(mem_bytes=MIB))

    site.start_recorder()

    assert "exit 0" == str(site.until_recorded(job.id).runs[-1].ending)


@pytest.mark.full
def test_runs_of_a_device_that_is_not_there_any_more_are_answered_for(site: Site, tmp_path: Path) -> None:
    """Runs on a device that is no longer served are managed by the other workers of the host.

    After a card dropped out, or `up` got fewer devices, its job could not be cancelled, and `down` hung.
    """
    site.start_recorder()
    site.environ["GPUQUEUE_DEVICES"] = "sim:2x8G"
    worker = site.start_worker("1")
    effects = tmp_path / "effects"
    job = site.queue.requests.submit(make_spec(argv=("sh", "-c", f"echo $$ >> {effects}; sleep 1000"), mem_bytes=MIB))
    (pid,) = until(lambda: runs_of(effects))
    site.end(worker, signal.SIGKILL)

    site.environ["GPUQUEUE_DEVICES"] = "sim:1x8G"
    site.start_worker("0")
    site.client.jobs.cancel(job.id)

    assert JobState.CANCELLED is site.until_recorded(job.id).job.state
    assert until(lambda: ProcessIdentity.of(int(pid)) is None)
    assert [pid] == runs_of(effects)


@pytest.mark.full
def test_a_job_that_ignores_sigterm_is_gone_before_anybody_else_may_have_it(store_url: str, tmp_path: Path) -> None:
    """A job that ignores SIGTERM is gone before its job can be claimed again.

    With a lease of 5 s and a kill grace of 10 s it used to live for 8 s beside its second copy.
    """
    site = Site(
        tmp_path / "state", store_url, GPUQUEUE_HOST_LOST_AFTER="5s", GPUQUEUE_HEARTBEAT="1s", GPUQUEUE_KILL_GRACE="10s"
    )
    try:
        site.start_recorder()
        worker = site.start_worker()
        effects = tmp_path / "effects"
        script = f"trap '' TERM; echo $$ >> {effects}; while :; do sleep 0.1; done"
        job = site.queue.requests.submit(make_spec(argv=("sh", "-c", script), mem_bytes=MIB))
        (pid,) = until(lambda: runs_of(effects))
        site.end(worker, signal.SIGKILL)

        site.until_state(job.id, JobState.QUEUED)

        assert ProcessIdentity.of(int(pid)) is None
    finally:
        site.stop()


@pytest.mark.full
def test_who_adopts_a_young_run_knows_when_it_began(site: Site, tmp_path: Path) -> None:
    """The memory timeline of an adopted run begins at the run's start.

    A worker killed before its first heartbeat saves no measurements. The timeline used to begin at the adoption, so
    that it seemed to stop in the middle of the run.
    """
    site.start_recorder()
    site.environ["GPUQUEUE_HEARTBEAT"] = "4s"  # no heartbeat before the worker is killed
    worker = site.start_worker()
    gate = tmp_path / "gate"
    job = site.queue.requests.submit(
        make_spec(argv=("sh", "-c", f"while [ ! -e {gate} ]; do sleep 0.05; done"), mem_bytes=MIB)
    )
    until(lambda: "started job" in site.log(), what="the start")
    began_s = time.monotonic()
    site.end(worker, signal.SIGKILL)
    until(lambda: time.monotonic() - began_s > 2.0, what="a while without a worker")

    site.environ["GPUQUEUE_HEARTBEAT"] = "0.2s"
    site.start_worker()
    until(lambda: samples_of(site) > 1, what="samples of the next worker")
    gate.touch()

    site.until_recorded(job.id)
    timeline = site.client.jobs.show(job.id).runs[-1].devices[0].timeline
    assert timeline is not None
    assert len(timeline.bytes) * timeline.step_s > 1.5, "the two seconds without a worker are part of it"


def samples_of(site: Site) -> int:
    """Return how many samples of its only run the worker has saved."""
    (directory,) = site.settings.runs_dir.glob("[0-9]*/*")
    kept = directory / "meters"
    devices = json.loads(kept.read_text())["devices"] if kept.exists() else {}
    return sum(each.get("samples", 0) for each in devices.values())
