"""Commands that change several jobs: words that name jobs, filters that choose them, and the confirmation."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
from factories import BOB, make_spec, must_claim
from spoken import speak
from terminal import Terminal

from gpuqueue.model.array import Array
from gpuqueue.model.job import JobState
from gpuqueue.model.job_spec import Account
from gpuqueue.model.run import Ending
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.system.account import current_account

ME = current_account("laptop")


def put(queue: JobQueue, *names: str, account: Account = ME) -> list[int]:
    """Queue one job for each name."""
    return [queue.requests.submit(make_spec(name=name, account=account)).id for name in names]


def states(queue: JobQueue) -> dict[int, str]:
    """Return the state of each job that has not ended."""
    return {job.id: job.state.value for job in queue.jobs.live() if not job.state.is_end}


def test_words_name_jobs_ranges_and_parts(here: JobQueue) -> None:
    """``1-3`` means the existing jobs from 1 to 3. Each job gives a line, in the order of the words."""
    put(here, "a", "b", "c", "d")
    array = here.requests.submit(make_spec(array=Array.parse("0-9"), account=ME)).id

    printed = speak(["hold", "4", "1-3", f"{array}_2-4"])

    lines = ["job 4: held", "job 1: held", "job 2: held", "job 3: held", f"job {array}_2-4: held"]
    assert (0, lines, "") == (printed.code, printed.stdout.decode().splitlines(), printed.stderr)
    assert b"job 2: queued\njob 3: queued\n" == speak(["release", "2-3"]).stdout
    assert {1: "held", 2: "queued", 3: "queued", 4: "held", array: "queued"} == states(here)


def test_one_bad_word_does_not_keep_the_others_from_it(here: JobQueue) -> None:
    """Each bad word is reported, the other words are processed, and the exit code is the worst one."""
    put(here, "a", "b")

    printed = speak(["cancel", "1", "99", "xyz", "50-60", "2"])

    assert (3, b"job 1: cancelled\njob 2: cancelled\n", 3) == (printed.code, printed.stdout, printed.stderr.count("\n"))
    for reported in (
        "there is no job 99",
        "'xyz' is no job: gpuqueue cancel --name xyz",
        "no job of 50-60 waits or runs",
    ):
        assert reported in printed.stderr
    assert {} == states(here)


def test_the_worst_code_is_the_end(here: JobQueue) -> None:
    """The worst exit code counts, also if the last word succeeds: 5 (wrong state) is worse than 3 (unknown job)."""
    running, waiting = put(here, "a", "b")
    must_claim(here)

    printed = speak(["hold", str(running), "99", str(waiting)])

    assert (5, f"job {waiting}: held\n".encode(), 2) == (printed.code, printed.stdout, printed.stderr.count("\n"))
    assert 2 == speak(["hold", "xyz"]).code


def test_of_a_part_it_says_what_was_held_and_what_was_not(here: JobQueue) -> None:
    """For a part of an array, running, ended and unknown members are reported, and the others are held."""
    array = here.requests.submit(make_spec(array=Array.parse("0-9"), account=ME)).id
    over, _, _ = (must_claim(here) for _ in range(3))
    here.runs.lose(over.job_id, over.token, loss_limit=1, detail="gone")
    here.jobs.cancel(over.job_id)

    printed = speak(["hold", f"{array}_0,1-4,77"])

    assert (5, f"job {array}_3-4: held\n") == (printed.code, printed.stdout.decode())
    assert (
        f"gpuqueue: {array}_1-2 are starting, {array}_0 is over, {array}_77 is no member: there is nothing to hold\n"
        == printed.stderr
    )
    printed = speak(["hold", f"{array}_1-2"])
    assert (5, "") == (printed.code, printed.stdout.decode())
    assert f"nothing of {array}_1-2 waits: there is nothing to hold" in printed.stderr
    assert (0, f"job {array}: held, but {array}_1-2 are starting\n") == (
        (printed := speak(["hold", str(array)])).code,
        printed.stdout.decode(),
    )
    assert (5, f"job {array}_5: queued\n") == (
        (printed := speak(["release", f"{array}_1,5"])).code,
        printed.stdout.decode(),
    )


@pytest.mark.parametrize("verb", ["cancel", "hold", "release"])
def test_an_unknown_member_is_not_reported_as_changed(here: JobQueue, verb: str) -> None:
    """Members that do not exist are reported, and the existing ones are changed.

    A part without existing members is an unknown job.
    """
    array = here.requests.submit(make_spec(array=Array.parse("0-3"), account=ME)).id
    if verb == "release":
        here.jobs.part(array, "hold")
    state = {"cancel": "cancelled", "hold": "held", "release": "queued"}[verb]

    printed = speak([verb, f"{array}_2-9"])

    reported = f"gpuqueue: {array}_4-9 are no members: there is nothing to {verb}\n"
    assert (5, f"job {array}_2-3: {state}\n", reported) == (printed.code, printed.stdout.decode(), printed.stderr)
    none = speak([verb, f"{array}_7-9"])
    assert (3, b"") == (none.code, none.stdout)
    assert f"there is no job {array}_7-9: the members of {array} are 0-3" in none.stderr


def fail(queue: JobQueue) -> int:
    """Claim the next job, let it fail and return its id."""
    run = must_claim(queue)
    queue.runs.started(run.job_id, run.token, lease_s=300, log_path="/l", devices=())
    failed = {"state": JobState.FAILED, "ending": Ending.from_status(256), "duration_s": 1.0, "devices": ()}
    assert queue.runs.finish(run.job_id, run.token, **failed)  # type: ignore[arg-type]
    return run.job_id


def test_a_range_passes_over_what_is_over_and_what_lies_between(here: JobQueue) -> None:
    """A range skips ended members and missing indexes, and the output names only the changed members."""
    array = here.requests.submit(make_spec(array=Array.parse("0-8:2"), account=ME)).id
    fail(here)
    assert 0 == speak(["cancel", f"{array}_2"]).code

    printed = speak(["hold", f"{array}_0-8"])

    assert (0, f"job {array}_4,6,8: held\n", "") == (printed.code, printed.stdout.decode(), printed.stderr)
    assert b"" == speak(["hold", f"{array}_0,4"]).stdout, "they are held, and over"


def test_a_part_of_many_ranges_is_one_short_line(here: JobQueue) -> None:
    """A part of many ranges is shortened in the output, which used to have thousands of characters."""
    array = here.requests.submit(make_spec(array=Array.parse("0-99"), account=ME)).id
    assert 0 == speak(["cancel", f"{array}_" + ",".join(map(str, range(1, 100, 2)))]).code

    printed = speak(["cancel", f"{array}_0-99"])

    named = ",".join(map(str, range(0, 24, 2)))
    assert (0, f"job {array}_{named} and 38 more: cancelled\n") == (printed.code, printed.stdout.decode())


def test_what_has_ended_of_an_array_is_not_cancelled_again(here: JobQueue) -> None:
    """A failed member is not reported as cancelled, just as a failed single job is not."""
    array = here.requests.submit(make_spec(array=Array.parse("0-2"), account=ME)).id
    first, second = fail(here), fail(here)
    assert (array + 1, array + 2) == (first, second)
    assert f"job {array}_2: cancelled\n".encode() == speak(["cancel", f"{array}_2"]).stdout

    member, both, again = (speak(["cancel", f"{array}_{part}"]) for part in ("1", "0-1", "2"))

    line = f"gpuqueue: job {array}_1 has failed already: see gpuqueue show {array}_1\n"
    assert (5, b"", line) == (member.code, member.stdout, member.stderr)
    nothing = f"gpuqueue: nothing of {array}_0-1 waits or runs: there is nothing to cancel, see gpuqueue show {array}\n"
    assert (5, b"", nothing) == (both.code, both.stdout, both.stderr)
    assert (0, f"job {array}_2 was cancelled already\n".encode(), "") == (again.code, again.stdout, again.stderr)


def test_a_part_all_of_which_was_cancelled_says_so(here: JobQueue) -> None:
    """A part whose members are all cancelled is reported as such, as one member is.

    Failed members beside it do not matter.
    """
    array = here.requests.submit(make_spec(array=Array.parse("0-3"), account=ME)).id
    part = f"{array}_1-2"
    speak(["cancel", part])
    before = speak(["cancel", part])
    speak(["cancel", str(array)])
    after = speak(["cancel", part])

    for printed in (before, after):
        assert (0, f"job {part} was cancelled already\n".encode(), "") == (printed.code, printed.stdout, printed.stderr)


def test_a_range_that_has_ended_is_not_one_that_never_was(here: JobQueue) -> None:
    """A range of ended jobs gives 5 and one of unknown jobs gives 3, so that scripts can tell them apart."""
    put(here, "a", "b")
    fail(here)
    fail(here)

    for verb in ("cancel", "hold"):
        ended, never = speak([verb, "1-2"]), speak([verb, "50-60"])
        line = "gpuqueue: no job of 1-2 waits or runs: see gpuqueue queue and gpuqueue history\n"
        assert (5, line, 3) == (ended.code, ended.stderr, never.code)


def test_a_repeated_cancel_reports_the_same_state(here: JobQueue) -> None:
    """A second cancel succeeds and says that nothing changed, for a job, an array and a member."""
    (single,) = put(here, "single")
    array, other = (here.requests.submit(make_spec(array=Array.parse("0-2"), account=ME)).id for _ in range(2))
    names = [str(single), str(array), f"{other}_1"]

    for word in (": cancelled", " was cancelled already"):
        printed = speak(["cancel", *names])
        done = "".join(f"job {name}{word}\n" for name in names).encode()
        assert (0, done, "") == (printed.code, printed.stdout, printed.stderr)
    first = must_claim(here)
    here.runs.started(first.job_id, first.token, lease_s=300, log_path="/l", devices=())
    for _ in range(2):
        printed = speak(["cancel", str(other)])
        assert (0, f"job {other}: cancelling\n".encode(), "") == (printed.code, printed.stdout, printed.stderr)


def test_a_member_that_cannot_be_moved_has_the_name_that_one_gave_it(here: JobQueue) -> None:
    """A refused move names the member as typed, not by its job id."""
    array = here.requests.submit(make_spec(array=Array.parse("0-2"), account=ME)).id
    must_claim(here)

    printed = speak(["move", f"{array}_0", "--front"])

    line = f"gpuqueue: job {array}_0 is starting: only a job that waits can be moved\n"
    assert (5, line) == (printed.code, printed.stderr)


def test_a_filter_without_a_terminal_wants_a_yes(here: JobQueue) -> None:
    """Without a terminal a filter requires ``--yes``. Otherwise nothing is done, and one line says so."""
    put(here, "a", "b")

    printed = speak(["cancel", "--all"])

    line = "gpuqueue: this would cancel 2 jobs, and there is no terminal to ask on: add --yes\n"
    assert (2, b"", line) == (printed.code, printed.stdout, printed.stderr)
    assert 2 == len(states(here))


def test_filters_choose_among_ones_own_jobs(here: JobQueue) -> None:
    """Filters by name, pattern and state choose the user's own jobs, and other users' jobs only with ``--user``."""
    put(here, "train", "train-2", "eval")
    first = must_claim(here).job_id
    theirs = put(here, "train", account=BOB)

    assert b"job 2: cancelled\n" == speak(["cancel", "--name", "train-?", "--yes"]).stdout
    assert f"job {first}: cancelling\n".encode() == speak(["cancel", "--state", "running", "-y"]).stdout
    assert b"job 3: held\n" == speak(["hold", "--all", "--yes"]).stdout
    assert b"job 3: cancelled\n" == speak(["cancel", "--state", "waiting", "--yes"]).stdout
    assert {first: "cancelling", theirs[0]: "queued"} == states(here)
    assert f"job {theirs[0]}: held\n".encode() == speak(["hold", "--user", "bob", "--yes"]).stdout
    assert f"job {theirs[0]}: queued\n".encode() == speak(["release", "--user", "bob", "--all", "--yes"]).stdout


def test_what_waits_of_an_array_is_chosen_without_what_runs(here: JobQueue) -> None:
    """``--state waiting`` does not cancel a running member. ``--all`` names the array once, not its members."""
    array = here.requests.submit(make_spec(array=Array.parse("0-8:2"), account=ME)).id
    member = must_claim(here).job_id

    printed = speak(["cancel", "--state", "waiting", "--yes"])

    assert (0, f"job {array}_2,4,6,8: cancelled\n".encode()) == (printed.code, printed.stdout)
    assert "starting" == states(here)[member]
    assert f"job {array}: cancelling\n".encode() == speak(["cancel", "--all", "--yes"]).stdout
    assert "cancelling" == states(here)[member]


def test_nothing_that_matches_is_no_mistake(here: JobQueue) -> None:
    """A filter without a match succeeds, so that clean-up scripts can run twice."""
    put(here, "a")

    printed = speak(["cancel", "--name", "b*", "--yes"])

    assert (0, b"", "gpuqueue: no job matches: there is nothing to cancel\n") == (
        printed.code,
        printed.stdout,
        printed.stderr,
    )


@pytest.mark.parametrize(
    ("typed", "line"),
    [
        (["cancel"], "name the jobs: gpuqueue cancel 12 14-19, or choose them: --name, --user, --all"),
        (["hold", "--yes"], "name the jobs: gpuqueue hold 12 14-19, or choose them: --name, --user, --all"),
        (["cancel", "1", "--all"], "name jobs, or choose them by --user, --name, --tag, --state or --all: not both"),
        (["cancel", "9-1"], "'9-1' is no range of jobs: write the lower id first, such as 12-19"),
    ],
)
@pytest.mark.usefixtures("here")
def test_words_that_may_mean_two_things_are_refused(typed: list[str], line: str) -> None:
    """Ambiguous words are refused in one line that says what to type instead."""
    printed = speak(typed)

    assert (2, b"", f"gpuqueue: {line}\n") == (printed.code, printed.stdout, printed.stderr)


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


def test_what_is_named_first_goes_first(here: JobQueue) -> None:
    """``move 4 2-3 --front`` gives the order 4, 2, 3, 1. ``why`` shows it, and ``--undo`` reverts it."""
    put(here, "a", "b", "c", "d")
    array = here.requests.submit(make_spec(array=Array.parse("0-3"), account=ME)).id

    printed = speak(["move", "4", "2-3", "--front"])

    assert (0, [f"job {each}: queued, before all others of its user" for each in (3, 2, 4)]) == (
        printed.code,
        printed.stdout.decode().splitlines(),
    )
    assert b"job 2: queued, back at its place by arrival\n" == speak(["move", "2", "--undo"]).stdout
    assert 0 == speak(["move", "4", "2", "--front"]).code
    assert f"order  priority normal; moved to the front of {ME.name}'s own; nobody is before it" in (
        speak(["why", "4"]).stdout.decode()
    )
    assert f"before it: 3 jobs of {ME.name}'s own" in speak(["why", "1"]).stdout.decode()
    assert [4, 2, 3, 1] == [must_claim(here).job_id for _ in range(4)]
    gone = speak(["move", "4", "--front"])
    assert (5, "gpuqueue: job 4 is starting: only a job that waits can be moved\n") == (gone.code, gone.stderr)
    part = speak(["move", f"{array}_2", "--front"])
    line = f"gpuqueue: {array}_2 waits with its array, which goes in its own order: move all of {array}\n"
    assert (2, line) == (part.code, part.stderr)
    for words in (["move", "1"], ["move", "--front"]):
        assert "name the jobs, and the direction: gpuqueue move 17 --front, or --undo" in speak(words).stderr
