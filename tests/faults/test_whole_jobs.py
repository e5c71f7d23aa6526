"""Whole jobs on a real Slurm with two nodes: what people see of them, and what survives a fault, of ours and of Slurm.

``gpuqueue up --devices slurm`` hands the jobs over. Each test asks Slurm how many jobs it has: never two of one.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from bounded import until
from own_home import Home
from two_node_slurm import RANGE, TwoNodeSlurm, running_two_nodes
from whole_site import Site, last_run

from gpuqueue.engines.slurm import Slurm
from gpuqueue.queue.jobqueue import JobQueue
from workers.whole.prepare import site_of
from workers.whole.sweep import Sweep

pytestmark = [pytest.mark.full, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def slurm() -> Iterator[TwoNodeSlurm]:
    """Return a Slurm with two nodes of four GPUs each. The tests of the module share it."""
    place = Path(tempfile.mkdtemp(prefix="gq-whole-"))
    try:
        with running_two_nodes(place, kill_wait_s=5, slurmd_timeout_s=10) as made:
            yield made
    finally:
        shutil.rmtree(place, ignore_errors=True)


@pytest.fixture(scope="module")
def shared(slurm: TwoNodeSlurm) -> Iterator[Site]:
    """Return a machine that hands jobs to Slurm, for all tests of the module that leave it as it was."""
    made = Site(Home(Path(tempfile.mkdtemp(prefix="gpuqueue-home-"))), slurm)
    made.up()
    yield made
    made.home.output_of("down", "--cancel-jobs")
    shutil.rmtree(made.home.state, ignore_errors=True)


@pytest.fixture
def site(shared: Site) -> Iterator[Site]:
    """Return a machine that hands jobs to Slurm, which has none afterwards."""
    yield shared
    shared.slurm.command("scancel", "--me")


@pytest.fixture
def own(home: Home, slurm: TwoNodeSlurm) -> Iterator[Site]:
    """Return a machine of this test alone, on which nothing runs yet."""
    yield Site(home, slurm)
    slurm.command("scancel", "--me")


def test_a_job_has_its_log_its_exit_code_and_its_row(site: Site) -> None:
    """The history has the ending, the time on the node, and a note with Slurm's job and node."""
    job = site.submit("echo out of $SLURMD_NODENAME, job $GPUQUEUE_JOB_ID; echo err >&2; exit 3", "--gpus", "2")
    record = site.ended(job)
    run, log = last_run(record), site.home("logs", job)

    assert ("failed", 3) == (record["job"]["state"], run["ending"]["exit_code"])
    assert f"out of node1, job {job}\nerr\n" in log
    (at_slurm,) = site.at_slurm(job)
    note = next(each for each in run["notes"] if each["kind"] == "at_engine")
    assert [f"job {at_slurm[0]}", "node1"] == note["items"][:2]
    assert run["devices"][0]["kind"] == "slurm"
    assert f"Slurm ran it as job {at_slurm[0]} on node1, from " in site.home("show", job)
    assert "exit 3" in site.home("history")
    assert "" == site.slurm.command("squeue", "--noheader", "--me")


def test_the_environment_and_separate_errors_arrive(site: Site) -> None:
    """Also values with quotes and new lines; and the directory is that of the submit."""
    value = 'it\'s "so"\n$HOME'
    words = ("--env", f"ODD={value}", "--separate-stderr", "--cwd", str(site.home.state))
    job = site.submit('printf "<%s>" "$ODD"; pwd; echo only here >&2', *words)
    site.ended(job)

    assert f"<{value}>{site.home.state}\n" in site.home("logs", job)
    assert "only here\n" == site.home("logs", job, "--stderr")


def test_the_command_is_started_once_on_each_node(site: Site) -> None:
    """Each start has its GPUs, and what torchrun and torch need to meet. The highest exit code counts."""
    script = 'echo "$SLURM_NODEID $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES $PET_NNODES $PET_NPROC_PER_NODE $MASTER_ADDR"'
    job = site.submit(f"{script}; exit $((4 + SLURM_NODEID))", "--nodes", "2", "--gpus", "4")
    record = site.ended(job)
    log = site.home("logs", job)

    assert "0 node1 0,1 2 2 node1\n" in log
    assert "1 node2 0,1 2 2 node1\n" in log
    assert last_run(record)["ending"]["exit_code"] in {4, 5}
    assert RANGE in str(last_run(record)["notes"])


def test_code_travels(site: Site, tmp_path: Path) -> None:
    """The job runs in its own copy of the code, and what it makes is fetched."""
    (tmp_path / "train.py").write_text("import os\nprint(os.getcwd())\nopen('made.txt', 'w').write('made')\n")
    words = (
        "submit",
        "--on",
        "slurm",
        "--cwd",
        str(tmp_path),
        "--snapshot",
        str(tmp_path),
        "--",
        "python3",
        "train.py",
    )
    job = site.home.output_of(*words).strip()
    (tmp_path / "train.py").write_text("raise SystemExit('changed after the submit')\n")

    assert "succeeded" == site.ended(job)["job"]["state"]
    assert f"{site.home.state}/runs/{job}/" in site.home("logs", job)
    site.home("fetch", job, "--to", str(tmp_path / "back"))
    assert ["made"] == [path.read_text() for path in (tmp_path / "back").rglob("made.txt")]


def test_a_cancelled_job_is_cancelled_at_slurm(site: Site) -> None:
    """Its processes get SIGTERM first."""
    job = site.submit("trap 'echo told; exit 9' TERM; echo begun; while :; do sleep 0.1; done")
    site.until_in_log(job, "begun")
    site.home("cancel", job)
    record = site.ended(job)

    assert ("cancelled", "cancelled") == (record["job"]["state"], last_run(record)["ending"]["kind"])
    assert "told" in site.home("logs", job)
    assert ["CANCELLED"] == [state for _, state in site.at_slurm(job)]


def test_a_job_that_waits_in_slurm_is_cancelled(site: Site) -> None:
    """It never ran, so its note names no node."""
    job = site.submit("echo never", "--gpus", "3", "--nodes", "3")
    site.until_in_log(job, "pending (Partition")
    site.home("cancel", job)

    assert "cancelled" == site.ended(job)["job"]["state"]
    assert ["CANCELLED"] == [state for _, state in site.at_slurm(job)]


def test_the_time_limit_is_slurms(site: Site) -> None:
    """The signal comes before it, and the ending is a time limit."""
    script = "trap 'echo warned' USR1; echo begun; while :; do sleep 0.1; done"
    job = site.submit(script, "--time", "60s", "--signal", "USR1@30")
    record = site.ended(job, timeout_s=240)

    assert "warned" in site.home("logs", job)
    assert "timed_out" == last_run(record)["ending"]["kind"]
    assert ["TIMEOUT"] == [state for _, state in site.at_slurm(job)]


def test_a_job_cancelled_by_slurms_command_is_cancelled(site: Site) -> None:
    """As somebody did it who has the right to at Slurm."""
    job = site.submit("echo begun; sleep 600")
    site.until_in_log(job, "begun")
    ((ref, _),) = site.at_slurm(job)
    site.slurm.command("scancel", ref)

    assert "cancelled" == last_run(site.ended(job))["ending"]["kind"]


def test_a_request_that_slurm_refuses_fails_the_job(own: Site) -> None:
    """Slurm's own words are the reason."""
    own.home.environ["GPUQUEUE_BURST"] = json.dumps({"slurm": {"options": "--partition=nowhere"}})
    own.up()
    record = own.ended(own.submit("true"))

    assert ("failed", "refused") == (record["job"]["state"], last_run(record)["ending"]["kind"])
    assert "invalid partition" in last_run(record)["ending"]["detail"].lower()


# ---- faults of ours ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [(), ("--no-requeue",)])
@pytest.mark.parametrize("with_shim", [False, True])
def test_a_killed_follower_makes_no_second_job(site: Site, options: tuple[str, ...], *, with_shim: bool) -> None:
    """The next attempt finds the job by its key, and has its whole log and its exit code."""
    job = site.submit("echo begun; sleep 10; exit 7", *options)
    site.until_in_log(job, "begun")
    follower = psutil.Process(site.follower(job))
    for process in (follower.parent(), follower) if with_shim else (follower,):
        assert process is not None
        process.kill()
    record = site.ended(job)

    assert ["lost", "exited"] == [run["ending"]["kind"] for run in record["runs"]]
    assert 7 == last_run(record)["ending"]["exit_code"]
    assert "begun\n" in site.home("logs", job)
    assert 1 == len(site.at_slurm(job))


@pytest.mark.parametrize("options", [(), ("--no-requeue",)])
def test_a_follower_killed_after_the_end_loses_no_result(site: Site, options: tuple[str, ...], tmp_path: Path) -> None:
    """The job ended while nobody followed it: the next attempt takes its result, and does not run it again."""
    marks = tmp_path / "marks"
    job = site.submit(f"echo begun; echo x >> {marks}; sleep 3; exit 5", *options)
    site.until_in_log(job, "begun")
    os.kill(site.follower(job), signal.SIGSTOP)
    until(lambda: site.at_slurm(job)[0][1] == "FAILED", what="the end at Slurm")
    os.kill(site.follower(job), signal.SIGKILL)
    record = site.ended(job)

    assert 5 == last_run(record)["ending"]["exit_code"]
    assert (1, "x\n") == (len(site.at_slurm(job)), marks.read_text())


def test_everything_killed_at_once_makes_no_second_job(own: Site) -> None:
    """Worker, shim, follower and store are gone, as after a reboot of this host. The job at Slurm goes on."""
    own.up()
    job = own.submit("echo begun; sleep 25; exit 6", "--retries", "1")
    own.until_in_log(job, "begun")
    mark = f"GPUQUEUE_STATE_DIR={own.home.state}".encode()

    def gone() -> bool:
        left = []
        for entry in Path("/proc").iterdir():
            with suppress(OSError):
                of_job = b"SLURM_JOB_ID=" in (entry / "environ").read_bytes() if entry.name.isdigit() else True
                ours = not of_job and mark in (entry / "environ").read_bytes().split(b"\0")
                is_follower = not of_job and b"workers.whole.follower" in (entry / "cmdline").read_bytes()
                runs = f"{own.home.state}/runs/".encode()
                if ours or (is_follower and runs in (entry / "cmdline").read_bytes()):
                    os.kill(int(entry.name), signal.SIGKILL)
                    left.append(entry.name)
        return not left

    until(gone, what="all are gone")
    own.up()
    record = own.ended(job, timeout_s=200)

    # The retry after the failure is a second job of its own, which is allowed only after the first has ended.
    assert 6 == last_run(record)["ending"]["exit_code"]
    first, *more = own.at_slurm(job)[::-1]
    assert "FAILED" == first[1]
    assert len(more) <= 1


def test_a_worker_killed_and_restarted_follows_on(own: Site) -> None:
    """The shim and the follower outlive their worker; nothing is lost."""
    own.up()
    job = own.submit("echo begun; sleep 8; exit 4")
    own.until_in_log(job, "begun")
    own.home("down", "--leave-jobs")
    own.up()
    record = own.ended(job)

    assert [4] == [run["ending"]["exit_code"] for run in record["runs"]]
    assert 1 == len(own.at_slurm(job))


def test_what_nobody_waits_for_is_ended(site: Site) -> None:
    """Follower and shim were killed before they could cancel the job at Slurm: the sweep does it."""
    job = site.submit("echo begun; sleep 600")
    site.until_in_log(job, "begun")
    follower = psutil.Process(site.follower(job))
    processes = [process for process in (follower.parent(), follower) if process is not None]
    for process in processes:
        process.suspend()
    site.home("cancel", job)
    for process in processes:
        process.kill()
    assert "cancelled" == site.ended(job)["job"]["state"]
    other = site.slurm.command("sbatch", "--parsable", "--job-name=gpuqueue-other", "--wrap", "sleep 600")
    os.environ["SLURM_CONF"] = site.slurm.environ["SLURM_CONF"]
    queue = JobQueue.of(site.settings)
    try:
        ended = Sweep(Slurm(), queue, site_of(site.settings)).sweep()
    finally:
        queue.close()
        del os.environ["SLURM_CONF"]

    assert 1 == ended
    until(lambda: ["CANCELLED"] == [state for _, state in site.at_slurm(job)], what="the end at Slurm")
    assert other in site.slurm.command("squeue", "--noheader", "--format=%i", "--states=running,pending").split()


# ---- faults of Slurm ---------------------------------------------------------------------------------------------


def test_an_error_after_accepting_makes_no_second_job(own: Site) -> None:
    """The command says that it timed out, and Slurm has the job."""
    wrapper = own.home.state / "wrapper"
    lie = 'sbatch) "$@" >/dev/null; echo "sbatch: error: Batch job submission failed: Socket timed out" >&2; exit 1;;'
    wrapper.write_text(f'#!/bin/sh\ncase "$1" in {lie} *) exec "$@";; esac\n')
    wrapper.chmod(0o755)
    own.home.environ["GPUQUEUE_BURST"] = json.dumps({"slurm": {"wrapper": str(wrapper)}})
    own.up()
    record = own.ended(own.submit("echo hello; exit 2"))

    assert 2 == last_run(record)["ending"]["exit_code"]
    assert 1 == len(own.at_slurm(str(record["job"]["id"])))


def test_a_controller_that_restarts_in_the_middle_ends_nothing(site: Site) -> None:
    """The job ends while slurmctld is dead, and its result arrives."""
    job = site.submit("echo begun; sleep 12; exit 8")
    site.until_in_log(job, "begun")
    ((ref, _),) = site.at_slurm(job)
    site.slurm.command("scontrol", "update", f"JobId={ref}", "Comment=saved")
    until(lambda: b"saved" in (site.slurm.place / "state" / "job_state").read_bytes(), what="the saved state")
    site.slurm.kill_controller()
    until(lambda: list(site.home.state.glob(f"runs/{job}/*/*.exit")), what="the exit file")
    site.slurm.start_controller()
    record = site.ended(job)

    assert [8] == [run["ending"]["exit_code"] for run in record["runs"]]
    assert 1 == len(site.at_slurm(job))


def test_a_job_that_slurm_requeues_runs_again_under_its_id(site: Site) -> None:
    """It ended for a moment, and is followed on."""
    marks = site.home.state / "marks"
    job = site.submit(f"echo x >> {marks}; echo begun; if [ $(wc -l < {marks}) = 1 ]; then sleep 600; fi; exit 3")
    site.until_in_log(job, "begun")
    ((ref, _),) = site.at_slurm(job)
    site.slurm.command("scontrol", "requeue", ref)
    until(lambda: site.at_slurm(job)[0][1] == "PENDING", what="the requeue")
    site.slurm.command("scontrol", "update", f"JobId={ref}", "StartTime=now")
    record = site.ended(job)

    assert [3] == [run["ending"]["exit_code"] for run in record["runs"]]
    assert [ref] == [each for each, _ in site.at_slurm(job)]


def test_a_node_without_network_is_not_the_end_of_its_job(site: Site) -> None:
    """Slurm gives the node up after a while and says so. Until then the job is followed."""
    job = site.submit("echo begun on $SLURMD_NODENAME; sleep 600", "--no-requeue")
    site.until_in_log(job, "begun on node1")
    site.slurm.kill_node("node1")
    try:
        assert "running" == site.record(job)["job"]["state"]
        record = site.ended(job, timeout_s=200)
    finally:
        site.slurm.start_node("node1")

    assert ["NODE_FAIL"] == [state for _, state in site.at_slurm(job)]
    assert "failed" == record["job"]["state"]
    assert "node fail" in last_run(record)["ending"]["detail"]
