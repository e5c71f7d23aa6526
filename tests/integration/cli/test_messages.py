"""Messages about mistakes that commands used to accept silently or report wrongly."""

from __future__ import annotations

from factories import make_spec
from spoken import speak

from gpuqueue.model.job import JobState
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.system.account import current_account

ME = current_account("laptop")


def test_braces_of_a_single_job_are_its_own(here: JobQueue) -> None:
    """Braces of a single job give no warning, because nothing is substituted."""
    assert "" == speak(["submit", "--mem", "1G", "--", "awk", "{print}"]).stderr
    assert 1 == len(here.jobs.live())


def test_an_empty_name_is_refused(here: JobQueue) -> None:
    """An empty ``--name``, as from an unset variable, is refused. The job used to be named after its program."""
    printed = speak(["submit", "--mem", "1G", "--name", "", "--", "true"])

    assert (2, b"") == (printed.code, printed.stdout)
    assert "the name is empty" in printed.stderr
    assert [] == here.jobs.live()


def test_a_begin_time_in_the_past_warns(here: JobQueue) -> None:
    """A begin in the past gives a warning, because the user may mean next year. ``now`` gives none."""
    printed = speak(["submit", "--mem", "1G", "--begin", "2020-01-01", "--", "true"])
    now = speak(["submit", "--mem", "1G", "--begin", "now", "--", "true"])

    assert (0, b"1\n") == (printed.code, printed.stdout)
    assert "--begin 2020-01-01 is in the past: job 1 may start at once" in printed.stderr
    assert (0, "") == (now.code, now.stderr)
    assert 2 == len(here.jobs.live())


def test_any_and_all_contradict_each_other(here: JobQueue) -> None:
    """``--any`` with ``--all`` is refused. The last one used to win, and scripts waited for the wrong jobs."""
    here.requests.submit(make_spec(account=ME))
    for words in (["--any", "--all"], ["--all", "--any"]):
        printed = speak(["wait", *words, "1"])

        assert (2, b"") == (printed.code, printed.stdout)
        assert "contradict each other" in printed.stderr


def test_a_release_of_what_was_not_held_says_so(here: JobQueue) -> None:
    """``release`` says if a job was not held. Its output used to be the same in both cases."""
    for _ in range(2):
        here.requests.submit(make_spec(account=ME))
    here.jobs.hold(2)

    assert b"job 1: queued (it was not held)\njob 2: queued\n" == speak(["release", "1", "2"]).stdout
    assert [JobState.QUEUED] * 2 == [job.state for job in here.jobs.live()]


def test_a_tag_says_what_it_changed(here: JobQueue) -> None:
    """``tag`` says what it changed, so that a typing error is visible."""
    here.requests.submit(make_spec(account=ME))

    printed = [
        speak(["tag", "1", *words]).stdout
        for words in (("best", "paper"), ("best", "old"), ("papper", "--remove"), ("paper", "x", "--remove"))
    ]

    assert [
        b"job 1: tagged best paper\n",
        b"job 1: tagged old, already tagged best\n",
        b"job 1: never tagged papper\n",
        b"job 1: no longer tagged paper, never tagged x\n",
    ] == printed
