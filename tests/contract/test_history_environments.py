"""Environments in the history: apart from the jobs, without secrets after the end, and removed later."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from factories import make_spec
from outbox import T0, Outbox

from gpuqueue.codec.request import encode_spec
from gpuqueue.errors import Unreadable
from gpuqueue.history.connect import open_engine, reading
from gpuqueue.history.database import HistoryDatabase
from gpuqueue.history.tables import metadata
from gpuqueue.model.array import Array, Indexes
from gpuqueue.model.environment import Environment
from gpuqueue.model.event import Act
from gpuqueue.model.job import JobState
from gpuqueue.model.run import Ending

if TYPE_CHECKING:
    from gpuqueue.model.job_spec import JobSpec

ENV = {"PATH": "/bin", "HF_TOKEN": "hunter2", "LANG": "C"}
WHOLE = Environment(variables=ENV)
WITHOUT = Environment(variables={"PATH": "/bin", "LANG": "C"}, removed=("HF_TOKEN",))
DONE = Ending.from_status(0)


def everything(url: str, *but: str) -> str:
    """Return all rows of all tables as one text, without the tables *but*."""
    engine = open_engine(url)
    with reading(engine) as connection:
        found = [
            connection.execute(sa.select(table)).all() for name, table in metadata.tables.items() if name not in but
        ]
    engine.dispose()
    return repr(found)


def spec_of(**changes: Any) -> JobSpec:
    """Return a request with a secret in its environment."""
    return make_spec(env=ENV, **changes)


def ends(outbox: Outbox, job_id: int = 1) -> None:
    """Let a job run and end."""
    outbox.claim(job_id)
    outbox.started(job_id)
    outbox.finish(job_id, DONE, JobState.SUCCEEDED)


def test_an_environment_is_apart_from_its_job(database: HistoryDatabase, outbox: Outbox, history_url: str) -> None:
    """While a job lives, its environment is whole, and in the table of environments only."""
    outbox.submit(1, spec_of())
    outbox.report(1, Act.EDIT, JobState.QUEUED, attempt=0, spec=encode_spec(spec_of(name="other")))
    outbox.report(1, Act.OTHER, JobState.QUEUED, attempt=0, spec=encode_spec(spec_of()))
    outbox.claim(1)
    outbox.record()

    assert WHOLE == database.kept_environment(1)
    assert "hunter2" in everything(history_url)
    assert "hunter2" not in everything(history_url, "environments")
    assert "/bin" not in everything(history_url, "environments")


@pytest.mark.parametrize("batch", [1, 2, 4])
def test_secrets_go_with_the_end(database: HistoryDatabase, outbox: Outbox, history_url: str, batch: int) -> None:
    """The end of a job removes its secrets, for any division of its events into batches. The names stay."""
    outbox.submit(1, spec_of())
    outbox.submit(2, spec_of())
    ends(outbox)
    outbox.report(2, Act.CANCEL, JobState.CANCELLED, attempt=0)
    outbox.report(1, Act.MARK, JobState.SUCCEEDED, add="seen")
    outbox.record(batch)

    assert [WITHOUT, WITHOUT] == [database.kept_environment(each) for each in (1, 2)]
    assert "hunter2" not in everything(history_url)


def test_a_job_that_runs_again_needs_its_secrets(database: HistoryDatabase, outbox: Outbox) -> None:
    outbox.submit(1, spec_of())
    outbox.claim(1)
    outbox.report(1, Act.LOSE, JobState.QUEUED, losses=1, token="1.a", detail="gone")
    outbox.record()

    assert WHOLE == database.kept_environment(1)


def test_with_the_setting_secrets_are_kept_as_long_as_the_environment(history_url: str) -> None:
    database = HistoryDatabase(history_url, keep_secrets=True)
    outbox = Outbox(database)
    outbox.submit(1, spec_of())
    ends(outbox)
    outbox.record()

    assert WHOLE == database.kept_environment(1)
    database.close()


def test_the_members_of_an_array_share_its_environment(
    database: HistoryDatabase, outbox: Outbox, history_url: str
) -> None:
    # It loses its secrets when the whole array has ended.
    array = Array(indexes=Indexes.parse("0-1"), at_once=None, axes=())
    outbox.submit(1, spec_of(array=array))
    for index in (0, 1):
        outbox.claim(2 + index, of="1", index=str(index), left="" if index else "1")
        outbox.started(2 + index)
        outbox.finish(2 + index, DONE, JobState.SUCCEEDED)
        outbox.record()
        assert WHOLE == database.kept_environment(2 + index, 1)
    assert 1 == len(_rows(history_url))

    outbox.report(1, Act.ARRAY, JobState.SUCCEEDED, left="", held="")
    outbox.record()

    assert [WITHOUT, WITHOUT] == [database.kept_environment(1), database.kept_environment(2, 1)]
    assert [1] == [row.job_id for row in _rows(history_url)]


def test_an_environment_is_removed_if_its_job_ended_before_a_time(
    database: HistoryDatabase, outbox: Outbox, history_url: str
) -> None:
    # The job stays, and so do those that have not ended.
    for job_id in (1, 2, 3):
        outbox.submit(job_id, spec_of())
    ends(outbox)
    first_ended = outbox.number
    ends(outbox, 2)
    outbox.record()
    between = T0 + timedelta(seconds=first_ended + 0.5)

    assert (1, 0) == (database.forget_environments(between), database.forget_environments(between))

    assert [None, WITHOUT, WHOLE] == [database.kept_environment(each) for each in (1, 2, 3)]
    assert database.get(1) is not None
    assert [2, 3] == sorted(row.job_id for row in _rows(history_url))
    assert 1 == database.forget_environments(between + timedelta(days=99))


def test_a_retry_learns_that_a_request_is_damaged_or_unknown(
    database: HistoryDatabase, outbox: Outbox, history_url: str
) -> None:
    # It must not run something else.
    outbox.submit(1, spec_of())
    outbox.record()
    engine = open_engine(history_url)
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE jobs SET spec = '{}'")
    engine.dispose()

    for job_id in (1, 2):
        with pytest.raises(Unreadable):
            database.kept_environment(job_id)


def test_jobs_that_live_are_rebuilt_with_all_they_had(database: HistoryDatabase, outbox: Outbox) -> None:
    """A rebuild gets the text of each request as it was submitted, secrets included, for members of arrays too."""
    array = Array(indexes=Indexes.parse("0-1"), at_once=None, axes=())
    outbox.submit(1, spec_of())
    outbox.submit(2, spec_of(array=array))
    outbox.claim(3, of="2", index="0", left="1")
    outbox.record()

    (page,) = database.survivors()

    assert [encode_spec(spec_of()), encode_spec(spec_of(array=array))] == [each.payload for each in page[:2]]
    assert ENV.items() <= json.loads(page[2].payload)["env"].items()
    assert page[2].payload.endswith(',"of":2,"index":0}')


def _rows(url: str) -> list[Any]:
    engine = open_engine(url)
    with reading(engine) as connection:
        found = list(connection.execute(sa.select(metadata.tables["environments"])).all())
    engine.dispose()
    return found
