"""Runs that look wrong, with a real worker: they are marked, or ended where their submitter wants that."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from bounded import until
from fake_driver.fake_driver import FakeGpus, build, compiler
from site_of_one import Site

from gpuqueue.model.job import JobState
from gpuqueue.model.run import EndingKind, Record
from gpuqueue.text.units import GIB
from workers.run.directory import unsettled

#: Prints metrics until the file `stop` is there; the loss is what the file `loss` says.
TRAINS = """
import os, time
step = 0
while not os.path.exists("stop"):
    print(f"metric: loss={open('loss').read()} step={step}", flush=True)
    step += 1
    time.sleep(0.05)
"""


@pytest.fixture
def site(store_url: str, tmp_path: Path) -> Iterator[Site]:
    """Return a site with a recorder that gives a worker minutes to come back."""
    made = Site(tmp_path / "state", store_url, GPUQUEUE_HOST_LOST_AFTER="5m")
    (tmp_path / "train.py").write_text(TRAINS)
    (tmp_path / "loss").write_text("0.5")
    made.start_recorder()
    yield made
    made.stop()


def submit(site: Site, where: Path, *words: str) -> int:
    """Submit a command with options before `--`, and return its id."""
    return int(site.cli("submit", "--no-git", "--cwd", str(where), "--mem", "1M", *words).stdout.split()[0])


def kinds(site: Site, job_id: int) -> list[str]:
    """Return the kinds of the marks that the queue has of the job."""
    job = site.queue.jobs.get(job_id)
    return [] if job is None else [each.kind for each in job.marks]


def ending_of(record: Record) -> tuple[JobState, EndingKind, int]:
    """Return the state of a job, the ending of its last run, and the number of its runs."""
    assert record.last_run is not None
    assert record.last_run.ending is not None
    return record.job.state, record.last_run.ending.kind, len(record.runs)


def test_a_run_with_a_loss_that_is_no_number_is_marked_and_goes_on(site: Site, tmp_path: Path) -> None:
    """The mark is in `queue`, `show` and `--json`, in the log, and later in the history."""
    site.start_worker()
    job = submit(site, tmp_path, "--", sys.executable, "train.py")
    site.until_state(job, JobState.RUNNING)
    (tmp_path / "loss").write_text("nan")

    until(lambda: kinds(site, job) == ["nan"], what="the mark")
    assert " NaN " in site.cli("queue").stdout
    assert ": loss is NaN at step " in site.cli("show", str(job)).stdout
    (plain,) = json.loads(site.cli("queue", "--json").stdout)["jobs"]
    (mark,) = plain["marks"]
    assert ("nan", "NaN", None, None) == (mark["kind"], mark["brief"], mark["until"], plain["idle_since"])
    assert mark["words"].startswith("loss is NaN at step ")

    (tmp_path / "stop").touch()
    record = site.until_recorded(job)
    assert (JobState.SUCCEEDED, EndingKind.EXITED, 1) == ending_of(record)
    assert record.last_run is not None
    assert [("nan", None)] == [(each.kind, each.until) for each in record.last_run.marks]
    assert [f"gpuqueue: {mark['words']}"] == [
        line for line in site.cli("logs", str(job)).stdout.splitlines() if line.startswith("gpuqueue: ")
    ]
    assert "  marked     loss is NaN at step " in site.cli("show", str(job)).stdout
    assert "nan" in site.cli("history", "--columns", "id,marks").stdout.split()


@pytest.mark.promise("P4")
def test_the_next_worker_ends_a_run_with_a_nan_after_a_kill(site: Site, tmp_path: Path) -> None:
    """The rule is in the claim of the run. It fails without a retry, whatever is to be retried."""
    worker = site.start_worker()
    options = ("--stop-on-nan", "--retries", "3", "--retry-on", "any")
    job = submit(site, tmp_path, *options, "--", sys.executable, "train.py")
    site.until_state(job, JobState.RUNNING)

    def has_read() -> bool:
        (directory,) = unsettled(site.settings.runs_dir)
        plain = directory.meters()
        return plain is not None and plain.has("values")

    until(has_read, what="a metric in the figures of the run")
    site.end(worker, signal.SIGKILL)
    (tmp_path / "loss").write_text("nan")
    site.start_worker()

    record = site.until_recorded(job)
    assert (JobState.FAILED, EndingKind.NAN, 1) == ending_of(record)
    assert record.last_run is not None
    assert str(record.last_run.ending).startswith("nan: loss is NaN at step ")
    assert ["nan"] == [each.kind for each in record.last_run.marks]
    assert "it is ended (--stop-on-nan)" in site.cli("logs", str(job)).stdout


def test_a_stalled_run_is_marked_and_ended_and_retried(store_url: str, tmp_path: Path) -> None:
    """It has used its card and printed, and then does neither. The ending counts as a failure for retries."""
    if compiler() is None:
        pytest.skip("no C compiler to build the fake driver with")
    fake = FakeGpus.create(tmp_path / "gpus", (24 * GIB,))
    fake.state.gpus[0].utilisation = 40
    site = Site(tmp_path / "state", store_url, GPUQUEUE_DEVICES="auto", GPUQUEUE_STALLED_AFTER="1s")
    site.environ.update(fake.environ(build(tmp_path)))
    (tmp_path / "hangs.py").write_text(
        f"import sys, time\nsys.path.insert(0, {str(Path(__file__).parents[3] / 'support')!r})\n"
        "from fake_driver.fake_driver import FakeGpus\n"
        "FakeGpus.here().hold_here(2**20)\nprint('begun', flush=True)\ntime.sleep(600)\n"
    )
    try:
        site.start_recorder()
        site.start_worker()
        options = ("--stop-when-stalled", "3s", "--retries", "1")
        job = submit(site, tmp_path, *options, "--", sys.executable, "hangs.py")
        until(lambda: "begun" in site.cli("logs", str(job), check=False).stdout, what="the first line")

        def was_used() -> bool:
            (directory,) = unsettled(site.settings.runs_dir)
            saved = directory.path / "meters"  # until the first save the figures are in another file
            return saved.exists() and '"was_used": true' in saved.read_text()

        until(was_used, what="the use of the card")
        fake.state.gpus[0].utilisation = 0

        until(lambda: "stalled" in kinds(site, job), what="the mark")
        assert " stalled " in site.cli("queue").stdout
        until(lambda: (site.queue.jobs.get(job) or pytest.fail("the job is gone")).retries == 1, what="the retry")
    finally:
        site.cli("cancel", str(job), check=False)
        site.stop()


def test_a_run_that_goes_on_shows_its_figures_since_its_start(site: Site, tmp_path: Path) -> None:
    """Also the worker that adopts it writes them. After the end the history has them, and the file counts no more."""
    first = site.start_worker()
    job = submit(site, tmp_path, "--", sys.executable, "train.py")
    site.until_state(job, JobState.RUNNING)

    until(lambda: "metric     loss 0.5" in site.cli("show", str(job)).stdout, what="the metric")
    shown = json.loads(site.cli("show", str(job), "--json").stdout)["runs"][-1]
    assert "loss" == shown["values"]["metrics"][0]["name"]
    first.kill()
    first.wait()
    (tmp_path / "loss").write_text("0.25")
    site.start_worker()
    until(lambda: "0.25" in site.cli("show", str(job)).stdout, what="the metric after the adoption")
    (tmp_path / "stop").touch()
    site.until_state(job, JobState.SUCCEEDED)
    assert site.client.logs.figures(job) is None
