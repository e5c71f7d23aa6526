"""The events of jobs that skip the store: :mod:`benchmarks.bench_scale` has the history write them.

They are the events that the scripts emit, in the same order and with the same texts, and go through the history's own
writer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

from benchmarks.scale_site import CARD_BYTES, DEVICES, HOSTS, specs
from gpuqueue.clock import from_epoch_ms
from gpuqueue.codec.request import encode_ended, encode_spec, encode_started
from gpuqueue.model.device import DeviceKind, Peak, PeakSource
from gpuqueue.model.event import Act, Cursor, Event
from gpuqueue.model.job import JobState
from gpuqueue.model.run import Ending, RunDevice

if TYPE_CHECKING:
    from gpuqueue.history.database import HistoryDatabase

#: The recorder's batch size.
BATCH = 500
LEASE_BYTES = CARD_BYTES // 4


class MadeHours:
    """Writes hours of ended jobs into a history, from the recorder's position on."""

    def __init__(self, database: HistoryDatabase) -> None:
        self._database = database
        self._specs = [encode_spec(spec) for spec in specs()]
        self._texts = [_texts(number) for number in range(HOSTS * DEVICES)]

    def write(self, jobs: int, *, first_id: int, begin_ms: int, span_ms: int) -> int:
        """Write *jobs* jobs that ended one after the other in *span_ms*; return the number of events."""
        cursor = self._database.cursor()
        if cursor is None:
            raise RuntimeError("nothing was ever recorded")
        batch: list[Event] = []
        for number in range(jobs):
            batch += self._job(first_id + number, begin_ms + span_ms * number // jobs)
            if len(batch) >= BATCH:
                cursor = self._apply(batch, cursor)
                batch = []
        if batch:
            self._apply(batch, cursor)
        return 4 * jobs

    def _apply(self, batch: list[Event], cursor: Cursor) -> Cursor:
        ms, _, last = cursor.last_id.partition("-")
        events = [replace(event, id=f"{ms}-{int(last) + place}") for place, event in enumerate(batch, 1)]
        if not self._database.apply(events, expected=cursor, epoch=cursor.epoch):
            raise RuntimeError("somebody else writes into this history")
        return Cursor(epoch=cursor.epoch, last_id=events[-1].id)

    def _job(self, job_id: int, at_ms: int) -> Iterator[Event]:
        host, place = divmod(job_id % len(self._texts), DEVICES)
        started, ended = self._texts[job_id % len(self._texts)]
        token, uuid = {"token": f"1.{job_id:x}"}, f"sim-node{host}-{place}"
        claim = {**token, "host": f"node{host}", "worker": uuid, "devices": uuid, "lease": str(LEASE_BYTES)}
        steps = (
            (Act.SUBMIT, JobState.QUEUED, {"spec": self._specs[job_id % len(self._specs)]}),
            (Act.CLAIM, JobState.STARTING, claim),
            (Act.STARTED, JobState.RUNNING, {**token, "started": started}),
            (Act.FINISH, JobState.SUCCEEDED, {**token, "ended": ended}),
        )
        for step, (act, state, fields) in enumerate(steps):
            at = from_epoch_ms(at_ms + 1000 * step)
            yield _event(act, job_id, state, at, fields)


def _event(act: Act, job_id: int, state: JobState, at: datetime, fields: dict[str, str]) -> Event:
    attempt = 0 if act is Act.SUBMIT else 1
    return Event(id="0-0", act=act, job_id=job_id, state=state, at=at, attempt=attempt, fields=fields)


def _texts(number: int) -> tuple[str, str]:
    """Return the payloads of the start and the end of a run on the device *number*."""
    host, place = divmod(number, DEVICES)
    peak = Peak(bytes=LEASE_BYTES // 2, source=PeakSource.SIMULATED, samples=10, interval_s=1.0, shared=False)
    before = RunDevice(
        uuid=f"sim-node{host}-{place}",
        lease_bytes=LEASE_BYTES,
        index=place,
        name="Simulated 32G",
        kind=DeviceKind.SIMULATED,
        total_bytes=CARD_BYTES,
    )
    after = replace(before, peak=peak)
    started = encode_started(log_path="/state/runs/1/1.a/log", devices=(before,))
    return started, encode_ended(ending=Ending.from_status(0), duration_s=23.0, devices=(after,))
