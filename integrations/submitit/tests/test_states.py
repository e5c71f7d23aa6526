"""The states of jobs in the words of Slurm, and how often the queue is asked for them."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from factories import ADA, end, must_claim, start, submit
from gpuqueue_submitit import GpuQueueInfoWatcher, GpuQueueJob
from gpuqueue_submitit.job import STATES
from submitit.core.utils import cloudpickle_dump

from gpuqueue import Client, Ending, EndingKind, JobState
from gpuqueue.model.array import Array
from gpuqueue.model.job_spec import Account
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.queue.lease import Claim


@pytest.fixture
def account(here: JobQueue) -> Account:
    """Return the account of this process."""
    assert here is not None
    with Client() as client:
        return client.account


def claimed(queue: JobQueue, account: Account) -> Claim:
    """Submit a job, and start it as a worker does."""
    submit(queue, account=account)
    run = must_claim(queue)
    start(queue, run)
    return run


def test_each_state_has_the_word_of_slurm(here: JobQueue, account: Account, watcher: GpuQueueInfoWatcher) -> None:
    """One question is for all jobs, members of arrays too."""
    endings = {
        "COMPLETED": (JobState.SUCCEEDED, Ending.from_status(0)),
        "FAILED": (JobState.FAILED, Ending.from_status(1)),
        "TIMEOUT": (JobState.FAILED, Ending.stopped(EndingKind.TIMED_OUT, -15)),
        "OUT_OF_MEMORY": (JobState.FAILED, Ending.stopped(EndingKind.OUT_OF_MEMORY, 1)),
    }
    expected = {}
    for word, (state, ending) in endings.items():
        run = claimed(here, account)
        end(here, run, state=state, ending=ending)
        expected[str(run.job_id)] = word
    for word, leave in {"RUNNING": None, "COMPLETING": here.jobs.cancel}.items():
        run = claimed(here, account)
        if leave is not None:
            leave(run.job_id)
        expected[str(run.job_id)] = word
    array = submit(here, account=account, array=Array.parse("0-3"))
    member = must_claim(here)
    start(here, member)
    here.jobs.part(array, "hold", Array.parse("2").indexes)
    here.jobs.part(array, "cancel", Array.parse("3").indexes)
    expected |= {f"{array}_0": "RUNNING", f"{array}_1": "PENDING", f"{array}_2": "PENDING", f"{array}_3": "CANCELLED"}
    expected |= {str(submit(here, account=account)): "PENDING", str(submit(here, account=ADA)): "PENDING"}
    expected["999"] = "UNKNOWN"

    for name in expected:
        watcher.register_job(name)

    assert expected == {name: watcher.get_state(name) for name in expected}
    assert 1 == watcher.num_calls
    over = {name for name, word in expected.items() if word in {*endings, "CANCELLED"}}
    assert over == {name for name in expected if watcher.is_done(name, mode="cache")}
    assert {*JobState} == STATES.keys()
    assert {"JobID", "State", "NodeList"} == watcher.get_info(f"{array}_0").keys()


def test_the_queue_is_seldom_asked_whether_a_job_has_ended(
    here: JobQueue, account: Account, watcher: GpuQueueInfoWatcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that polls in a loop does not load the queue."""
    jobs = [GpuQueueJob[int](tmp_path, str(submit(here, account=account))) for _ in range(3)]
    monkeypatch.setattr(time, "time", lambda: 1.0)

    assert not any(job.done() for job in jobs * 100)
    assert 1 == watcher.num_calls


def test_a_result_of_a_run_that_is_followed_by_another_is_not_the_end(
    here: JobQueue, account: Account, watcher: GpuQueueInfoWatcher, tmp_path: Path
) -> None:
    """After a lack of device memory the queue runs a job again, which has left an exception as its result."""
    run = claimed(here, account)
    job = GpuQueueJob[int](tmp_path, str(run.job_id))
    cloudpickle_dump(("error", "out of memory"), job.paths.result_pickle)

    assert not job.done()
    end(here, run)
    assert job.done()
    assert "COMPLETED" == job.state
    asked = watcher.num_calls
    assert job.done()
    assert asked == watcher.num_calls


def test_a_result_counts_where_the_queue_does_not_answer(
    watcher: GpuQueueInfoWatcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Results can be read after the end of the queue."""
    monkeypatch.setenv("GPUQUEUE_REDIS_URL", "redis://127.0.0.1:1/0")
    job = GpuQueueJob[int](tmp_path, "17")
    assert not job.done()
    cloudpickle_dump(("success", 12), job.paths.result_pickle)

    assert 12 == job.result()
    assert "UNKNOWN" == job.state
    assert "the states of the jobs may be old" in caplog.text
    assert watcher.num_calls > 0


def test_output_of_earlier_runs_comes_first(watcher: GpuQueueInfoWatcher, tmp_path: Path) -> None:
    """The file in the folder shows the newest run only, and Slurm's has all."""
    assert watcher is not None
    for attempt, text in ((2, "second\n"), (1, "first\n"), (10, "tenth\n")):
        run = tmp_path / "runs" / "17" / f"{attempt}.3f0a"
        run.mkdir(parents=True)
        (run / "log").write_text(text)
    job = GpuQueueJob[int](tmp_path, "17")
    assert job.stdout() is None

    job.paths.stdout.symlink_to(tmp_path / "runs" / "17" / "10.3f0a" / "log")

    assert "first\nsecond\ntenth\n" == job.stdout()
