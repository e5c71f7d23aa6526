"""What jobs reported, in the history: the same from both databases, in records, lists and as an order of pages."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from factories import make_spec
from outbox import PEAK, Outbox, facts, ids, known

from gpuqueue.codec.request import encode_ended
from gpuqueue.history.connect import reading
from gpuqueue.history.database import HistoryDatabase
from gpuqueue.history.tables import run_curves, run_metrics
from gpuqueue.model.event import Act
from gpuqueue.model.history_query import HistoryQuery
from gpuqueue.model.job import JobState
from gpuqueue.model.job_values import JobValues, Metric, Reported
from gpuqueue.model.run import Ending


def metric(name: str, last: float | str, **more: Any) -> Metric:
    """Return a metric with this last value."""
    reported = Reported(value=last, after_s=1.5, step=3)
    return Metric(name=name, count=1, last=reported, min=reported, max=reported, **more)


class ValuesOutbox(Outbox):
    """An outbox whose runs have reported values."""

    def ran(
        self, job_id: int, values: JobValues | None, attempt: int = 1, state: JobState = JobState.SUCCEEDED
    ) -> None:
        """Add a run from its claim to its end."""
        token = f"{attempt}.a"
        self.claim(job_id, token=token, attempt=attempt)
        self.started(job_id, token=token, attempt=attempt)
        ended = encode_ended(ending=Ending.from_status(0), duration_s=1.5, devices=facts("GPU-0", PEAK), values=values)
        self.report(job_id, Act.FINISH, state, token=token, attempt=attempt, ended=ended)


def recorded(database: HistoryDatabase, *lasts: float | str | None) -> ValuesOutbox:
    """Record a job for each last value of the metric ``acc``, with ids from 1 on; None: it reported nothing."""
    outbox = ValuesOutbox(database)
    for number, last in enumerate(lasts, 1):
        outbox.submit(number, make_spec(argv=("python", "train.py")))
        outbox.ran(number, None if last is None else JobValues(metrics=(metric("acc", last), metric("b", 7.0))))
    outbox.record()
    return outbox


def test_values_come_back_as_they_were_reported(database: HistoryDatabase) -> None:
    """Texts of any kind, NaN and infinity are kept. Lists omit the curves. Recording twice changes nothing."""
    values = JobValues(
        metrics=(
            metric("acc", 0.1234567890123, curve=((0.5, None, 0.1), (1.5, 3, "NaN"))),
            Metric(
                name="loss",
                count=2,
                last=Reported(value="NaN", after_s=2.0),
                max=Reported(value="Infinity", after_s=1.0),
            ),
        ),
        params={"lr": "1e-3", "text": "ä\0\udc80"},
        result={"best": -3.5, "files": ["a", None, {"x": "\ud800"}]},
    )
    outbox = ValuesOutbox(database)
    outbox.submit(1, make_spec())
    outbox.ran(1, values)
    events = [*outbox.reported]
    outbox.record()
    assert database.apply(events, expected=outbox.cursor, epoch="e1")

    run = known(database, 1).last_run
    assert run is not None
    assert values == run.values
    (listed,) = database.history(HistoryQuery())
    assert listed.last_run is not None
    assert listed.last_run.values is not None
    assert [()] * 2 == [each.curve for each in listed.last_run.values.metrics]
    assert ["acc", "loss"] == sorted(listed.last_run.metrics)
    with reading(database._engine) as connection:
        rows = connection.execute(sa.select(run_metrics.c.name, run_metrics.c.last_value, run_metrics.c.max_value))
        assert {("acc", 0.1234567890123, 0.1234567890123), ("loss", None, None)} == {tuple(row) for row in rows}
        assert 2 == connection.scalar(sa.select(sa.func.count()).select_from(run_curves))


def test_jobs_are_ordered_by_the_last_value_page_by_page(database: HistoryDatabase) -> None:
    """The largest is first. What is no finite number comes last in both orders, by id."""
    recorded(database, 0.5, None, 2.0, "NaN", -1.0, 2.0, "Infinity")

    for reverse, wanted in ((False, [6, 3, 1, 5, 7, 4, 2]), (True, [5, 1, 3, 6, 2, 4, 7])):
        assert wanted == ids(database, metric="acc", reverse=reverse)
        for size in (1, 2, 3):
            seen: list[int] = []
            while page := ids(database, metric="acc", reverse=reverse, limit=size, after_id=seen[-1] if seen else None):
                seen += page
            assert wanted == seen
    assert [7, 6, 5, 4, 3, 2, 1] == ids(database, metric="unknown")
    assert [6, 3] == ids(database, metric="acc", text="train", limit=2)
    assert [3, 1, 2] == ids(database, metric="acc", before_id=4)


def test_the_last_run_counts(database: HistoryDatabase) -> None:
    """A job that ran again is at the place of its last run; one that runs again is unknown. Both runs are kept."""
    outbox = recorded(database, 1.0)
    for job_id, last in ((2, 5.0), (3, 3.0)):
        outbox.submit(job_id, make_spec())
        outbox.ran(job_id, JobValues(metrics=(metric("acc", last),)), state=JobState.QUEUED)
    outbox.ran(2, JobValues(metrics=(metric("acc", 0.5),)), attempt=2)
    outbox.claim(3, token="2.a", attempt=2)
    outbox.record()

    assert [1, 2, 3] == ids(database, metric="acc")
    assert [5.0, 0.5] == [run.metrics["acc"] for run in known(database, 2).runs]
