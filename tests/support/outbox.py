"""An outbox for tests of the history: it makes events as the queue would, with growing ids and times."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from factories import make_spec

from gpuqueue.codec.request import encode_ended, encode_spec, encode_started
from gpuqueue.model.device import DeviceKind, Peak, PeakSource
from gpuqueue.model.event import Act, Cursor, Event
from gpuqueue.model.history_query import HistoryQuery
from gpuqueue.model.job import JobState
from gpuqueue.model.job_spec import JobSpec
from gpuqueue.model.run import Ending, Record, RunDevice, RunNote, state_after
from gpuqueue.text.units import GIB

if TYPE_CHECKING:
    from gpuqueue.history.database import HistoryDatabase

T0 = datetime(2026, 11, 1, 12, 0, 0, 123000, tzinfo=timezone.utc)
#: The token of a job's first run.
RUN = "1.a"
PEAK = Peak(bytes=3 * GIB, source=PeakSource.NVML_SAMPLED, samples=9, na_samples=1, interval_s=0.5, shared=False)


class Outbox:
    """Makes events with growing ids and times, and keeps them until the history has them."""

    def __init__(self, database: HistoryDatabase) -> None:
        self.database = database
        self.reported: list[Event] = []
        self.number = 0
        self.cursor: Cursor | None = None

    def report(self, job_id: int, act: Act, state: JobState, **given: Any) -> None:
        """Add one event; arguments that are no column of an event become its fields."""
        self.number += 1
        columns: dict[str, Any] = {name: given.pop(name) for name in ("attempt", "losses", "reason") if name in given}
        event: dict[str, Any] = {"attempt": 1, **columns, "job_id": job_id, "act": act, "state": state, "fields": given}
        self.reported.append(Event(id=f"1700-{self.number}", at=T0 + timedelta(seconds=self.number), **event))

    def submit(self, job_id: int, spec: JobSpec | None = None) -> None:
        """Add the submit of a job."""
        payload = encode_spec(spec or make_spec())
        self.report(job_id, Act.SUBMIT, JobState.QUEUED, attempt=0, spec=payload)

    def claim(self, job_id: int, token: str = RUN, devices: str = "GPU-0", **given: Any) -> None:
        """Add the claim of a job."""
        fields = {"token": token, "host": "nodeA", "worker": "w0", "devices": devices, "lease": str(GIB)}
        self.report(job_id, Act.CLAIM, JobState.STARTING, **fields, **given)

    def started(self, job_id: int, token: str = RUN, devices: str = "GPU-0", **given: Any) -> None:
        """Add the start of a job's process."""
        payload = encode_started(log_path="/log", devices=facts(devices, Peak.unknown()))
        self.report(job_id, Act.STARTED, JobState.RUNNING, token=token, started=payload, **given)

    def finish(self, job_id: int, ending: Ending, state: JobState, devices: str = "GPU-0", **given: Any) -> None:
        """Add the end of a job's run."""
        payload = encode_ended(ending=ending, duration_s=1.5, devices=facts(devices, PEAK))
        self.report(job_id, Act.FINISH, state, token=given.pop("token", RUN), ended=payload, **given)

    def run(
        self,
        job_id: int,
        devices: tuple[RunDevice, ...],
        ending: Ending,
        *,
        attempt: int = 1,
        state: JobState | None = None,
        duration_s: float | None = 1.5,
        claimed: Mapping[str, Any] | None = None,
        notes: tuple[RunNote, ...] = (),
        **ended: Any,
    ) -> None:
        """Add a run on these devices, from its claim to its end. *claimed* and *ended* are more fields of those events.

        The state is that after the ending, unless another one is given.
        """
        given = {"attempt": attempt, "token": f"{attempt}.a"}
        claim = {"host": "nodeA", "worker": "w0", "lease": str(devices[0].lease_bytes), **(claimed or {})}
        uuids = ",".join(each.uuid for each in devices)
        self.report(job_id, Act.CLAIM, JobState.STARTING, devices=uuids, **claim, **given)
        started = encode_started(log_path="/log", devices=devices)
        self.report(job_id, Act.STARTED, JobState.RUNNING, started=started, **given)
        payload = encode_ended(ending=ending, duration_s=duration_s, devices=devices, notes=notes)
        self.report(job_id, Act.FINISH, state or state_after(ending), ended=payload, **ended, **given)

    def record(self, batch: int | None = None) -> None:
        """Write all events into the history, *batch* events at a time."""
        size = batch or len(self.reported)
        while self.reported:
            events, self.reported = self.reported[:size], self.reported[size:]
            assert self.database.apply(events, expected=self.cursor, epoch="e1")
            self.cursor = Cursor(epoch="e1", last_id=events[-1].id)


def facts(uuids: str, peak: Peak) -> tuple[RunDevice, ...]:
    """Return what a worker reports of its devices."""
    return tuple(
        RunDevice(uuid=uuid, lease_bytes=GIB, index=7, name="A10", kind=DeviceKind.GPU, total_bytes=24 * GIB, peak=peak)
        for uuid in uuids.split(",")
    )


def known(database: HistoryDatabase, job_id: int) -> Record:
    """Return the record of a job that must be in the history."""
    record = database.get(job_id)
    assert record is not None
    return record


def ids(database: HistoryDatabase, **query: Any) -> list[int]:
    """Return the ids of the jobs that match."""
    return [record.job.id for record in database.history(HistoryQuery(**query))]


def second(number: int) -> datetime:
    """Return the time of the event with that number."""
    return T0 + timedelta(seconds=number)
