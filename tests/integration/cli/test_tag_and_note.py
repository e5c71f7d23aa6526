"""Tags and notes: on live jobs in the store, and for ever in the history, on both databases."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from factories import make_spec, must_claim, serve
from store_dump import dump, faults

from gpuqueue import Client
from gpuqueue.client import connection
from gpuqueue.errors import BadRequest, JobNotFound, Refused
from gpuqueue.history.database import HistoryDatabase
from gpuqueue.model.array import Array
from gpuqueue.model.event import Act
from gpuqueue.model.history_query import HistoryQuery
from gpuqueue.model.job import JobState
from gpuqueue.model.job_spec import Account
from gpuqueue.model.run import Record
from gpuqueue.queue.changes import Mark
from gpuqueue.queue.connect import connect
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.recovery import catch_up, open_queue
from gpuqueue.settings.settings import Settings
from workers.services.recorder import Recorder


@pytest.fixture
def record(queue: JobQueue, database: HistoryDatabase) -> Callable[[], None]:
    """Return a function that copies all events from the outbox to the history."""
    recorder = Recorder(Settings.load(), queue, database)

    def drain() -> None:
        while recorder.record(0):
            pass

    return drain


@pytest.fixture
def client(queue: JobQueue, history_url: str, store_url: str) -> Iterator[Client]:
    """Return a client of that store and that history."""
    serve(queue)
    with Client(Settings.load({"GPUQUEUE_REDIS_URL": store_url, "GPUQUEUE_DATABASE_URL": history_url})) as opened:
        yield opened


def known(database: HistoryDatabase, job_id: int) -> Record:
    """Return a job that is in the history."""
    found = database.get(job_id)
    assert found is not None
    return found


def found_by(database: HistoryDatabase, *tags: str, text: str | None = None) -> list[int]:
    """Return the ids of the jobs in the history that match."""
    return [each.job.id for each in database.history(HistoryQuery(tags=tags, text=text))]


def test_a_job_has_its_tags_from_the_start_to_the_end(
    client: Client, database: HistoryDatabase, record: Callable[[], None]
) -> None:
    """Tags are set at submit, changed while the job waits and runs, and kept after its end."""
    job = client.jobs.submit(["true"], mem="1M", tags=["paper", "baseline"]).id
    assert ("paper", "baseline") == client.jobs.get(job).tags

    client.jobs.tag(job, "long", "paper")
    claimed = must_claim(client.queue)
    client.jobs.tag(job, "paper", remove=True)
    client.jobs.note(job, "diverges: naïve \N{GREEK SMALL LETTER LAMDA}")
    client.queue.runs.release_claim(job, claimed.token, detail="busy")
    client.jobs.edit(job, mem="2M")

    job_now = client.jobs.get(job)
    assert (("baseline", "long"), "diverges: naïve \N{GREEK SMALL LETTER LAMDA}") == (job_now.tags, job_now.note)
    record()
    assert (job_now.tags, job_now.note) == (known(database, job).job.tags, known(database, job).job.note)
    client.jobs.cancel(job)
    record()
    assert client.queue.jobs.get(job) is None
    assert ("baseline", "long") == client.jobs.get(job).tags
    assert ([job], [job], []) == (
        found_by(database, "long"),
        found_by(database, "long", "baseline"),
        found_by(database, "paper"),
    )
    assert [job] == found_by(database, text="DIVERGES: na") == found_by(database, text="true")


def test_a_job_that_only_the_history_has_is_marked_through_the_outbox(
    client: Client, database: HistoryDatabase, record: Callable[[], None]
) -> None:
    """Changes to a job in the history go through the outbox, because only the recorder writes to the history.

    They change neither the job's state nor its end.
    """
    job = client.jobs.submit(["true"], mem="1M", tags=["a"]).id
    client.jobs.cancel(job)
    record()
    before = known(database, job).job
    assert client.queue.jobs.get(job) is None

    client.jobs.tag(job, "b")
    client.jobs.tag(job, "c")  # before the change above is recorded: neither is lost
    client.jobs.tag(job, "a", remove=True)
    client.jobs.note(job, "first")
    client.jobs.note(job, "second")
    assert before == known(database, job).job
    record()

    after = known(database, job).job
    assert (("b", "c"), "second") == (after.tags, after.note)
    assert (before.state, before.ended_at, before.attempt) == (after.state, after.ended_at, after.attempt)
    marks = [each for each in database.events(job) if each.act is Act.MARK]
    assert (5, {JobState.CANCELLED}) == (len(marks), {each.state for each in marks})
    client.jobs.note(job, "")
    record()
    assert None is known(database, job).job.note
    assert client.queue.jobs.get(job) is None


def test_arrays_and_members(client: Client, database: HistoryDatabase, record: Callable[[], None]) -> None:
    """A member has the tags of its array's submit and its own later ones."""
    array = client.jobs.submit(["true"], mem="1M", array="0-2", tags=["sweep"]).id
    member = must_claim(client.queue).job_id

    client.jobs.tag(f"{array}_0", "best")
    client.jobs.tag(array, "done")

    assert (("sweep", "best"), ("sweep", "done"), ("sweep",)) == (
        client.jobs.get(f"{array}_0").tags,
        client.jobs.get(array).tags,
        client.jobs.get(f"{array}_1").tags,
    )
    record()
    assert {"sweep", "best"} == set(known(database, member).job.tags)
    assert [member, array] == found_by(database, "sweep")
    with pytest.raises(BadRequest, match=f"{array}_1 has not started yet: tag or annotate the whole array {array}"):
        client.jobs.tag(f"{array}_1", "x")


def test_what_makes_no_tag_or_note_is_refused(client: Client) -> None:
    """Invalid tags and notes are refused, and nothing is changed."""
    job = client.jobs.submit(["true"], mem="1M").id

    for word in ("", "a b", "a,b", "ä", "x" * 65, "\x1b"):
        with pytest.raises(BadRequest, match="is no tag"):
            client.jobs.tag(job, word)
        with pytest.raises(BadRequest, match="is no tag"):
            client.jobs.submit(["true"], mem="1M", tags=[word])
    client.jobs.tag(job, *(f"t{n}" for n in range(32)))
    with pytest.raises(BadRequest, match=f"job {job} would have more than 32 tags"):
        client.jobs.tag(job, "one-more")
    with pytest.raises(BadRequest, match="at most 1000 characters"):
        client.jobs.note(job, "x" * 1001)
    with pytest.raises(JobNotFound):
        client.jobs.tag(99, "a")
    client.jobs.note(job, "\N{HOT BEVERAGE}" * 1000)
    assert 32 == len(client.jobs.get(job).tags)


def test_only_the_owner_says_something(
    client: Client, record: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the owner or an admin can tag a job, in the store or in the history."""
    living, ended = (client.queue.requests.submit(make_spec()).id for _ in range(2))
    client.queue.jobs.cancel(ended)
    record()
    monkeypatch.setattr(connection, "current_account", lambda host: Account(name="bob", uid=1001, host=host))

    for job in (living, ended):
        with pytest.raises(Refused, match=f"job {job} is ada's"):
            client.jobs.tag(job, "mine")
    client.queue.rules.set_policy(half_life_s=86400, urgent=None, shares={}, admins="bob")
    client.jobs.tag(ended, "seen")


def test_a_rebuilt_store_knows_them(
    client: Client, database: HistoryDatabase, record: Callable[[], None], store_url: str
) -> None:
    """A store rebuilt from the history has the tags and notes, and no tag that was removed."""
    both = client.jobs.submit(["true"], mem="1M", tags=["a"]).id
    none = client.jobs.submit(["true"], mem="1M", tags=["a"]).id
    client.jobs.tag(both, "b")
    client.jobs.note(both, "text with spaces, commas: 100 %")
    client.jobs.tag(none, "a", remove=True)
    record()
    store = connect(store_url)
    store.flushall()

    assert open_queue(client.queue, database, lease_s=300) is not None

    assert (("a", "b"), "text with spaces, commas: 100 %") == (client.jobs.get(both).tags, client.jobs.get(both).note)
    assert () == client.jobs.get(none).tags
    assert [] == faults(dump(store))
    store.close()


def test_a_history_that_lost_its_data_gets_them_again(
    client: Client, database: HistoryDatabase, record: Callable[[], None]
) -> None:
    """A history that lost its events gets the current tags of live jobs again, and forgets older ones."""
    job = client.jobs.submit(["true"], mem="1M", tags=["a", "b"]).id
    client.jobs.tag(job, "c")
    client.jobs.note(job, "text")
    record()
    with database._engine.begin() as connection_:
        connection_.exec_driver_sql("DELETE FROM outbox_cursor")
        connection_.exec_driver_sql("DELETE FROM job_events")
        connection_.exec_driver_sql(f"INSERT INTO job_tags (job_id, tag) VALUES ({job}, 'old')")
    client.queue.jobs.mark(job, Mark(remove=("b",)))

    assert 1 == catch_up(client.queue, database)
    record()

    assert (("a", "c"), "text") == (known(database, job).job.tags, known(database, job).job.note)


def test_another_try_has_them_too(client: Client) -> None:
    """A retry has the tags of the job at that time."""
    job = client.jobs.submit(["true"], mem="1M", tags=["a"]).id
    client.jobs.tag(job, "b")
    client.jobs.cancel(job)

    assert ("a", "b") == client.jobs.retry(job).tags


def test_tags_of_a_damaged_spec_harm_nobody(queue: JobQueue) -> None:
    """Text in an argument or the environment that looks like tags is not read as tags."""
    serve(queue)
    job = queue.requests.submit(
        make_spec(argv=("echo", '"tags":["x"]'), env={"tags": "y"}, array=Array.parse("0-1"))
    ).id

    assert queue.jobs.mark(job, Mark(add=("z",)))

    found = queue.jobs.get(job)
    assert found is not None
    assert ("z",) == found.tags
