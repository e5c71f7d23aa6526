"""Commands that change several jobs: words that name jobs, filters that choose them, and the confirmation."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
from factories import make_spec, must_claim
from spoken import speak
from terminal import Terminal

from gpuqueue.model.array import Array
from gpuqueue.model.job_spec import Account
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.system.account import current_account

ME = current_account("laptop")


def put(queue: JobQueue, *names: str, account: Account = ME) -> list[int]:
    """Queue one job for each name."""
    return [queue.requests.submit(make_spec(name=name, account=account)).id for name in names]


def states(queue: JobQueue) -> dict[int, str]:
    """Return the state of each job that has not ended."""
    return {job.id: job.state.value for job in queue.jobs.live() if not job.state.is_end}


@pytest.mark.parametrize(("answer", "code", "left"), [("y", 0, 0), ("n", 1, 7), ("", 1, 7)])
def test_on_a_terminal_it_shows_what_it_found_and_asks(here: JobQueue, answer: str, code: int, left: int) -> None:
    """On a terminal the first jobs and the number of others are shown. Nothing is done without a yes."""
    put(here, *["train"] * 7)

    with Terminal([str(Path(sys.executable).parent / "gpuqueue"), "cancel", "--all"], os.environ) as terminal:
        terminal.shows("cancel 7 jobs? [y/N]")
        shown = "\n".join(terminal.lines())
        terminal.press(f"{answer}\n")
        assert code == terminal.ended()

    assert 5 == len(re.findall(r"^  \d+  train  \S+  queued$", shown, re.MULTILINE))
    assert "  and 2 more" in shown
    assert left == len(states(here))


def test_what_is_no_answer_is_asked_again_and_ctrl_c_has_a_line_of_its_own(here: JobQueue) -> None:
    """An invalid answer is asked again, and the message after Ctrl-C is on its own line."""
    put(here, "a")

    with Terminal([str(Path(sys.executable).parent / "gpuqueue"), "cancel", "--all"], os.environ) as terminal:
        terminal.shows("cancel 1 job? [y/N]:")
        terminal.press("maybe\n")
        terminal.shows("answer y or n")
        terminal.press("\x03")
        assert 130 == terminal.ended()
        assert "gpuqueue: interrupted" in [line.rstrip() for line in terminal.lines()]

    assert {1: "queued"} == states(here)


def test_who_is_asked_knows_how_many_members_that_means(here: JobQueue) -> None:
    """The confirmation has the number of array members that are chosen. An array used to count as one job."""
    put(here, "single")
    array = here.requests.submit(make_spec(name="sweep", array=Array.parse("0-1199"), account=ME)).id
    gpuqueue = str(Path(sys.executable).parent / "gpuqueue")

    with Terminal([gpuqueue, "cancel", "--all"], os.environ) as terminal:
        terminal.shows("cancel 2 jobs (1 of them an array with 1 200 members)? [y/N]")
        assert any(line.startswith(f"  {array}  sweep") and line.endswith("1 200 members") for line in terminal.lines())
        terminal.press("n\n")
        terminal.ended()
    speak(["hold", "1", f"{array}_0-9"])
    must_claim(here)  # one member is running
    with Terminal([gpuqueue, "cancel", "--name", "sweep", "--state", "waiting"], os.environ) as terminal:
        terminal.shows("cancel 1 job (an array with 1 199 members)? [y/N]")
        terminal.press("n\n")
        terminal.ended()
    assert "this would cancel 2 jobs (1 of them an array with 1 200 members), and" in speak(["cancel", "--all"]).stderr
