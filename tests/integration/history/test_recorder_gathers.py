"""In a row of jobs the recorder writes what comes within a moment in one go; of a single job each step as it comes."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from factories import make_spec, must_claim, serve

from gpuqueue.history.database import Book
from gpuqueue.model.job import JobState
from gpuqueue.model.run import Ending
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.settings.settings import Settings
from workers.services import recorder as of_recorder
from workers.services.recorder import GATHER_S, Recorder


class Stopping(threading.Event):
    """What the loop asks whether to stop. In its first pause *act* happens, after the second it is to stop."""

    def __init__(self, act: Callable[[], None]) -> None:
        super().__init__()
        self._act = act
        self.pauses_s: list[float | None] = []
        self._turns = 0

    def is_set(self) -> bool:
        """Return whether it is set; a loop that never pauses ends as well."""
        self._turns += 1
        return super().is_set() or self._turns > 3

    def wait(self, timeout: float | None = None) -> bool:
        """Return at once."""
        self.pauses_s.append(timeout)
        if len(self.pauses_s) == 1:
            self._act()
        else:
            self.set()
        return super().is_set()


def through(queue: JobQueue) -> None:
    """Take one job through its life: four events."""
    job_id, claimed = queue.submit(make_spec()).id, must_claim(queue)
    queue.started(job_id, claimed.token, lease_s=300, log_path="/l", devices=())
    ended = Ending.from_status(0)
    queue.finish(job_id, claimed.token, state=JobState.SUCCEEDED, ending=ended, duration_s=1.0, devices=())


def test_a_row_of_short_jobs_is_written_in_few_transactions(
    queue: JobQueue, book: Book, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each event was written as it came: the recorder took more of the processors than all jobs, and they waited."""
    serve(queue)
    batches: list[int] = []
    apply = book.apply
    monkeypatch.setattr(book, "apply", lambda events, **where: batches.append(len(events)) or apply(events, **where))
    monkeypatch.setattr(of_recorder, "WAIT_S", 0.0)
    through(queue)
    stopping = Stopping(lambda: [through(queue) for _ in range(5)] and None)

    Recorder(Settings.load({}), queue, book).loop(stopping)

    assert [GATHER_S, GATHER_S] == stopping.pauses_s
    assert [4, 20] == batches


def test_a_full_batch_is_followed_at_once(queue: JobQueue, book: Book, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is more already: who has fallen behind must not rest."""
    serve(queue)
    monkeypatch.setattr(of_recorder, "BATCH", 4)
    monkeypatch.setattr(of_recorder, "WAIT_S", 0.0)
    for _ in range(2):
        through(queue)
    stopping = Stopping(lambda: None)

    Recorder(Settings.load({}), queue, book).loop(stopping)

    assert [] == stopping.pauses_s
    assert 0 == queue.backlog()[0]


def test_what_was_waited_for_is_not_followed_by_a_pause(
    queue: JobQueue, book: Book, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The steps of a single job come one by one: its end must not wait because its start was written a moment ago."""
    recorder, stopping = Recorder(Settings.load({}), queue, book), Stopping(lambda: None)
    monkeypatch.setattr(recorder, "mend", lambda: None)
    asked: list[float] = []
    monkeypatch.setattr(recorder, "record", lambda wait_s: asked.append(wait_s) or (len(asked) < 8 and wait_s > 0))
    recorder.loop(stopping)

    assert [] == stopping.pauses_s
    assert of_recorder.WAIT_S in asked
