"""``gpuqueue exec``: a second command in a running job, with real processes on this machine."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import psutil
import pytest
from bounded import until
from site_of_one import BIN, Site
from terminal import Terminal

from gpuqueue.model.job import JobState

GPUQUEUE = str(BIN / "gpuqueue")
WAITS = ("sh", "-c", "while :; do sleep 0.1; done")


@pytest.fixture
def working(site: Site) -> Site:
    """Return a site with a recorder and a worker."""
    site.start_recorder()
    site.start_worker()
    return site


def started(site: Site, *words: str) -> str:
    """Submit a job that waits, and return its id once it runs."""
    job = site.cli("submit", "--mem", "1M", *words, "--", *WAITS).stdout.strip()
    until(lambda: site.client.jobs.get(job).state is JobState.RUNNING, what="the job to run")
    return job


def begun(site: Site, job: str, *words: str) -> subprocess.Popen[bytes]:
    """Start ``gpuqueue exec`` with pipes."""
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [GPUQUEUE, "exec", job, "--", *words], env=site.environ, stdin=pipe, stdout=pipe, stderr=pipe
    )


def again_until(terminal: Terminal, keys: str, text: str) -> None:
    """Type *keys* again and again until *text* is on the screen."""

    def is_there() -> bool:
        terminal.press(keys)
        return text in terminal.picture()

    until(is_there, timeout_s=60, what=f"{text!r} on the screen")


def is_alive(pid: int) -> bool:
    """Return whether the process *pid* runs."""
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def test_a_command_has_the_environment_the_directory_and_the_pipes_of_its_job(working: Site, tmp_path: Path) -> None:
    """Its exit code is that of the caller, and its output and errors stay apart."""
    job = started(working, "--cwd", str(tmp_path), "--env", "COLOUR=blue")
    script = 'pwd; echo "$GPUQUEUE_JOB_ID $COLOUR $CUDA_VISIBLE_DEVICES $GPUQUEUE_EXEC"; cat; echo wrong >&2; exit 7'
    done = working.cli("exec", job, "--", "sh", "-c", script, stdin="typed\n", check=False)

    device = working.client.devices.list()[0].device.uuid
    assert (7, "wrong\n") == (done.returncode, done.stderr)
    assert [str(tmp_path), f"{job} blue {device} 1", "typed"] == done.stdout.splitlines()
    assert 0 == working.cli("exec", job, "--", "true").returncode
    assert 128 + signal.SIGKILL == working.cli("exec", job, "--", "sh", "-c", "kill -9 $$", check=False).returncode


def test_much_output_and_much_input_arrive_whole(working: Site) -> None:
    job = started(working)
    text = "".join(f"{number:07d}\n" for number in range(400_000))
    assert text == working.cli("exec", job, "--", "cat", stdin=text).stdout
    assert "5\n" == working.cli("exec", job, "--", "sh", "-c", "head -c 5 >/dev/null; echo 5", stdin=text).stdout


def test_a_shell_has_a_terminal_of_the_right_size(working: Site) -> None:
    job = started(working)
    environ = {**working.environ, "SHELL": "/bin/sh", "PS1": "inside> "}
    with Terminal([GPUQUEUE, "exec", job, "--", "sh"], environ, columns=91) as terminal:
        terminal.press("tty; stty size\r")
        terminal.shows("/dev/pts/")
        terminal.shows("24 91")
        terminal.resize(columns=70, rows=20)
        again_until(terminal, "stty size\r", "20 70")
        terminal.press("echo $((20+1)); sleep 100\r")
        terminal.shows("21")
        terminal.press("\x03")  # Ctrl-C ends the command in the shell, not the shell. It drops what was typed ahead
        again_until(terminal, "echo $((40+2))\r", "42")
        terminal.press("exit 5\r")
        assert 5 == terminal.ended()


def test_the_escape_leaves_the_command_which_ends(working: Site) -> None:
    job = started(working)
    with Terminal([GPUQUEUE, "exec", job], working.environ) as terminal:
        terminal.press("echo pid=$$.\r")
        terminal.shows("pid=")
        terminal.press("\r~.")
        assert 7 == terminal.ended()
        terminal.shows("it was ended")
    assert JobState.RUNNING is working.client.jobs.get(job).state


@pytest.mark.parametrize("how", ["ends", "cancelled"])
def test_nothing_of_a_command_outlives_its_job(working: Site, tmp_path: Path, how: str) -> None:
    """A daemon that has left the command ends too, and neither is a leftover of the job."""
    os.mkfifo(tmp_path / "go")
    words = ("--cwd", str(tmp_path), "--", "sh", "-c", "read line < go")
    job = working.cli("submit", "--mem", "1M", *words).stdout.strip()
    until(lambda: working.client.jobs.get(job).state is JobState.RUNNING, what="the job to run")
    script = "(setsid sleep 300 & echo $!); trap '' TERM HUP; echo $$; while :; do sleep 0.1; done"
    command = begun(working, job, "sh", "-c", script)
    assert command.stdout is not None
    pids = [int(command.stdout.readline()) for _ in range(2)]
    if how == "ends":
        (tmp_path / "go").write_text("on\n")
    else:
        working.cli("cancel", job)
    _, errors = command.communicate(timeout=60)

    assert f"gpuqueue: job {job} has ended, and the command in it with it\n" == errors.decode()
    assert 128 + signal.SIGKILL == command.returncode
    assert [] == [pid for pid in pids if is_alive(pid)]
    record = working.client.jobs.wait(job)
    assert {"ends": JobState.SUCCEEDED, "cancelled": JobState.CANCELLED}[how] is record.job.state
    assert () == record.runs[-1].notes


def test_the_death_of_the_caller_ends_the_command_and_not_the_job(working: Site) -> None:
    job = started(working)
    command = begun(working, job, "sh", "-c", "(setsid sleep 300 & echo $!); echo $$; exec sleep 300")
    assert command.stdout is not None
    pids = [int(command.stdout.readline()) for _ in range(2)]
    command.kill()
    command.communicate(timeout=60)
    until(lambda: not any(map(is_alive, pids)), what="the command to end")
    assert JobState.RUNNING is working.client.jobs.get(job).state
    assert 0 == working.cli("exec", job, "--", "true").returncode


def test_a_command_goes_on_without_the_worker_and_begins_below_the_next_one(site: Site) -> None:
    site.start_recorder()
    worker = site.start_worker()
    job = started(site)
    command = begun(site, job, "sh", "-c", "echo begun; exec cat")
    assert command.stdout is not None
    assert b"begun\n" == command.stdout.readline()
    worker.kill()
    worker.wait(60)
    site.start_worker()
    assert (b"still here\n", b"") == command.communicate(b"still here\n", timeout=60)
    assert 3 == site.cli("exec", job, "--", "sh", "-c", "exit 3", check=False).returncode


def test_a_member_of_an_array_takes_a_command_and_its_array_does_not(working: Site) -> None:
    array = working.cli("submit", "--mem", "1M", "--array", "0-1", "--", *WAITS).stdout.strip()
    until(lambda: working.client.jobs.get(f"{array}_1").state is JobState.RUNNING, what="the member to run")
    done = working.cli("exec", f"{array}_1", "--", "sh", "-c", "echo $GPUQUEUE_ARRAY_INDEX")
    assert "1\n" == done.stdout
    done = working.cli("exec", array, "--", "true", check=False)
    words = f"gpuqueue: array {array} is no process: name a member, such as {array}_0\n"
    assert (5, words) == (done.returncode, done.stderr)


def test_a_job_that_does_not_run_takes_no_command(site: Site) -> None:
    site.start_recorder()
    job = site.cli("submit", "--mem", "1M", "--", "true").stdout.strip()
    done = site.cli("exec", job, "--", "true", check=False)
    assert (5, f"gpuqueue: job {job} (queued) does not run: a command needs a running job\n") == (
        done.returncode,
        done.stderr,
    )
    assert 3 == site.cli("exec", "999", "--", "true", check=False).returncode
    site.cli("cancel", job)
    done = site.cli("exec", job, "--", "true", check=False)
    assert (5, f"gpuqueue: job {job} (cancelled) does not run: a command needs a running job\n") == (
        done.returncode,
        done.stderr,
    )


def test_a_program_that_is_missing_has_the_exit_code_of_a_shell(working: Site, tmp_path: Path) -> None:
    job = started(working)
    done = working.cli("exec", job, "--", "no-such-program", check=False)
    assert (127, 1, True) == (done.returncode, done.stderr.count("\n"), "no-such-program" in done.stderr)
    (tmp_path / "closed").write_text("")
    assert 126 == working.cli("exec", job, "--", str(tmp_path / "closed"), check=False).returncode


def test_a_removed_working_directory_is_said_and_is_no_missing_program(working: Site, tmp_path: Path) -> None:
    place = tmp_path / "gone"
    place.mkdir()
    job = started(working, "--cwd", str(place))
    assert f"{place}\n" == working.cli("exec", job, "--", "pwd").stdout  # the job has begun there
    place.rmdir()
    done = working.cli("exec", job, "--", "true", check=False)
    words = f"gpuqueue: cannot enter the working directory {place}: No such file or directory\n"
    assert (5, words) == (done.returncode, done.stderr)
