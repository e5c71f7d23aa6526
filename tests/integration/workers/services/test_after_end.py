"""Tests of the commands that a worker runs at the end of a job.

Such a command runs on the job's host, with the job's rights, and within a time limit.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
from bounded import until
from site_of_one import Site

from gpuqueue.model.job import JobState
from gpuqueue.model.notification import Outcome

WITH_CONSTANT = Path(__file__).parents[3] / "support" / "with_constant.py"


def submit(site: Site, *words: str, command: tuple[str, ...] = ("true",)) -> int:
    """Submit a job with the command line and return its id."""
    return int(site.cli("submit", "--mem", "64M", *words, "--", *command).stdout)


def finished(path: Path) -> str | None:
    """Return the content of the file once its last word is written."""
    text = path.read_text() if path.exists() else ""
    return text if text.rstrip().endswith("]") else None


@pytest.mark.full
def test_a_command_finds_out_what_became_of_the_job(site: Site, tmp_path: Path) -> None:
    """The command runs in the job's directory and environment and gets the job's ending.

    Its output is appended to the job's log.
    """
    site.start_recorder()
    site.start_worker()
    words = (
        'command:printf "%s " "$GPUQUEUE_JOB_ID" "$GPUQUEUE_JOB_NAME" "$GPUQUEUE_JOB_STATE" "$GPUQUEUE_ENDING" '
        '"$GPUQUEUE_EXIT_CODE" "$MINE" "$(tail -n 1 "$GPUQUEUE_LOG")" "[$CUDA_VISIBLE_DEVICES]" > told; pwd; id -u'
    )

    job = submit(
        site, "--on-end", words, "--on-fail", "command:touch failed", "-C", str(tmp_path),
        "-e", "MINE=my own", "-n", "x",
        command=("sh", "-c", "echo last words; exit 3"),
    )  # fmt: skip

    until((tmp_path / "failed").exists, what=f"the second command\n{site.log()}")
    reported = until(lambda: finished(tmp_path / "told"), what=f"the first command\n{site.log()}")
    assert f"{job} x failed exited 3 my own gpuqueue: at the end: " in reported
    assert reported.rstrip().endswith("[]")
    site.until_recorded(job)
    wanted = {"last words", str(tmp_path), str(os.getuid())}  # the commands run at once, their lines in any order
    until(lambda: wanted <= set(site.cli("logs", str(job)).stdout.splitlines()), what="what the commands say")
    log = site.cli("logs", str(job)).stdout
    assert log.startswith("last words\ngpuqueue: at the end: ")
    assert f"on end     {words}" in site.cli("show", str(job)).stdout


@pytest.mark.full
def test_what_became_of_a_command_stands_with_the_job(site: Site) -> None:
    """The outcome of each command is recorded with the job.

    A failed command used to be visible only in the worker's log.
    """
    site.start_recorder()
    site.start_worker()

    job = submit(site, "--on-end", "command:true", "--on-end", "command:exit 7", "--on-fail", "command:echo never")

    ended_at = site.until_recorded(job).job.ended_at
    reported = until(
        lambda: len(found := site.client.jobs.show(job).reported) == 3 and found, what=f"all three\n{site.log()}"
    )
    assert [Outcome.SENT, Outcome.GIVEN_UP, Outcome.NOT_NEEDED] == [each.outcome for each in reported]
    shown = site.cli("show", str(job)).stdout
    assert re.search(r"on end     command:true: ran, \S+", shown), shown
    assert re.search(r"on end     command:exit 7: failed with 7, \S+", shown), shown
    assert "on fail    command:echo never: not needed" in shown
    record = site.client.jobs.show(job)
    assert (JobState.SUCCEEDED, ended_at) == (record.job.state, record.job.ended_at), "it moves nothing"
    assert "given up" not in site.cli("doctor", check=False).stdout, "it is its owner's affair"


@pytest.mark.full
def test_a_success_runs_only_what_is_for_any_end(site: Site, tmp_path: Path) -> None:
    """A job that succeeds runs its `--on-end` commands and no `--on-fail` command.

    No command runs after an attempt that is retried, because the job has not ended.
    """
    site.start_recorder()
    site.start_worker()
    count = "command:echo $GPUQUEUE_ATTEMPT $GPUQUEUE_JOB_STATE >> told"

    job = submit(
        site, "--on-fail", "command:touch failed", "--on-end", count, "--retries", "1", "-C", str(tmp_path),
        command=("sh", "-c", "test $GPUQUEUE_ATTEMPT = 2"),
    )  # fmt: skip

    site.cli("wait", str(job), "--timeout", "60s")
    until((tmp_path / "told").exists, what=f"the command\n{site.log()}")
    assert "2 succeeded\n" == (tmp_path / "told").read_text()
    assert not (tmp_path / "failed").exists()


@pytest.mark.full
def test_a_command_that_never_ends_is_ended_and_holds_up_nothing(site: Site, tmp_path: Path) -> None:
    """A command that does not end is ended at its time limit, with all its processes.

    That includes processes that left the session. Other jobs run and end meanwhile.
    """
    site.start_recorder()
    constants = ("workers.services.after_end:LIMIT_S=1", "workers.services.after_end:GRACE_S=1")
    site.spawn_command([sys.executable, str(WITH_CONSTANT), *constants, "run", "--device", "0", "--plain"])
    hangs = "command:echo $$ >> pids; (setsid sleep 600 & echo $! >> pids; wait)"

    jobs = [submit(site, "--on-end", hangs, "-C", str(tmp_path)) for _ in range(3)]
    site.cli("wait", *map(str, jobs), str(submit(site)), "--timeout", "60s")

    def pids() -> list[int]:
        found = [int(line) for line in (tmp_path / "pids").read_text().split()] if (tmp_path / "pids").exists() else []
        return found if len(found) == 6 else []

    for pid in until(pids, what=f"six processes\n{site.log()}"):
        until(lambda pid=pid: not Path(f"/proc/{pid}").exists(), what=f"the end of {pid}")
    assert f"job {jobs[0]} run" in site.log()
    until(lambda: 3 == site.log().count("its command at the end took longer than 1 s"), what="three lines")
    assert all("succeeded" == site.client.jobs.get(job).state.value for job in jobs)


@pytest.mark.full
@pytest.mark.parametrize("spoil", ["rm log; mkfifo log", "rm log; ln -s ../../../victim log", "rm -f log"])
def test_what_a_job_puts_in_the_place_of_its_log_is_left_alone(site: Site, tmp_path: Path, spoil: str) -> None:
    """A command's output is written to the job's log only, never to what the job put in its place."""
    site.start_recorder()
    site.start_worker()
    victim = site.settings.runs_dir.parent / "victim"
    victim.parent.mkdir(exist_ok=True)
    victim.write_text("mine\n")

    submit(
        site, "--on-end", "command:echo x; touch done", "-C", str(tmp_path),
        command=("sh", "-c", f'cd "$GPUQUEUE_RUN_DIR" && {spoil}'),
    )  # fmt: skip

    until((tmp_path / "done").exists, what=f"the command\n{site.log()}")
    assert "mine\n" == victim.read_text()
