"""Terminals and progress of jobs on another host: real terminals, a real service, a real relay and a real job."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from bounded import until
from far_host import GPUQUEUE, FarHost
from service_fixtures import ServedSite, serving
from terminal import Terminal

from gpuqueue.console import LEFT
from gpuqueue.errors import Refused
from gpuqueue.model.job import JobState
from gpuqueue.model.run_figures import RunFigures

TALKS = 'echo ready; while read line; do echo "got <$line>"; [ "$line" = over ] && exit 4; done'


@pytest.fixture(scope="module")
def served() -> Iterator[ServedSite]:
    """Return a site of its own, whose only worker is on the other host."""
    with serving() as site:
        yield site


@pytest.fixture(scope="module")
def far(served: ServedSite, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FarHost]:
    """Return the other host."""
    made = FarHost(served, tmp_path_factory.mktemp("far"))
    yield made
    made.close()


def newest(far: FarHost) -> int:
    """Return the id of the newest job."""
    with far.served.client("unix") as client:
        return max(job.id for job in client.jobs.list())


def again_until(terminal: Terminal, keys: str, text: str) -> None:
    """Type *keys* again and again until *text* is on the screen."""

    def is_there() -> bool:
        terminal.press(keys)
        return text in terminal.picture()

    until(is_there, timeout_s=60, what=f"{text!r} on the screen, which shows\n{terminal.picture()}\n")


def test_keys_reach_a_job_on_another_host_and_the_exit_code_comes_back(far: FarHost) -> None:
    """Keys reach the job, Ctrl-C included, and a new size too; the exit code is that of the job."""
    script = f"trap 'stty size' INT; {TALKS.replace('while read line; do', 'while :; do read line || continue;')}"
    with Terminal(far.run(script), far.environ, columns=100) as terminal:
        terminal.shows("this is the terminal")
        terminal.shows("ready")
        terminal.press("hello\r")
        terminal.shows("got <hello>")
        terminal.resize(columns=90, rows=20)
        again_until(terminal, "\x03", "20 90")
        terminal.press("\rover\r")
        assert 4 == terminal.ended()
        terminal.shows("failed (exit 4)")
        assert terminal.written.count(b"got <hello>") == 1


def test_the_start_of_a_far_terminal_is_in_the_audit_log(far: FarHost) -> None:
    """The audit log says who attached a terminal, and holds no keys. Nobody else may attach it."""
    with Terminal(far.run(TALKS), far.environ, columns=100) as terminal:
        terminal.shows("ready")
        job = newest(far)
        with far.served.client("https", "bobs") as bob, pytest.raises(Refused, match="may use the terminal"):
            bob.logs.terminal(job, bob.logs.tail())
        terminal.press("over\r")
        assert 4 == terminal.ended()

    def entries() -> list[dict[str, Any]]:
        done = subprocess.run([GPUQUEUE, "audit", "--json"], env=far.environ, capture_output=True, check=True)
        assert b"over" not in done.stdout
        return [each for each in json.loads(done.stdout) if each["action"] == "attach" and each["jobs"] == [str(job)]]

    until(lambda: {"done", "refused"} <= {str(each["outcome"]) for each in entries()}, what="the entries")


def test_progress_of_a_job_on_another_host_is_shown(far: FarHost) -> None:
    """The queue shows it, and after the end of the host's relay shows none."""
    # Earlier runs of the same name would show a time that is left.
    submit = ["submit", "--mem", "1M", "--name", "epochs", "--", "sh", "-c", "echo epoch 3/10 loss 0.1; exec sleep 600"]
    job = int(subprocess.run([GPUQUEUE, *submit], env=far.environ, capture_output=True, check=True).stdout)

    def progress() -> Any:
        done = subprocess.run([GPUQUEUE, "queue", "--json"], env=far.environ, capture_output=True, check=True)
        return json.loads(done.stdout)["progress"].get(str(job))

    words = {"counts": "epoch 3/10", "words": "epoch 3/10, 20 %"}
    assert {"share": 0.2, "left_s": None, "ends_at": None, **words} == until(progress, what="the progress")
    with far.served.client("https", "bobs") as bob:
        assert {} == bob.logs.progress(bob.jobs.list())
    with far.served.client("unix") as client:
        client.jobs.cancel(job)


def test_figures_of_a_run_on_another_host_are_shown_while_it_runs(far: FarHost) -> None:
    """Its owner sees metrics and memory since its start, and others the memory."""
    script = "for n in 1 2 3; do echo metric: loss=0.$n; sleep 1; done; exec sleep 600"
    words = ["submit", "--mem", "1M", "--name", "figures", "--", "sh", "-c", script]
    job = int(subprocess.run([GPUQUEUE, *words], env=far.environ, capture_output=True, check=True).stdout)

    def shown() -> str:
        return subprocess.run(
            [GPUQUEUE, "show", str(job)], env=far.environ, capture_output=True, check=True, text=True
        ).stdout

    until(lambda: "metric     loss 0.3" in shown(), what="the metric")
    with far.served.client("https", "bobs") as bob:
        theirs = bob.logs.figures(job)
        assert theirs is not None
        assert theirs.values is None
        assert [*theirs.timelines]
    with far.served.client("unix") as client:
        client.jobs.cancel(job)
        client.jobs.wait(job)
        after = client.logs.figures(job)
        assert after == RunFigures()


@pytest.mark.full
def test_a_user_detaches_from_a_far_terminal_and_attaches_again(far: FarHost) -> None:
    """``~.`` leaves the job running, and ``attach`` shows its output again and takes keys."""
    with Terminal(far.run(TALKS), far.environ, columns=100) as terminal:
        terminal.shows("ready")
        terminal.press("one\r")
        terminal.shows("got <one>")
        terminal.press("~.")
        assert LEFT == terminal.ended()
    with Terminal([GPUQUEUE, "attach", str(newest(far))], far.environ, columns=100) as terminal:
        terminal.shows("this is the terminal")
        terminal.shows("got <one>")
        terminal.press("over\r")
        assert 4 == terminal.ended()


@pytest.mark.full
def test_a_far_terminal_outlives_the_service(far: FarHost) -> None:
    """While the service is away, keys are lost, and the user reads so. Afterwards the terminal works again."""
    with Terminal(far.run(TALKS), far.environ, columns=100) as terminal:
        terminal.shows("ready")
        terminal.press("one\r")
        terminal.shows("got <one>")
        far.served.kill()
        terminal.press("x")
        terminal.shows("keys are lost until it does")
        far.served.start()
        again_until(terminal, "again\r", "again>")
        terminal.press("over\r")
        assert 4 == terminal.ended()


@pytest.mark.full
def test_a_far_terminal_outlives_the_relay(far: FarHost) -> None:
    """While the host has no relay, keys are lost, and the user reads so. Afterwards the terminal works again."""
    with Terminal(far.run(TALKS), far.environ, columns=100) as terminal:
        terminal.shows("ready")
        terminal.press("one\r")
        terminal.shows("got <one>")
        far.kill_relay()
        terminal.press("x")
        terminal.shows("host far does not answer: keys are lost until it does")
        far.relay = far.start_relay()
        again_until(terminal, "again\r", "again>")
        terminal.press("over\r")
        assert 4 == terminal.ended()


@pytest.mark.full
def test_a_far_terminal_of_a_silent_host_says_so(far: FarHost) -> None:
    """Without a relay, ``attach`` says that nobody can type now. The job can be ended nevertheless."""
    with Terminal(far.run(TALKS), far.environ, columns=100) as terminal:
        terminal.shows("ready")
        job = newest(far)
        terminal.press("\r~.")
        assert LEFT == terminal.ended()
    far.kill_relay()
    with Terminal([GPUQUEUE, "attach", str(job)], far.environ, columns=100) as terminal:
        terminal.shows("host far does not answer: you cannot type now")
        with far.served.client("unix") as client:
            client.jobs.cancel(job)
        far.relay = far.start_relay()
        assert terminal.ended() not in {0, None}
        assert JobState.CANCELLED is client_state(far, job)


def client_state(far: FarHost, job: int) -> JobState:
    """Return the state of a job."""
    with far.served.client("unix") as client:
        return client.jobs.get(job).state
