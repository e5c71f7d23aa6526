"""Filters of ``queue``, folded arrays and sweep columns of ``history``, and the logs of several jobs and runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from factories import BOB, make_spec, must_claim
from outbox import Outbox
from spoken import speak

from gpuqueue.client import Client
from gpuqueue.errors import BadRequest
from gpuqueue.history.database import HistoryDatabase
from gpuqueue.model.array import Array, Indexes
from gpuqueue.model.job import JobState
from gpuqueue.model.notification import Notification
from gpuqueue.model.run import Ending
from gpuqueue.model.sweep import Axis
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.system.logs import LOG


def printed(*words: str) -> str:
    """Return the output of a command that succeeds."""
    spoken = speak(words)
    assert 0 == spoken.code, spoken.stderr
    return spoken.stdout.decode()


def names(*words: str) -> list[str]:
    """Return the first column of a table without its head."""
    return [line.split()[0] for line in printed(*words).splitlines()[1:]]


@pytest.fixture
def busy(here: JobQueue) -> JobQueue:
    """Return a queue with a running job 1, a waiting one 2, a held one 3 of bob, and an array 4."""
    here.requests.submit(make_spec(name="train-a", tags=("best", "x")))
    must_claim(here)
    here.requests.submit(make_spec(name="train-b", tags=("best",)))
    here.jobs.hold(here.requests.submit(make_spec(name="eval", account=BOB)).id)
    here.requests.submit(make_spec(name="sweep", array=Array.parse("0-3")))
    here.jobs.part(4, "hold", Indexes.parse("3"))
    return here


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ((), ["1", "2", "3", "4_[0-2]", "4_[3]"]),
        (("--state", "held"), ["3", "4_[3]"]),
        (("--state", "queued", "--state", "starting"), ["1", "2", "4_[0-2]"]),
        (("--name", "train-*"), ["1", "2"]),
        (("--tag", "best", "--tag", "x"), ["1"]),
        (("--tag", "best", "--state", "queued"), ["2"]),
        (("--user", "bob"), ["3"]),
        (("--state", "held", "--limit", "1"), ["3"]),
    ],
)
@pytest.mark.usefixtures("busy")
def test_queue_lists_what_the_filters_select(words: tuple[str, ...], shown: list[str]) -> None:
    """All filters must match. Of an array, only the members in a given state are shown."""
    assert shown == names("queue", *words)
    ids = {int(each.split("_")[0]) for each in shown}
    assert ids == {job["id"] for job in json.loads(printed("queue", "--json", *words))["jobs"]}


def test_a_part_of_the_queue_names_where_the_next_part_begins(busy: JobQueue) -> None:
    """``queue --json`` has the last id of a part in ``after``, as the API has, and null for the last part."""
    first, whole = (json.loads(printed("queue", "--json", "--limit", limit)) for limit in ("2", "4"))

    assert ([1, 2], 2) == ([job["id"] for job in first["jobs"]], first["after"])
    assert (len(busy.jobs.live()), None) == (len(whole["jobs"]), whole["after"])


def test_no_json_has_a_secret(here: JobQueue, tmp_path: Path) -> None:
    """No JSON has the environment of a job, what a URL of it may hold, or the token of a run."""
    secret = "hunter2"  # noqa: S105 - a test's
    url = Notification(f"json://ann:{secret}@example.org/{secret}")
    spec = make_spec(env={"HF_TOKEN": secret, "COLOUR": f"{secret}-blue"}, notifications=(url,))
    ran = here.requests.submit(spec).id
    token = must_claim(here).token
    waits = here.requests.submit(spec).id
    outbox = Outbox(HistoryDatabase(f"sqlite:///{tmp_path / 'history.db'}"))
    outbox.submit(50, spec)
    outbox.claim(50)
    outbox.finish(50, Ending.from_status(0), JobState.SUCCEEDED)
    outbox.record()

    shown = {
        words: printed(*words.split(), "--json")
        for words in ("queue", "top", f"show {ran}", f"why {ran}", f"why {waits}", "show 50", "history", "wait 50")
    }

    for words, text in shown.items():
        assert "json://\\u2026" in text, words
        assert not [hidden for hidden in (secret, token, "COLOUR") if hidden in text], words
    tokens = {run["token"] for words in ("show 50", f"show {ran}") for run in json.loads(shown[words])["runs"]}
    assert {""} == tokens


@pytest.mark.usefixtures("busy")
def test_queue_filters_by_pool() -> None:
    """A pool selects the jobs that ask for it. Without a match, a line says so."""
    empty = speak(["queue", "--pool", "big"])

    assert (0, b"", "no job of these waits or runs\n") == (empty.code, empty.stdout, empty.stderr)
    with Client() as client:
        assert ["eval"] == [job.spec.name for job in client.jobs.list(states=["held"], name="e*")]


@pytest.fixture
def swept(here: JobQueue, tmp_path: Path) -> Outbox:
    """Return a history with the sweep 43 of four members, 44 to 47, two of which failed, and job 50."""
    outbox = Outbox(HistoryDatabase(f"sqlite:///{tmp_path / 'history.db'}"))
    sweep = Array.sweep([Axis.parse("lr=1e-3,1e-4"), Axis.parse("model=a,b")])
    outbox.submit(43, make_spec(name="sweep", array=sweep))
    for index, status in enumerate((1, 0, 0, 1)):
        outbox.claim(44 + index, of="43", index=str(index))
        outbox.started(44 + index)
        outbox.finish(44 + index, Ending.from_status(status), JobState.FAILED if status else JobState.SUCCEEDED)
    outbox.submit(50, make_spec(name="single"))
    outbox.record()
    assert [] == here.jobs.live()
    return outbox


@pytest.mark.usefixtures("swept")
def test_history_folds_the_members_of_an_array() -> None:
    """An array is one row with counts; ``--members``, another order and a program get each member."""
    assert ["50", "43"] == names("history")
    assert "2 failed, 2 succeeded" in printed("history")
    assert "2 failed" in printed("history", "--state", "failed")
    assert ["50", "43_3", "43_2", "43_1", "43_0", "43"] == names("history", "--members")
    assert 6 == len(names("history", "--sort", "duration"))
    assert 6 == len(json.loads(printed("history", "--json")))
    assert 7 == len(printed("history", "--csv").splitlines())
    with Client() as client:
        rows = client.history.folded(name="sweep")
    assert [{JobState.SUCCEEDED: 2, JobState.FAILED: 2}] == [
        {state: number for state, number in row.members.items() if state.is_end} for row in rows
    ]
    with pytest.raises(BadRequest, match="the members of one array are not folded"):
        client.history.folded(array=43)


@pytest.mark.usefixtures("swept")
def test_history_shows_the_values_of_a_sweep() -> None:
    """A parameter is a column by its name; in braces, if a column has that name. ``--params`` shows all."""
    assert ["43_3 1e-4", "43_2 1e-4", "43_1 1e-3", "43_0 1e-3", "43 -"] == [
        " ".join(line.split()) for line in printed("history", "--name", "sweep", "--columns", "id,lr").splitlines()[1:]
    ]
    assert "id,{model}\n47,b\n46,a\n" == printed(
        "history", "--array", "43", "--columns", "id,{model}", "--csv", "-l", "2"
    )
    head = printed("history", "--array", "43", "--params").splitlines()[0].split()
    assert ["lr", "{model}"] == head[-2:]
    plain = json.loads(printed("history", "--array", "43", "--params", "--json"))
    assert {"lr": "1e-4", "model": "b"} == plain[0]["params"]
    wrong = speak(["history", "--columns", "id,lrr"])
    assert (2, True) == (wrong.code, "'lrr' is no column: did you mean lr?" in wrong.stderr)


@pytest.mark.usefixtures("swept")
def test_a_hint_names_the_id_that_is_shown() -> None:
    """The next page continues after ``43_2``, not after 46, and takes that name."""
    first = speak(["history", "--members", "--limit", "3"])

    assert "and more: add --after 43_2\n" == first.stderr
    assert ["43_1", "43_0", "43"] == names("history", "--members", "--after", "43_2")
    folded = speak(["history", "--limit", "1", "--reverse"])
    assert "and more: add --after 43_3\n" == folded.stderr
    assert ["50"] == names("history", "--reverse", "--after", "43_3")


def two_runs(here: JobQueue, tmp_path: Path, outbox: Outbox) -> None:
    """Make job 1 with two runs and job 2 with one, and their logs."""
    for job_id in (1, 2):
        outbox.submit(job_id, make_spec(name=f"job-{job_id}"))
        for attempt in range(1, 4 - job_id):
            folder = tmp_path / f"{job_id}" / f"{attempt}.a"
            folder.mkdir(parents=True)
            (folder / LOG).write_text(f"job {job_id} run {attempt}\nlast\n")
            outbox.claim(job_id, f"{attempt}.a", attempt=attempt)
            outbox.started(job_id, f"{attempt}.a", attempt=attempt)
            event = outbox.reported[-1]
            event.fields["started"] = event.fields["started"].replace('"/log"', json.dumps(str(folder / LOG)))
            ended = JobState.QUEUED if job_id == 1 and attempt == 1 else JobState.FAILED
            outbox.finish(job_id, Ending.from_status(1), ended, token=f"{attempt}.a", attempt=attempt)
    outbox.record()
    assert [] == here.jobs.live()


def test_logs_of_a_run_and_of_several_jobs(here: JobQueue, tmp_path: Path) -> None:
    """``--run`` selects a run. Several logs get headings as in ``tail``, and one bad id does not stop the others."""
    two_runs(here, tmp_path, Outbox(HistoryDatabase(f"sqlite:///{tmp_path / 'history.db'}")))

    assert "job 1 run 2\nlast\n" == printed("logs", "1")
    assert "job 1 run 1\nlast\n" == printed("logs", "1", "--run", "1")
    missing = speak(["logs", "1", "--run", "3"])
    assert (5, "gpuqueue: job 1 has no run 3: its runs are 1, 2\n") == (missing.code, missing.stderr)
    assert "==> 2 <==\nlast\n\n==> 1 <==\nlast\n" == printed("logs", "2", "1", "--tail", "1")
    assert "==> 1 <==\njob 1 run 2\nlast\n\n==> 2 <==\njob 2 run 1\nlast\n" == printed("logs", "1-2")
    some = speak(["logs", "9", "2"])
    assert (3, b"==> 2 <==\njob 2 run 1\nlast\n", 1) == (some.code, some.stdout, some.stderr.count("\n"))
    for words in (["1", "2"], ["1-2"], ["1", "--run", "1"]):
        both = speak(["logs", "-f", *words])
        assert (2, True) == (both.code, "--follow shows the newest run of one job" in both.stderr)
    with Client() as client:
        assert tmp_path / "1" / "1.a" / LOG == client.logs.path(1, run=1)
