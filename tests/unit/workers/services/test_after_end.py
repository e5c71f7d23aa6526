"""Tests of a worker's work at the end of a job: it reads no spec that it knows, and runs no command twice."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from bounded import until
from factories import make_spec
from short_host import dead_server

from gpuqueue.model import notification as what_became
from gpuqueue.model.job import JobSpec, JobState
from gpuqueue.model.notification import Notification, Outcome, When
from gpuqueue.model.run import Ending, RunDevice
from gpuqueue.queue.jobqueue import JobQueue
from workers.measure.active_runs import LiveRun
from workers.run.directory import RunDir
from workers.run.values import Held
from workers.services import after_end
from workers.services.after_end import AfterEnd


def test_a_spec_that_is_given_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A given spec is not read again. Only an adopted run has its spec in its directory alone."""
    held = Held(job_id=1, token="1.a", devices=(RunDevice(uuid="dev-0", lease_bytes=1),))
    run = LiveRun(held=held, directory=RunDir.create(tmp_path, held, "a spec"), since_s=0.0)
    read: list[RunDir] = []
    monkeypatch.setattr(after_end, "_spec_of", read.append)

    ends = AfterEnd(JobQueue("unix:///nowhere"))

    ends.ended(run, JobState.SUCCEEDED, Ending.from_status(0), make_spec())
    assert [] == read

    ends.ended(run, JobState.SUCCEEDED, Ending.from_status(0))
    assert [run.directory] == read


class Delivery:
    """A replacement for the store that records the reports about commands."""

    def __init__(self) -> None:
        self.what: list[tuple[int, Outcome | None, str | None]] = []
        self.senders = self

    def reported(self, _job_id: int, *, what: what_became.Delivery, **_state: object) -> None:
        """Record a report."""
        self.what.append((what.number, what.outcome, what.trouble))


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the list of commands that were run."""
    ran: list[str] = []
    monkeypatch.setattr(after_end, "_run", lambda command: ran.append(command.words))
    return ran


def with_commands(tmp_path: Path) -> tuple[LiveRun, JobSpec]:
    """Return a run of a job with two commands for its end and one for a failure."""
    held = Held(job_id=1, token="1.a", devices=(RunDevice(uuid="dev-0", lease_bytes=1),))
    words = (("command:one", When.END), ("command:never", When.FAIL), ("command:two", When.END))
    spec = make_spec(notifications=tuple(Notification(to=to, when=when) for to, when in words))
    return LiveRun(held=held, directory=RunDir.create(tmp_path, held, "a spec"), since_s=0.0), spec


def test_an_end_that_is_told_again_runs_no_command_again(tmp_path: Path, ran: list[str]) -> None:
    """An end that is reported again runs no command again.

    Regression: a store that lost its data gets all ends again that are not in the history, and the commands ran once
    more. The same happened when a worker was killed after it had reported an end, and the next worker reported it
    again.
    """
    run, spec = with_commands(tmp_path)

    for _ in range(2):  # two workers: the second one knows of the first only through the run directory
        ends = AfterEnd(Delivery())  # type: ignore[arg-type]
        ends.ended(run, JobState.SUCCEEDED, Ending.from_status(0), spec)
        until(lambda ends=ends: ends._waiting.empty(), what="all that is to run")

    until(lambda: 2 <= len(ran), what="the two commands")
    assert ["one", "two"] == sorted(ran)
    run.directory.settle()
    assert [] == list(run.directory.path.iterdir())


def test_a_run_that_is_settled_meanwhile_keeps_nothing_of_it(tmp_path: Path, ran: list[str]) -> None:
    """The commands run even if the run is settled before them, and only the log stays.

    The history may have the end before the worker runs the commands.
    """
    run, spec = with_commands(tmp_path)
    run.directory.settle()

    AfterEnd(Delivery()).ended(run, JobState.SUCCEEDED, Ending.from_status(0), spec)  # type: ignore[arg-type]

    until(lambda: 2 == len(ran), what="the two commands")
    assert [] == list(run.directory.path.iterdir())


def test_what_cannot_be_noted_is_not_run_and_that_is_told(tmp_path: Path, ran: list[str]) -> None:
    """A command that cannot be recorded is not run, and that is reported.

    A command runs at most once, and without a record the next worker would run it again.
    """
    run, spec = with_commands(tmp_path)
    shutil.rmtree(run.directory.path)
    reported = Delivery()

    AfterEnd(reported).ended(run, JobState.SUCCEEDED, Ending.from_status(0), spec)  # type: ignore[arg-type]

    why = "not run: its run directory cannot be written: No such file or directory"
    given_up = [(number, Outcome.GIVEN_UP, why) for number in (0, 2)]
    assert [(1, Outcome.NOT_NEEDED, None), *given_up] == reported.what
    assert [] == ran


def outcome_of(run: LiveRun, words: str, cwd: Path) -> tuple[Outcome, str]:
    """Run a command and return the reported outcome."""
    found: list[tuple[Outcome, str]] = []
    env = {"PATH": os.environ["PATH"], after_end.MARK: run.held.token}
    command = after_end._Command(
        run="it",
        words=words,
        env=env,
        cwd=str(cwd),
        umask=0o022,
        directory=run.directory,
        report=lambda outcome, trouble: found.append((outcome, trouble)),
    )
    after_end._run(command)
    return found[0]


def test_what_ends_a_command_in_time_waits_for_no_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time limit of a command covers the change of directory.

    On a dead file server a process can hang in the change of directory, before it executes its program. Regression: two
    such commands blocked all others for the lifetime of their worker, because the timeout program itself did not start.
    It now starts in another directory, and the command still runs in its own.
    """
    run, _ = with_commands(tmp_path / "runs")
    timeout = tmp_path / "timeout"
    timeout.write_text(f'#!/bin/sh\npwd > {tmp_path}/began\nexec {after_end.TIMEOUT} "$@"\n')
    timeout.chmod(0o755)
    monkeypatch.setattr(after_end, "TIMEOUT", str(timeout))
    place = tmp_path / "it's\n-here"
    place.mkdir()

    reported = outcome_of(run, 'printf "%s|" "$0" "$#" "$(pwd)" "$(cat)" > said', place)

    assert (Outcome.SENT, "") == reported
    assert "/\n" == (tmp_path / "began").read_text()
    assert f"/bin/sh|0|{place}||" == (place / "said").read_text()
    assert (Outcome.GIVEN_UP, "failed with 125") == outcome_of(run, "exit 125", place)


def test_a_directory_that_is_gone_is_told_in_one_line(tmp_path: Path) -> None:
    """A missing directory is reported in one line, and the command is not run in another directory."""
    run, _ = with_commands(tmp_path / "runs")

    reported = outcome_of(run, f"touch {tmp_path}/ran", tmp_path / "gone")

    assert (Outcome.GIVEN_UP, "could not be run: the job's directory cannot be entered") == reported
    assert not (tmp_path / "ran").exists()


def test_a_directory_that_does_not_answer_takes_no_longer_than_a_command_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hanging directory takes no longer than the time limit.

    Regression: one of two lanes waited for as long as the file server was dead.
    """
    monkeypatch.setattr(after_end, "LIMIT_S", 1)
    run, _ = with_commands(tmp_path / "runs")

    with dead_server(tmp_path / "dead") as dead:
        reported = outcome_of(run, "true", dead / "x")

    assert (Outcome.GIVEN_UP, "took longer than 1 s") == reported
