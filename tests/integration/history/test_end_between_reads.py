"""A command reads an ended job from the store and the history while the recorder moves its end between them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from factories import make_spec, must_claim, serve

from gpuqueue.client.connection import Connection
from gpuqueue.client.reads import newest, show
from gpuqueue.history.database import HistoryDatabase
from gpuqueue.model.device import Peak, PeakSource
from gpuqueue.model.job import JobState
from gpuqueue.model.run import Ending, Record, RunDevice
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.settings.settings import Settings
from gpuqueue.text.units import GIB
from workers.services import recorder as of_recorder
from workers.services.recorder import GATHER_S, Recorder

PEAK = Peak(bytes=GIB // 2, source=PeakSource.NVML_SAMPLED, samples=50)
DEVICE = RunDevice(uuid="GPU-0", lease_bytes=GIB)


class RecordedMeanwhile(Connection):
    """A connection whose first read of the history comes just before the recorder works."""

    recorder: Recorder
    reads = 0

    def recorded(self, job_id: int) -> Record | None:
        """Read the history; after the first read, record all that has happened."""
        found = super().recorded(job_id)
        self.reads += 1
        if self.reads == 1:
            while self.recorder.record(0):
                pass
        return found


@pytest.fixture
def connection(queue: JobQueue, database: HistoryDatabase, store_url: str) -> Iterator[RecordedMeanwhile]:
    """Return a connection to a store and a history that a recorder has made ready."""
    settings = Settings.load({"GPUQUEUE_REDIS_URL": store_url})
    connection = RecordedMeanwhile(settings, database=database)
    connection.recorder = Recorder(settings, queue, database)
    connection.recorder.mend()
    yield connection
    connection.close()


@pytest.mark.parametrize("read", [show, newest])
@pytest.mark.parametrize("start_is_recorded", [False, True])
def test_the_end_of_a_run_is_not_missed(
    queue: JobQueue,
    connection: RecordedMeanwhile,
    *,
    read: Callable[[Connection, int], Record],
    start_is_recorded: bool,
) -> None:
    """The record has the run's end and peak, although the history lacked them when it was read and the store after it.

    ``gpuqueue wait 12; gpuqueue show 12`` once showed no peak if the recorder worked at that moment.
    """
    serve(queue)
    job_id = queue.requests.submit(make_spec()).id
    token = must_claim(queue).token
    queue.runs.started(job_id, token, lease_s=300, log_path="/runs/log", devices=(DEVICE,))
    while start_is_recorded and connection.recorder.record(0):
        pass
    assert queue.runs.finish(
        job_id,
        token,
        state=JobState.SUCCEEDED,
        ending=Ending.from_status(0),
        duration_s=1.0,
        devices=(replace(DEVICE, peak=PEAK),),
    )

    record = read(connection, job_id)

    assert queue.jobs.get(job_id) is None, "the recorder worked between the reads"
    assert JobState.SUCCEEDED is record.job.state
    (run,) = record.runs
    assert (Ending.from_status(0), PEAK) == (run.ending, run.devices[0].peak)


# ---- The recorder batches the events of many short jobs, and writes the events of a single job as they come ----------


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
