from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from bounded import until
from factories import make_spec
from site_of_one import Site

from gpuqueue.model.job import JobState
from gpuqueue.text.units import MIB

DIE_AT = Path(__file__).parents[1] / "support" / "die_at.py"

#: Each step of a run -> the runs that the job takes in all. A run that never began is lost and counted as such.
STEPS = {
    "workers.claimer:Claimer._take": 2,  # claimed only
    "workers.run.links:_second_name": 2,  # the claim is on the disk, without its link
    "workers.runner:check_admission": 2,  # the run directory exists
    "workers.steps.spawn:Spawn.spawn": 2,  # the queue has the start, no process exists
    "workers.shim.client:Shims.start": 2,  # all files are written
    "workers.shim.client:Shim.give": 2,  # a shim waits for the run
    "workers.shim.client:Shims._requested@2": 1,  # it has the run; the next one is not requested
    "workers.runner:follow_child": 1,  # the shim is alive
    "workers.runner:read_exit": 1,  # the job has ended and is not reported
    "workers.run.directory:RunDir.report": 1,  # the queue has the report, the directory does not say so yet
    "workers.run.directory:RunDir.settle": 1,  # the history has the end, the directory is not settled
}


@pytest.mark.full
@pytest.mark.parametrize("step", STEPS)
def test_a_worker_killed_at_any_step_costs_no_job_and_doubles_none(site: Site, tmp_path: Path, step: str) -> None:
    """After SIGKILL of a real worker at any step the next worker ends the job, which runs once."""
    site.start_recorder()
    effects = tmp_path / "effects"
    job = site.queue.requests.submit(make_spec(argv=("sh", "-c", f"echo run >> {effects}; exit 0"), mem_bytes=MIB))
    place, _, time = step.partition("@")
    command = [sys.executable, str(DIE_AT), f"kill@{time or 1}", place, "run", "--device", "0", "--plain"]
    killed = subprocess.run(command, env=site.environ, capture_output=True, text=True, timeout=60, check=False)
    assert -signal.SIGKILL == killed.returncode, killed.stderr

    site.start_worker()

    record = site.until_recorded(job.id)
    assert JobState.SUCCEEDED is record.job.state
    assert (STEPS[step], STEPS[step] - 1) == (len(record.runs), record.job.losses)
    assert ["run"] == effects.read_text().split()
    until(lambda: not list(site.settings.runs_dir.glob("[0-9]*/*/claim")), what="every run directory is settled")
    assert 0 == site.queue.devices.all()[0].allocated_bytes


@pytest.mark.full
@pytest.mark.parametrize("file", [1, 2, 4, 5])
def test_a_worker_killed_in_the_middle_of_a_settlement_leaves_no_file_behind(site: Site, file: int) -> None:
    """A worker killed during a settlement leaves no file behind.

    The link used to be removed first, so the rest was never found, and a spec with the submitter's environment stayed
    for ever.
    """
    site.start_recorder()
    job = site.queue.requests.submit(make_spec(mem_bytes=MIB))
    place = "workers.run.directory:remove"
    command = [sys.executable, str(DIE_AT), f"kill@{file}", place, "run", "--device", "0", "--plain"]
    killed = subprocess.run(command, env=site.environ, capture_output=True, text=True, timeout=60, check=False)
    assert -signal.SIGKILL == killed.returncode, killed.stderr

    site.start_worker()

    runs = site.settings.runs_dir
    until(lambda: not list((runs / "live").iterdir()), what="every run directory is settled")
    assert "exit 0" == str(site.until_recorded(job.id).last_run.ending)  # type: ignore[union-attr]
    until(
        lambda: ["log", "user"] == sorted(path.name for path in runs.glob("[0-9]*/*/*")),
        what="the rest goes after the link",
    )


@pytest.mark.full
@pytest.mark.parametrize(
    "step",
    [
        "workers.run.directory:RunDir.create",
        "workers.run.directory:RunDir.write_spec",
        "workers.shim.client:Shims.start",
        "workers.shim.client:Shim.give",
        "workers.shim.client:Shims._requested",
        "workers.runner:follow_child",
        "workers.runner:read_exit",
        "workers.run.directory:RunDir.report",
        "workers.run.directory:RunDir.settle",
        "workers.steps.judge:Judge.judge",
        "workers.run.directory:RunDir.renew",
        "workers.run.directory:RunDir.keep_meters",
    ],
)
def test_a_moment_of_trouble_at_any_step_ends_no_job(site: Site, tmp_path: Path, step: str) -> None:
    """One failed step of a run's handling does not end the job.

    Such a run used to be forgotten, and ran a second time although its exit code was on the disk.
    """
    site.start_recorder()
    effects = tmp_path / "effects"
    heartbeat = "until [ -e $GPUQUEUE_RUN_DIR/meters ]; do sleep 0.05; done"
    job = site.queue.requests.submit(
        make_spec(argv=("sh", "-c", f"echo run >> {effects}; {heartbeat}; exit 3"), mem_bytes=MIB)
    )

    site.spawn_command([sys.executable, str(DIE_AT), "fail", step, "run", "--device", "0", "--plain"])

    record = site.until_recorded(job.id)
    assert "exit 3" == str(record.runs[-1].ending)
    assert ["run"] == effects.read_text().split()
    until(lambda: "the moment of trouble" in site.log(), what="the moment of trouble")
    assert 20 > len(site.client.jobs.events(job.id)), "given back and claimed again, over and over"
