"""Runs that hold memory and do not use their cards, on the fake driver: the mark, the warnings, and what follows."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from bounded import until
from fake_driver.fake_driver import BY_PROCESS, FakeGpus, build, compiler
from site_of_one import Site

from gpuqueue.model.job import JobState
from gpuqueue.model.run import NO_USE, EndingKind
from gpuqueue.text.units import GIB

SUPPORT = Path(__file__).parents[3] / "support"
#: Holds a gibibyte on its card until the gate file is there.
JOB = """
import pathlib, sys, time
sys.path.insert(0, {tests!r})
from fake_driver.fake_driver import FakeGpus
FakeGpus.here().hold_here(2**30)
while not pathlib.Path({gate!r}).exists():
    time.sleep(0.02)
"""


@pytest.fixture
def fake(tmp_path: Path) -> FakeGpus:
    """Return the state of a fake driver with one 24 GiB card that does nothing."""
    return FakeGpus.create(tmp_path / "gpus", (24 * GIB,))


def site_of(tmp_path: Path, store_url: str, fake: FakeGpus, **settings: str) -> Site:
    """Return a site on the fake driver that marks a run after a second without use."""
    if compiler() is None:
        pytest.skip("no C compiler to build the fake driver with")
    made = Site(tmp_path / "state", store_url, GPUQUEUE_DEVICES="auto", GPUQUEUE_IDLE_AFTER="1s", **settings)
    made.environ.update(fake.environ(build(tmp_path)))
    return made


@pytest.fixture
def marking(tmp_path: Path, store_url: str, fake: FakeGpus) -> Iterator[Site]:
    """Return a site that only marks idle runs."""
    made = site_of(tmp_path, store_url, fake)
    yield made
    made.stop()


@pytest.fixture
def ending(tmp_path: Path, store_url: str, fake: FakeGpus) -> Iterator[Site]:
    """Return a site that ends idle runs two seconds after the mark."""
    made = site_of(tmp_path, store_url, fake, GPUQUEUE_IDLE_ACTION="end", GPUQUEUE_IDLE_GRACE="2s")
    yield made
    made.stop()


def submit(site: Site, gate: Path) -> int:
    """Submit a job that holds memory until the file *gate* is there."""
    script = gate.with_suffix(".py")
    script.write_text(JOB.format(tests=str(SUPPORT), gate=str(gate)))
    return int(site.cli("submit", "--mem", "6G", "--", sys.executable, str(script)).stdout)


def is_idle(site: Site, job_id: int) -> bool:
    """Return whether the queue has the job marked as idle."""
    job = site.queue.jobs.get(job_id)
    return job is not None and job.idle_since is not None


def test_an_idle_run_is_marked_until_it_uses_its_card(marking: Site, fake: FakeGpus, tmp_path: Path) -> None:
    """A run that holds memory and does not use its card is marked, its log says so, and it goes on.

    The mark is gone once it uses the card.
    """
    marking.start_worker()
    job_id = submit(marking, tmp_path / "gate")

    until(lambda: is_idle(marking, job_id), what="the mark")
    assert NO_USE in marking.cli("logs", str(job_id)).stdout
    assert "idle" in marking.cli("queue").stdout
    fake.state.gpus[0].utilisation = 40
    until(lambda: not is_idle(marking, job_id), what="the end of the mark")

    (tmp_path / "gate").touch()
    assert JobState.SUCCEEDED is marking.until_state(job_id, JobState.SUCCEEDED, JobState.FAILED).state


@pytest.mark.full
def test_the_site_ends_an_idle_run_after_two_warnings(ending: Site, tmp_path: Path) -> None:
    """The owner is warned at the mark and before the end, and the run has an ending of its own, counted apart."""
    ending.start_recorder()
    ending.start_worker()

    record = ending.until_recorded(submit(ending, tmp_path / "gate"))

    run = record.last_run
    assert run is not None
    assert run.ending is not None
    assert (JobState.FAILED, EndingKind.IDLE, 1) == (record.job.state, run.ending.kind, len(record.runs))
    assert run.ending.detail.startswith(NO_USE)
    notes = [note.text for note in record.notes]
    assert 3 == len(notes), notes
    assert ["it is ended in", "it is ended in", "the site ends such jobs"] == [
        " ".join(note.partition(": ")[2].split()[:4]) if "ended" in note else note.partition(": ")[2] for note in notes
    ]
    log = ending.cli("logs", str(record.job.id)).stdout
    assert all(f"gpuqueue: {note}" in log for note in notes)
    assert 1 == ending.client.history.stats().total.idle


@pytest.mark.full
def test_unknown_use_never_marks_a_run(marking: Site, fake: FakeGpus, tmp_path: Path) -> None:
    """Beside another process, on a driver without figures by process, the use of a run is unknown: it is not marked.

    Its time without use begins when it is alone.
    """
    fake.state.missing = BY_PROCESS
    fake.hold(0, os.getpid(), GIB)
    marking.start_worker()
    started_at = marking.until_state(submit(marking, tmp_path / "gate"), JobState.RUNNING).started_at
    assert started_at is not None
    until(lambda: marking.queue.jobs.page().at - started_at > timedelta(seconds=3), what="three seconds of the run")
    (job,) = marking.queue.jobs.live()
    assert job.idle_since is None

    alone_at = marking.queue.jobs.page().at
    fake.let_go(0, os.getpid())
    until(lambda: is_idle(marking, job.id), what="the mark once the run is alone")

    (idle,) = marking.queue.jobs.live()
    assert idle.idle_since is not None
    assert idle.idle_since >= alone_at - timedelta(seconds=1.5), "a sample is as old as the pause between two"
