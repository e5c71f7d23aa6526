"""Tests of preemption with real processes: what is lost, and what happens when a worker dies meanwhile."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from bounded import until
from site_of_one import Site

from gpuqueue.model.job import JobState

#: Trains until the file ``finish`` exists. When preempted, it saves its step, waits for the file ``leave``, and exits
#: with 75 to ask for another run.
TRAINS = """
import json, os, pathlib, signal, sys, time
here = pathlib.Path(sys.argv[1])
state = here / "step"
step = int(state.read_text()) if state.exists() else 0
def leave(number, frame):
    request = json.load(open(os.path.join(os.environ["GPUQUEUE_RUN_DIR"], "preempt.json")))
    state.write_text(str(step))
    (here / "saved").write_text(str(request["by"]))
    while not (here / "leave").exists():
        time.sleep(0.02)
    sys.exit(75)
signal.signal(signal.SIGTERM, leave)
(here / f"begun-{os.environ['GPUQUEUE_ATTEMPT']}-{step}").touch()
while not (here / "finish").exists():
    step += 1
    (here / "trains").touch()
    time.sleep(0.02)
"""


@pytest.fixture
def crowded(store_url: str, tmp_path: Path) -> Iterator[Site]:
    """Return a site with one card of 8G, where urgent jobs preempt low ones."""
    made = Site(
        tmp_path / "state",
        store_url,
        GPUQUEUE_PREEMPT="urgent: low",
        GPUQUEUE_PREEMPT_AFTER="0.1s",
        GPUQUEUE_PREEMPT_GRACE="60s",
    )
    made.start_recorder()
    yield made
    made.stop()


def train(site: Site, here: Path) -> int:
    """Submit the training job and wait until it trains."""
    words = ("submit", "--mem", "6G", "--priority", "low", "--", sys.executable, "-c", TRAINS, str(here))
    job_id = int(site.cli(*words).stdout)
    until((here / "trains").exists, what=f"the training\n{site.log()[-2000:]}")
    return job_id


def push_in(site: Site, *command: str) -> int:
    """Submit a job that preempts the training."""
    return int(site.cli("submit", "--mem", "7G", "--priority", "urgent", "--", *(command or ("true",))).stdout)


@pytest.mark.full
def test_a_preempted_training_continues_from_its_checkpoint(crowded: Site, tmp_path: Path) -> None:
    """A preempted job saves its state, exits, and continues from there when the memory is free.

    It is neither failed nor lost, and the history has the preemption.
    """
    crowded.start_worker()
    training = train(crowded, tmp_path)
    urgent = push_in(crowded)
    until((tmp_path / "saved").exists, what=f"the request\n{crowded.log()[-2000:]}")
    assert JobState.QUEUED is crowded.client.jobs.get(urgent).state
    (tmp_path / "leave").touch()

    assert JobState.SUCCEEDED is crowded.until_recorded(urgent).job.state
    (tmp_path / "finish").touch()
    record = crowded.until_recorded(training)

    assert str(urgent) == (tmp_path / "saved").read_text()
    assert (JobState.SUCCEEDED, 2, 0) == (record.job.state, record.job.attempt, record.job.losses)
    assert [f"preempted: preempted for job {urgent}", "exit 0"] == [str(run.ending) for run in record.runs]
    step = (tmp_path / "step").read_text()
    assert (tmp_path / f"begun-2-{step}").exists(), "it went on where it had saved"
    shown = crowded.cli("show", str(training)).stdout
    assert f"preemption requested for job {urgent}, in " in shown
    assert f"preempted: preempted for job {urgent}" in shown
    reported = json.loads(crowded.cli("history", "--json").stdout)
    endings = [run["ending"]["kind"] for row in reported if row["job"]["id"] == training for run in row["runs"]]
    assert ["preempted", "exited"] == endings
    assert not list(crowded.settings.runs_dir.glob("[0-9]*/*/preempt.json"))


@pytest.mark.full
def test_a_worker_killed_during_the_grace_changes_nothing(crowded: Site, tmp_path: Path) -> None:
    """A worker killed during a preemption's grace changes nothing.

    The shim goes on, the next worker settles the run as preempted, and the preempting job gets the memory.
    """
    worker = crowded.start_worker()
    training = train(crowded, tmp_path)
    urgent = push_in(crowded)
    until((tmp_path / "saved").exists)
    crowded.end(worker, signal.SIGKILL)
    (tmp_path / "leave").touch()
    until(lambda: list(crowded.settings.runs_dir.glob(f"{training}/*/exit")), what="the shim's last word")
    assert JobState.RUNNING is crowded.client.jobs.get(training).state

    crowded.start_worker()

    assert JobState.SUCCEEDED is crowded.until_recorded(urgent).job.state
    (tmp_path / "finish").touch()
    record = crowded.until_recorded(training)
    assert [f"preempted: preempted for job {urgent}", "exit 0"] == [str(run.ending) for run in record.runs]
    assert 0 == record.job.losses


@pytest.mark.full
def test_a_worker_that_was_not_there_passes_the_word_on_when_it_is(crowded: Site, tmp_path: Path) -> None:
    """A worker that was down passes a preemption on when it is back.

    It missed the message on the wake-up channel, and its first heartbeats bring the request.
    """
    worker = crowded.start_worker()
    training = train(crowded, tmp_path)
    crowded.end(worker, signal.SIGKILL)
    urgent = push_in(crowded)
    until(lambda: crowded.queue.jobs.why(urgent).start.blockers == (training,), what="the recorder's tick")  # type: ignore[union-attr]
    until(lambda: "is being preempted" in crowded.log())
    assert not (tmp_path / "saved").exists()

    crowded.start_worker()

    until((tmp_path / "saved").exists)
    (tmp_path / "leave").touch()
    assert JobState.SUCCEEDED is crowded.until_recorded(urgent).job.state


@pytest.mark.full
def test_a_cancel_during_the_grace_ends_the_job_for_good(crowded: Site, tmp_path: Path) -> None:
    """A job that is cancelled during a preemption's grace does not run again."""
    crowded.start_worker()
    training = train(crowded, tmp_path)
    urgent = push_in(crowded)
    until((tmp_path / "saved").exists)

    crowded.cli("cancel", str(training))

    record = crowded.until_recorded(training)
    assert (JobState.CANCELLED, "cancelled") == (record.job.state, str(record.runs[-1].ending))
    assert JobState.SUCCEEDED is crowded.until_recorded(urgent).job.state
    assert 1 == len(record.runs)
