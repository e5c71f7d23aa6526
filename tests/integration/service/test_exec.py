"""``gpuqueue exec`` through the service: on its own machine, and on another host by a real relay."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator

import psutil
import pytest
from bounded import until
from far_host import GPUQUEUE, FarHost
from service_fixtures import ServedSite, serving
from terminal import Terminal

from gpuqueue.errors import Refused
from gpuqueue.model.job import JobState


@pytest.fixture(scope="module")
def served() -> Iterator[ServedSite]:
    """Return a site of its own."""
    with serving() as site:
        yield site


@pytest.fixture(scope="module")
def far(served: ServedSite, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FarHost]:
    """Return the other host, whose worker is the only one."""
    made = FarHost(served, tmp_path_factory.mktemp("far"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def job(far: FarHost) -> str:
    """Return the id of a job that runs on the other host."""
    words = [GPUQUEUE, "submit", "--mem", "1M", "--env", "COLOUR=blue", "--", "sh", "-c", "while :; do sleep 0.1; done"]
    job_id = subprocess.run(words, env=far.environ, capture_output=True, check=True, text=True).stdout.strip()
    with far.served.client("unix") as client:
        until(lambda: client.jobs.get(job_id).state is JobState.RUNNING, what="the job to run")
    return job_id


def run(far: FarHost, *words: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Run ``gpuqueue exec`` as a user who knows only the service."""
    return subprocess.run(
        [GPUQUEUE, "exec", *words], env=far.environ, input=stdin, capture_output=True, check=False, timeout=100
    )


def test_a_command_runs_on_the_host_of_the_job(far: FarHost, job: str) -> None:
    done = run(
        far, job, "--", "sh", "-c", 'cat; echo "$GPUQUEUE_JOB_ID $COLOUR"; echo no >&2; exit 9', stdin=b"\xff typed\n"
    )
    assert (9, b"\xff typed\n" + f"{job} blue\n".encode(), b"no\n") == (done.returncode, done.stdout, done.stderr)
    done = run(far, job, "--", "no-such-program")
    assert (127, 1, True) == (done.returncode, done.stderr.count(b"\n"), b"no-such-program" in done.stderr)


def test_much_output_and_input_pass_through_the_service_whole(far: FarHost, job: str) -> None:
    text = b"".join(b"%07d\n" % number for number in range(200_000))
    done = run(far, job, "--", "cat", stdin=text)
    assert (0, b"") == (done.returncode, done.stderr)
    assert text == done.stdout


def test_a_terminal_passes_through_the_service(far: FarHost, job: str) -> None:
    with Terminal([GPUQUEUE, "exec", job, "--", "sh"], far.environ, columns=91) as terminal:
        terminal.press("stty size\r")
        terminal.shows("24 91")
        terminal.resize(columns=70, rows=24)
        until(lambda: terminal.press("stty size\r") or "24 70" in terminal.picture(), what="the new size")
        terminal.press("exit 5\r")
        assert 5 == terminal.ended()


def test_the_death_of_the_caller_ends_the_command_on_the_other_host(far: FarHost, job: str) -> None:
    words = [GPUQUEUE, "exec", job, "--", "sh", "-c", "echo $$; exec sleep 300"]
    with subprocess.Popen(words, env=far.environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as command:
        assert command.stdout is not None
        pid = int(command.stdout.readline())
        command.send_signal(signal.SIGKILL)
    until(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == "zombie", what="the command to end")


def test_only_its_owner_runs_a_command_and_the_audit_log_has_its_program(far: FarHost, job: str) -> None:
    """A colleague is refused, also one who is an admin; the log has no arguments."""
    with far.served.client("https", "bobs") as bob, pytest.raises(Refused, match="may run a command in this job"):
        bob.jobs.exec(job, ["true"])
    assert 0 == run(far, job, "--", "/bin/true", "secret-argument").returncode

    def outcomes() -> set[tuple[str, str]]:
        done = subprocess.run([GPUQUEUE, "audit", "--json"], env=far.environ, capture_output=True, check=True)
        assert b"secret-argument" not in done.stdout
        entries = [entry for entry in json.loads(done.stdout) if entry["action"] == "exec"]
        return {(entry["outcome"], str(entry["detail"].get("program"))) for entry in entries}

    until(lambda: {("done", "true"), ("refused", "None")} <= outcomes(), what="the entries")


def test_the_end_of_the_job_ends_the_command_on_the_other_host(far: FarHost, job: str) -> None:
    words = [GPUQUEUE, "exec", job, "--", "sh", "-c", "echo begun; exec sleep 300"]
    with subprocess.Popen(words, env=far.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as command:
        assert command.stdout is not None
        assert b"begun\n" == command.stdout.readline()
        with far.served.client("unix") as client:
            client.jobs.cancel(job)
        _, errors = command.communicate(timeout=60)
    assert f"gpuqueue: job {job} has ended, and the command in it with it\n" == errors.decode()
    assert 128 + signal.SIGTERM == command.returncode
