"""Filters of ``queue``, folded arrays and sweep columns of ``history``, and the logs of several jobs and runs."""

from __future__ import annotations

import json
from pathlib import Path

from factories import make_spec, must_claim
from outbox import Outbox
from spoken import speak

from gpuqueue.client import Client
from gpuqueue.history.database import HistoryDatabase
from gpuqueue.model.job import JobState
from gpuqueue.model.notification import Notification
from gpuqueue.model.run import Ending
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.system.logs import LOG


def printed(*words: str) -> str:
    """Return the output of a command that succeeds."""
    spoken = speak(words)
    assert 0 == spoken.code, spoken.stderr
    return spoken.stdout.decode()


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
