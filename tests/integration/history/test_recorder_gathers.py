"""The recorder batches the events of many short jobs, and writes the events of a single job as they come."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from factories import make_spec, must_claim, serve

from gpuqueue.history.database import HistoryDatabase
from gpuqueue.model.job import JobState
from gpuqueue.model.run import Ending
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.settings.settings import Settings
from workers.services import recorder as of_recorder
from workers.services.recorder import GATHER_S, Recorder


class Stopping(threading.Event):
    """A stop event for the loop. *act* runs in its first pause, and its second pause sets it."""

    def __init__(self, act: Callable[[], None]) -> None:
        super().__init__()
        self._act = act
        self.pauses_s: list[float | None] = []
        self._turns = 0

    def is_set(self) -> bool:
        """Return whether the event is set. A loop that never pauses ends as well."""
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
    """Run one job completely, which makes four events."""
    job_id, claimed = queue.requests.submit(make_spec()).id, must_claim(queue)
    queue.runs.started(job_id, claimed.token, lease_s=300, log_path="/l", devices=())
    ended = Ending.from_status(0)
    queue.runs.finish(job_id, claimed.token, state=JobState.SUCCEEDED, ending=ended, duration_s=1.0, devices=())


def test_a_row_of_short_jobs_is_written_in_few_transactions(
    queue: JobQueue, database: HistoryDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many short jobs are written in few transactions.

    Regression: each event was written as it came, so the recorder used more CPU than all jobs and slowed them down.
    """
    serve(queue)
    batches: list[int] = []
    apply = database.apply
    monkeypatch.setattr(
        database, "apply", lambda events, **where: batches.append(len(events)) or apply(events, **where)
    )
    monkeypatch.setattr(of_recorder, "WAIT_S", 0.0)
    through(queue)
    stopping = Stopping(lambda: [through(queue) for _ in range(5)] and None)

    Recorder(Settings.load({}), queue, database).loop(stopping)

    assert [GATHER_S, GATHER_S] == stopping.pauses_s
    assert [4, 20] == batches


def test_a_full_batch_is_followed_at_once(
    queue: JobQueue, database: HistoryDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full batch is followed by the next one at once: a recorder that is behind must not pause."""
    serve(queue)
    monkeypatch.setattr(of_recorder, "BATCH", 4)
    monkeypatch.setattr(of_recorder, "WAIT_S", 0.0)
    for _ in range(2):
        through(queue)
    stopping = Stopping(lambda: None)

    Recorder(Settings.load({}), queue, database).loop(stopping)

    assert [] == stopping.pauses_s
    assert 0 == queue.outbox.backlog()[0]


def test_what_was_waited_for_is_not_followed_by_a_pause(
    queue: JobQueue, database: HistoryDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An event that the recorder waited for is not followed by a pause.

    A single job's events come one by one, and its end must not wait because its start was just written.
    """
    recorder, stopping = Recorder(Settings.load({}), queue, database), Stopping(lambda: None)
    monkeypatch.setattr(recorder, "mend", lambda: None)
    asked: list[float] = []
    monkeypatch.setattr(recorder, "record", lambda wait_s: asked.append(wait_s) or (len(asked) < 8 and wait_s > 0))
    recorder.loop(stopping)

    assert [] == stopping.pauses_s
    assert of_recorder.WAIT_S in asked
