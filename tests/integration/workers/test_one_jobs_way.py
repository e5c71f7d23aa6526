from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from bounded import until
from site_of_one import Site

from gpuqueue import Client
from gpuqueue.errors import JobNotFound, Refused
from gpuqueue.model.device import PeakSource
from gpuqueue.model.job import JobState
from gpuqueue.model.run import EndingKind
from gpuqueue.text.units import MIB

SUPPORT = Path(__file__).parents[2] / "support"
#: The first lines of a job that waits until it was measured.
METERED = f"import os, sys; sys.path.insert(0, {str(SUPPORT)!r}); from metered import until_seen"
#: Allocates 200 MiB, prints its device, waits until the allocation was measured, and exits with 0 half a second later.
SCRIPT = """
import time
taken = bytearray(200 * 2**20)
print("on", os.environ["CUDA_VISIBLE_DEVICES"], "as job", os.environ["GPUQUEUE_JOB_ID"])
print("args", sys.argv[1:], file=sys.stderr)
until_seen(peak_bytes=200 * 2**20, samples=2)
time.sleep(0.5)
"""


@pytest.fixture
def either_history(store_url: str, tmp_path: Path, empty_url: str) -> Iterator[Site]:
    """Return a site whose history is in SQLite, and then one whose history is in PostgreSQL."""
    made = Site(tmp_path / "state", store_url, GPUQUEUE_DATABASE_URL=empty_url)
    yield made
    made.stop()


def test_one_job_walks_down_the_whole_corridor(either_history: Site) -> None:
    """One job passes through submit, queue, claim, run, finish, record and query.

    Each step is the real one, and all of them report the same facts.
    """
    site = either_history
    script = site.settings.state_dir / "train.py"
    script.write_text(METERED + SCRIPT)
    site.start_recorder()
    site.start_worker()

    submitted = site.cli(
        "submit", str(script), "--mem", "1G", "--name", "walk", "--python", sys.executable, "--", "--lr", "1e-3"
    )
    job_id = int(submitted.stdout)
    assert "" == site.cli("wait", str(job_id)).stdout

    record = site.until_recorded(job_id)
    run = record.last_run
    assert run is not None
    assert (JobState.SUCCEEDED, "walk", 1) == (record.job.state, record.job.spec.name, record.job.attempt)
    assert "exit 0" == str(run.ending)
    (device,) = run.devices
    assert (f"sim-{site.settings.host}-0", 0, "Simulated 8G") == (device.uuid, device.index, device.name)
    assert (run.duration_s or 0) >= 0.5
    assert (
        record.job.submitted_at
        <= run.claimed_at
        <= (run.started_at or run.claimed_at)
        <= (run.ended_at or run.claimed_at)
    )
    assert PeakSource.SIMULATED is device.peak.source
    assert 200 * MIB <= (device.peak.bytes or 0) < 400 * MIB
    assert device.peak.samples >= 2

    log = site.cli("logs", str(job_id)).stdout
    assert f"on {device.uuid} as job {job_id}\nargs ['--lr', '1e-3']\n" == log

    (shown,) = json.loads(site.cli("history", "--json").stdout)
    assert (job_id, "succeeded", device.peak.bytes) == (
        shown["job"]["id"],
        shown["job"]["state"],
        shown["runs"][0]["peak_bytes"],
    )
    assert "walk" in site.cli("history").stdout
    assert "exit 0" in site.cli("show", str(job_id)).stdout
    story = [str(event.act) for event in site.client.jobs.events(job_id)]
    assert ["submit", "claim", "started", "finish"] == story

    until(lambda: site.queue.jobs.get(job_id) is None, what="the queue forgets what the history has")
    assert [] == site.queue.jobs.live()
    assert 0 == site.queue.devices.all()[0].allocated_bytes


@pytest.mark.full
def test_a_submit_takes_directory_and_environment_along(site: Site, tmp_path: os.PathLike[str]) -> None:
    """A job gets the directory and environment of its submitter, but not gpuqueue's own addresses."""
    site.start_recorder()
    site.start_worker()
    site.environ["WANDB_MODE"] = "offline"

    show = 'pwd; echo "$WANDB_MODE $EXTRA ${GPUQUEUE_REDIS_URL-unset}"'
    done = site.cli("run", "--mem", "1M", "--cwd", str(tmp_path), "--env", "EXTRA=a=b c", "--", "sh", "-c", show)

    assert f"{tmp_path}\noffline a=b c unset\n" == done.stdout


@pytest.mark.full
def test_run_shows_the_output_and_returns_the_exit_code(site: Site) -> None:
    """`run` shows the job's output and returns its exit code: 124 at the time limit, 128 + n for signal n."""
    site.start_recorder()
    site.start_worker()

    failed = site.cli("run", "--mem", "1M", "--", "sh", "-c", "echo out; exit 7", check=False)
    killed = site.cli("run", "--mem", "1M", "--", "sh", "-c", "kill -TERM $$", check=False)
    late = site.cli("run", "--mem", "1M", "--time", "0.3s", "--", "sleep", "60", check=False)

    assert ("out\n", 7, 143, 124) == (failed.stdout, failed.returncode, killed.returncode, late.returncode)


@pytest.mark.promise("P5")
def test_cancel_ends_the_tree_and_is_in_the_history(site: Site) -> None:
    """A running job and a waiting job can be cancelled; cancelling a job that has ended is an error."""
    site.start_recorder()
    site.start_worker()
    running = int(site.cli("submit", "--mem", "8G", "--", "sleep", "1000").stdout)
    waiting = int(site.cli("submit", "--mem", "8G", "--", "sleep", "1000").stdout)
    site.until_state(running, JobState.RUNNING)

    both = site.cli("cancel", str(waiting), str(running))

    assert f"job {waiting}: cancelled\njob {running}: cancelling\n" == both.stdout
    record = site.until_recorded(running)
    assert (JobState.CANCELLED, "cancelled") == (record.job.state, str(record.last_run.ending))  # type: ignore[union-attr]
    assert () == site.until_recorded(waiting).runs
    assert 3 == site.cli("cancel", "99", check=False).returncode
    done = int(site.cli("submit", "--mem", "1M", "--", "true").stdout)
    site.until_recorded(done)
    again = site.cli("cancel", str(done), check=False)
    assert (5, f"gpuqueue: job {done} has succeeded already: see gpuqueue show {done}\n") == (
        again.returncode,
        again.stderr,
    )


@pytest.mark.full
def test_logs_follow_until_the_end(site: Site) -> None:
    """`logs -f` shows the log from the first line to the last."""
    site.start_recorder()
    site.start_worker()
    job = int(site.cli("submit", "--mem", "1M", "--", "sh", "-c", "for i in 1 2 3; do echo $i; sleep 0.2; done").stdout)

    assert "1\n2\n3\n" == site.cli("logs", "-f", str(job)).stdout


@pytest.mark.full
def test_hold_and_release(site: Site) -> None:
    """A held job does not start until it is released."""
    site.start_recorder()
    job = int(site.cli("submit", "--mem", "1M", "--", "true").stdout)
    assert f"job {job}: held\n" == site.cli("hold", str(job)).stdout
    site.start_worker()
    assert "held" in site.cli("queue").stdout

    site.cli("release", str(job))

    assert JobState.SUCCEEDED is site.until_recorded(job).job.state


@pytest.mark.full
def test_a_job_on_two_devices_sees_both_as_0_and_1(store_url: str, tmp_path: Path) -> None:
    """A job on two devices gets both on one host; each device has its own lease and recorded peak."""
    site = Site(tmp_path / "state", store_url, GPUQUEUE_DEVICES="sim:2x1G")
    try:
        site.start_recorder()
        workers = [site.start_worker("0"), site.start_worker("1")]

        show = f'{METERED}; print(os.environ["CUDA_VISIBLE_DEVICES"]); until_seen(peak_bytes=1)'
        reported = site.cli("run", "--gpus", "2", "--mem", "700M", "--", sys.executable, "-c", show).stdout
        seen = reported.strip().split(",")

        run = site.until_recorded(1).last_run
        assert run is not None
        assert seen == [device.uuid for device in run.devices]
        assert {f"sim-{site.settings.host}-0", f"sim-{site.settings.host}-1"} == set(seen)
        assert [True, True] == [(device.peak.bytes or 0) > 0 for device in run.devices]
        assert run.peak_bytes == sum(device.peak.bytes or 0 for device in run.devices)
        assert all(worker.poll() is None for worker in workers)
    finally:
        site.stop()


def test_a_program_that_reads_numbers_gets_them_and_is_measured(store_url: str, tmp_path: Path) -> None:
    """A job gets the indexes of its devices by its own option, or by the setting of the host.

    Regression: a program that parsed CUDA_VISIBLE_DEVICES as numbers ended with a ValueError.
    """
    site = Site(tmp_path / "state", store_url, GPUQUEUE_DEVICES="sim:2x1G", GPUQUEUE_VISIBLE="index")
    parse = "print([int(word) for word in os.environ['CUDA_VISIBLE_DEVICES'].split(',')])"
    names = "print(os.environ['CUDA_VISIBLE_DEVICES'])"
    try:
        site.start_recorder()
        site.start_worker("1")

        def run(what: str, *options: str) -> str:
            line = f"{METERED}; data = bytearray(100 * 2**20); {what}; until_seen(peak_bytes=100 * 2**20)"
            return site.cli("run", "--mem", "700M", *options, "--", sys.executable, "-c", line).stdout

        assert "[1]\n" == run(parse, "--visible", "index")
        assert "[1]\n" == run(parse)
        assert f"sim-{site.settings.host}-1\n" == run(names, "--visible", "uuid")
    finally:
        site.stop()


@pytest.mark.promise("P2")
def test_an_external_process_on_the_card_is_counted_in_bytes(store_url: str, tmp_path: Path) -> None:
    """Memory of an external process is not allocated to jobs: a job waits until it is free."""
    site = Site(tmp_path / "state", store_url, GPUQUEUE_DEVICES="sim:1x600M")
    hold = "data = bytearray(300 * 2**20); print('holding', flush=True); input()"
    external = subprocess.Popen(
        [sys.executable, "-c", hold],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": f"sim-{site.settings.host}-0"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert external.stdout is not None
        assert b"holding\n" == external.stdout.readline()
        site.start_recorder()
        site.start_worker()
        small = int(site.cli("submit", "--mem", "200M", "--", "true").stdout)
        large = int(site.cli("submit", "--mem", "400M", "--", "true").stdout)

        assert JobState.SUCCEEDED is site.until_recorded(small).job.state
        assert JobState.QUEUED is site.client.jobs.get(large).state
        (device,) = site.client.devices.list()
        assert 300 * MIB <= device.external_bytes < 400 * MIB
        external.communicate(b"\n")
        assert JobState.SUCCEEDED is site.until_recorded(large).job.state
    finally:
        external.kill()
        external.communicate()
        site.stop()


@pytest.fixture
def two_devices(store_url: str, tmp_path: Path) -> Iterator[Site]:
    """Return a site with a worker on each of two simulated devices."""
    made = Site(tmp_path / "state", store_url, GPUQUEUE_DEVICES="sim:2x1G")
    made.start_recorder()
    made.start_worker("0")
    made.start_worker("1")
    yield made
    made.stop()


def on_the_other_card(site: Site, mem: str, hold_bytes: int, until_file: Path) -> int:
    """Submit a job that is given device 0, and uses device 1 until a file is there. Return its id."""
    hold = (
        f"import os, time; data = bytearray({hold_bytes})\n"
        f"while not os.path.exists({str(until_file)!r}): time.sleep(0.05)"
    )
    script = f'CUDA_VISIBLE_DEVICES=sim-{site.settings.host}-1 exec "$0" -c "$1"'
    command = ("sh", "-c", script, sys.executable, hold)
    return int(site.cli("submit", "--device", "0", "--mem", mem, "--mem-retries", "0", "--", *command).stdout)


@pytest.mark.promise("P12")
def test_a_job_on_a_card_that_it_was_not_given_is_named_and_measured(two_devices: Site, tmp_path: Path) -> None:
    """A script that sets CUDA_VISIBLE_DEVICES uses another card than those of its job.

    Regression: its memory was that of an external process, its peak was 0, and nobody was told.
    """
    site = two_devices
    job_id = on_the_other_card(site, "500M", 300 * MIB, tmp_path / "go")

    def named() -> bool:
        devices = site.client.devices.list()
        return any(external.job_id == job_id for device in devices for external in device.external_processes)

    until(named, what="the job on the other card")
    assert f"job {job_id}, which was given another device" in site.cli("gpus").stdout
    line = "it was given device 0 and uses device 1: inside a job devices count from 0"
    until(lambda: line in site.cli("logs", str(job_id)).stdout, what="the line in the log")
    (tmp_path / "go").touch()

    record = site.until_recorded(job_id)
    run = record.last_run
    assert run is not None
    assert 300 * MIB <= (run.peak_bytes or 0) < 500 * MIB
    assert [line] == [note.text[: len(line)] for note in record.notes]


@pytest.mark.promise("P3")
def test_a_cap_holds_on_a_card_that_the_job_was_not_given(two_devices: Site, tmp_path: Path) -> None:
    """Regression: a job could take any memory of a card that it was not given."""
    record = two_devices.until_recorded(on_the_other_card(two_devices, "100M", 700 * MIB, tmp_path / "go"))

    run = record.last_run
    assert run is not None
    assert run.ending is not None
    assert (EndingKind.OUT_OF_MEMORY, True) == (run.ending.kind, (run.peak_bytes or 0) > 356 * MIB)
    assert any("asked for 100M" in note.text for note in record.notes)


@pytest.mark.full
def test_a_python_program_gets_the_same_objects(site: Site) -> None:
    """`from gpuqueue import Client` gives a Python program submit, wait and history."""
    site.start_recorder()
    site.start_worker()
    with Client(site.settings) as client:
        job = client.jobs.submit(["sh", "-c", "exit 3"], mem="1M", name="api", time_limit="1m")
        record = client.jobs.wait(job.id, timeout_s=60)

        assert (JobState.FAILED, 3) == (record.job.state, record.last_run.ending.exit_code)  # type: ignore[union-attr]
        assert record.last_run is not None
        without_limits = replace(record, runs=(replace(record.last_run, limits={}),))  # which lists leave out
        assert [without_limits] == client.history.search(name="api", states=[JobState.FAILED])
        assert [] == client.jobs.list()
        with pytest.raises(Refused, match="has failed already"):
            client.jobs.cancel(job.id)
        with pytest.raises(JobNotFound):
            client.jobs.wait(99)


@pytest.mark.full
def test_a_job_gets_a_signal_before_its_time_limit(site: Site) -> None:
    """A job gets its warning signal before the time limit, and the history keeps the request."""
    site.start_recorder()
    site.start_worker()
    refused = site.cli("submit", "--mem", "1M", "--signal", "USR1@28", "--", "true", check=False)
    script = "trap 'echo saved; exit 9' USR1; sleep 60 & wait"
    asked = ("--mem", "1M", "--time", "60s", "--signal", "USR1@56.5s")

    record = site.until_recorded(int(site.cli("submit", *asked, "--", "sh", "-c", script).stdout))

    assert 2 == refused.returncode
    assert "SIGUSR1 is to come before the time limit, and there is none: give one (--time)" in refused.stderr
    assert (JobState.FAILED, "exit 9") == (record.job.state, str(record.last_run.ending))  # type: ignore[union-attr]
    shown = json.loads(site.cli("show", str(record.job.id), "--json").stdout)
    assert {"number": signal.SIGUSR1, "before_s": 56.5} == shown["job"]["spec"]["signal"]
    assert "at most 1:00, USR1@56.5 before that, priority normal" in site.cli("show", str(record.job.id)).stdout


def test_a_shell_that_does_not_catch_its_early_signal_is_not_retried_as_killed_from_outside(site: Site) -> None:
    """The ending names the option, and a submit warns of the shell. A retry is for what the queue did not do."""
    site.start_recorder()
    site.start_worker()
    asked = ("--mem", "1M", "--time", "60s", "--signal", "USR1@59", "--retries", "2")

    done = site.cli("submit", *asked, "--", "sh", "-c", "sleep 60; echo after")
    record = site.until_recorded(int(done.stdout))

    assert "warning: only the first process gets the SIGUSR1 of --signal: sh ends by it" in done.stderr
    assert (JobState.FAILED, 1) == (record.job.state, record.job.attempt)
    shown = site.cli("show", done.stdout.strip()).stdout
    assert "  ending     timed out: killed by SIGUSR1 of --signal, which it does not catch\n" in shown
    assert 124 == site.cli("wait", done.stdout.strip(), check=False).returncode


@pytest.mark.full
def test_a_running_job_gets_more_time_at_once(site: Site) -> None:
    """Its shim obeys the new limit although its worker sends no heartbeat meanwhile, and the history says so."""
    site.start_recorder()
    site.start_worker()
    waits = "until [ -e go ]; do sleep 0.1; done"  # longer than the first limit
    place = site.settings.state_dir
    job = int(site.cli("submit", "--mem", "1M", "--time", "3s", "--cwd", str(place), "--", "sh", "-c", waits).stdout)
    until(lambda: site.client.jobs.get(job).state is JobState.RUNNING, what="the start")

    done = site.cli("extend", str(job), "1h")

    assert f"job {job}: running, at most 1:00:03 now\n" == done.stdout
    since_s = time.monotonic()
    until(lambda: time.monotonic() > since_s + 3.5, what="the end of the first limit")
    (place / "go").touch()
    record = site.until_recorded(job)
    assert (JobState.SUCCEEDED, 3603.0) == (record.job.state, record.job.spec.time_limit_s)
    assert "at most 1:00:03 (1:00:00 of it added)" in site.cli("show", str(job)).stdout


SBATCH = """#!/bin/bash -l
#SBATCH --job-name=sweep --partition=gpu
#SBATCH --array=0-1          # two members
#SBATCH --time=0-0:10:00 -c 2
#SBATCH --mem=4G
#GPUQ --mem 1M
cd $SLURM_SUBMIT_DIR
srun -n 1 sh -c 'echo "$SLURM_ARRAY_TASK_ID of $SLURM_ARRAY_TASK_COUNT, $SLURM_CPUS_PER_TASK processors, $PWD"'
"""


def test_a_script_for_sbatch_runs_as_its_author_meant(site: Site, tmp_path: Path) -> None:
    """Its lines are options, host memory is no device memory, and its variables and srun work."""
    site.start_recorder()
    site.start_worker()
    (tmp_path / "job.sbatch").write_text(SBATCH)

    submitted = site.cli("submit", "job.sbatch", "--cwd", str(tmp_path))
    array = int(submitted.stdout)
    site.cli("wait", str(array))

    spec = site.client.jobs.get(array).spec
    assert (spec.name, spec.mem_bytes, spec.time_limit_s, spec.cpu_mem_bytes) == ("sweep", MIB, 600.0, None)
    assert spec.given_in["mem"] == "job.sbatch line 6"
    assert "--partition" in submitted.stderr
    assert "no host here limits processors and host memory: --cpus of job.sbatch line 4" in submitted.stderr
    for index in (0, 1):
        assert f"{index} of 2, 2 processors, {tmp_path}\n" == site.cli("logs", f"{array}_{index}").stdout
