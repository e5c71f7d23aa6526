"""A command reads an ended job from the store and the history while the recorder moves its end between them."""

from __future__ import annotations

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
from workers.services.recorder import Recorder

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
