"""Submits that wait at the same time: each has its own answer, and the store is asked once for many."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from bounded import until
from factories import make_spec, serve
from own_store import OwnStore
from service_fixtures import ServedSite, ask, mine

from gpuqueue.client.connection import Connection
from gpuqueue.client.submit import UNCONFIRMED
from gpuqueue.errors import BadRequest, StoreUnreachable
from gpuqueue.history import migrate
from gpuqueue.history.database import HistoryDatabase
from gpuqueue.model.access import AccessPolicy
from gpuqueue.model.api import NewJob
from gpuqueue.model.audit import AuditOutcome, AuditQuery
from gpuqueue.model.job import Job
from gpuqueue.queue.connect import connect
from gpuqueue.service.batches import MAX_BATCHES, MAX_SUBMITS, Batches, Sent, Steps, Unqueued, alone
from gpuqueue.service.call import Call
from gpuqueue.service.identity.authenticate import caller_of_peer
from gpuqueue.service.identity.site_identity import SiteIdentity
from gpuqueue.service.new_jobs import submitted
from gpuqueue.text.units import MIB

MANY = MAX_BATCHES + MAX_SUBMITS


@pytest.fixture
def connection(own_store: OwnStore) -> Iterator[Connection]:
    """Return a connection to an open store with one device."""
    made = Connection(own_store.settings)
    made.queue.recovery.open(0)
    serve(made.queue)
    yield made
    made.close()


def steps(number: int, noted: list[int], trouble: str = "") -> Steps[Sent]:
    """Submit job *number*, and return it; None if it is to be queued by itself. *trouble* is the step that fails."""
    if trouble == "before":
        raise BadRequest(f"{number} {trouble}")
    job = yield Unqueued(spec=make_spec(name=f"job{number}"), nonce=f"{number}", on_cpu=partial(noted.append, number))
    if trouble == "behind":
        raise BadRequest(f"{number} {trouble}")
    return job


def taken(connection: Connection, *begins: Callable[[], Steps[Sent]]) -> list[Sent | BaseException]:
    """Return the results, or the errors, of submits that come at the same time."""

    async def all_of_them() -> list[Sent | BaseException]:
        batches = Batches(pool, lambda: connection)
        return await asyncio.gather(*map(batches.run, begins), return_exceptions=True)

    with ThreadPoolExecutor(1) as pool:
        return asyncio.run(all_of_them())


def test_submits_that_wait_go_to_the_store_in_one_round_trip(own_store: OwnStore, connection: Connection) -> None:
    """The first ones find nobody who waits, and take their steps by themselves."""
    admin, noted = connect(own_store.url), list[int]()
    taken(connection, *(partial(steps, 100 + number, noted) for number in range(MANY)))  # sends the script once
    before = admin.info("stats")["total_reads_processed"]

    found = taken(connection, *(partial(steps, number, noted) for number in range(MANY)))

    assert before + 2 == admin.info("stats")["total_reads_processed"], "one for the batch, and one for this question"
    assert [None] * MAX_BATCHES == found[:MAX_BATCHES]
    jobs = [each for each in found if isinstance(each, Job)]
    assert [f"job{number}" for number in range(MAX_BATCHES, MANY)] == [each.spec.name for each in jobs]
    assert [each.id for each in jobs] == [each.id for each in connection.queue.jobs.live()][MAX_SUBMITS:]
    admin.close()


def test_an_error_is_that_of_its_submit_alone(connection: Connection) -> None:
    """Before it reaches the store and behind it; the others of the batch go on."""
    troubles = ["", "", "before", "", "behind", ""]
    found = taken(connection, *(partial(steps, number, [], trouble) for number, trouble in enumerate(troubles)))

    assert ["2 before", "4 behind"] == [str(each) for each in found if isinstance(each, BadRequest)]
    assert ["job3", "job5"] == [each.spec.name for each in found if isinstance(each, Job)]
    with pytest.raises(BadRequest, match="7 before"):
        alone(steps(7, [], "before"))
    assert alone(steps(8, [])) is None


def test_what_a_batch_cannot_queue_is_queued_by_itself(own_store: OwnStore, connection: Connection) -> None:
    """A store that does not answer, and a job that it refuses, are for each submit to handle."""

    def too_large() -> Steps[Sent]:
        return (yield Unqueued(spec=make_spec(mem_bytes=2**40), nonce="large", on_cpu=lambda: None))

    some = [partial(steps, number, []) for number in range(3)]
    found = taken(connection, *some, too_large, partial(steps, 3, []))
    assert [False, False, True, False, True] == [isinstance(each, Job) for each in found]
    own_store.kill()
    found = taken(connection, *(partial(steps, number, []) for number in range(4, 8)))
    assert [False, False, True, True] == [isinstance(each, StoreUnreachable) for each in found]


def test_a_job_of_a_batch_that_was_not_answered_may_be_queued(own_store: OwnStore, connection: Connection) -> None:
    """The store has died since: what to do before the job is submitted again is said, and no outcome is made up."""
    settings = own_store.settings
    migrate.upgrade(settings.database_url)
    identity = SiteIdentity(settings)
    caller = caller_of_peer(os.geteuid(), os.getpid(), with_groups=False)
    call = Call(caller, AccessPolicy(), connection, identity)
    submit = submitted(call, NewJob(argv=("true",), cwd="/", mem_bytes=MIB), None, lambda _: None)
    next(submit)
    own_store.kill()

    with pytest.raises(StoreUnreachable, match=UNCONFIRMED):
        submit.send(StoreUnreachable("no answer", is_unanswered=True))
    identity.close()


def test_many_clients_at_once_get_their_own_answers(served: ServedSite, tmp_path: Path) -> None:
    """Good jobs, jobs of one dedupe key, and impossible and malformed ones. The audit log has each that was made."""
    serve(served.queue)
    more: Sequence[dict[str, Any]] = ({}, {"waits": {"dedupe": "twin"}}, {"mem_bytes": 2**40}, {"mem_bytes": 0})

    def submit(number: int) -> tuple[int, Any]:
        body = {"argv": ["true"], "cwd": str(tmp_path), "mem_bytes": MIB, "name": f"batch{number}", **more[number % 4]}
        status, answer = ask(served, "/jobs", mine(served), method="POST", body=body)
        return status, answer.get("id") or answer["error"]

    with ThreadPoolExecutor(16) as pool:
        found = [*pool.map(submit, range(64))]

    good, twins, impossible, malformed = (found[kind::4] for kind in range(4))
    assert {201: 16} == Counter(status for status, _ in good)
    assert {201: 1, 200: 15} == Counter(status for status, _ in twins)
    assert {(422, "Impossible")} == {*impossible}
    assert {(400, "BadRequest")} == {*malformed}
    names = {each.id: each.spec.name for each in served.queue.jobs.live()}
    assert [f"batch{number}" for number in range(0, 64, 4)] == [names[job_id] for _, job_id in good]
    made = sorted(str(job_id) for _, job_id in (*good, *twins))

    def recorded() -> list[str]:
        with closing(HistoryDatabase(served.settings.database_url)) as database:
            entries = database.audit_entries(AuditQuery(action="submit", limit=None))
        return sorted(each.jobs[0] for each in entries if each.outcome is AuditOutcome.DONE)

    until(lambda: recorded() == made, what="the audit log of all that was made")
