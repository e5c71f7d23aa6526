"""Ids that the service takes before a submit, to sign a job with its id."""

from __future__ import annotations

from dataclasses import replace

import pytest
import redis
from factories import make_offer, make_spec, must_claim, serve, submit

from gpuqueue.errors import Refused
from gpuqueue.model.array import Array, Indexes
from gpuqueue.model.job_spec import JobSpec
from gpuqueue.queue import keys
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.text.units import GIB


def sign(spec: JobSpec, job_id: int) -> JobSpec:
    """Return *spec* with a ticket that names the job."""
    return replace(spec, ticket=f"mac {job_id}")


def test_the_spec_in_the_store_has_the_ticket_and_so_has_what_a_worker_claims(queue: JobQueue) -> None:
    # Other jobs have none.
    serve(queue)
    plain, signed = queue.requests.submit(make_spec()), queue.requests.submit(make_spec(), sign=sign)

    assert (1, 2) == (plain.id, signed.id)
    assert (None, "mac 2") == tuple(_ticket(queue, each.id) for each in (plain, signed))
    assert [None, "mac 2"] == [must_claim(queue).spec.ticket for _ in range(2)]


def test_jobs_that_come_between_the_ids_and_the_submit_are_no_members(queue: JobQueue) -> None:
    serve(queue, make_offer(), lease_s=300)
    between: list[int] = []

    def meanwhile(spec: JobSpec, job_id: int) -> JobSpec:
        between.append(submit(queue, mem_bytes=GIB))
        return sign(spec, job_id)

    array = Array(indexes=Indexes.parse("2-5:3"))
    made = queue.requests.submit(make_spec(array=array, mem_bytes=GIB // 2), sign=meanwhile)

    assert (1, [8]) == (made.id, between)
    claims = {must_claim(queue).job_id for _ in range(3)}
    assert {4, 7, 8} == claims
    assert "mac 1" == _ticket(queue, 7)


def test_an_edit_keeps_the_ticket_and_may_renew_it(queue: JobQueue) -> None:
    job = queue.requests.submit(make_spec(), sign=sign)

    queue.requests.edit(job.id, lambda spec: replace(spec, name="other"))
    assert ("other", "mac 1") == (queue.jobs.get(job.id).spec.name, _ticket(queue, job.id))
    queue.requests.edit(job.id, lambda spec: replace(spec, ticket="new"))
    assert "new" == _ticket(queue, job.id)


def test_a_repeated_submit_makes_one_job(queue: JobQueue) -> None:
    # What was taken and not used is never used again.
    first, again = (queue.requests.submit(make_spec(), nonce="abc", sign=sign) for _ in range(2))

    assert first.id == again.id
    assert 3 == queue.requests.submit(make_spec(), sign=sign).id


def test_an_id_that_has_expired_is_replaced(queue: JobQueue, store: redis.Redis) -> None:
    """A store that has lost its data, or a service that stood still, never makes two jobs with one id."""
    taken: list[int] = []

    def forgotten(spec: JobSpec, job_id: int) -> JobSpec:
        if not taken:
            store.delete(*store.keys(f"{keys.PREFIX}taken:*"))
        taken.append(job_id)
        return sign(spec, job_id)

    assert 2 == queue.requests.submit(make_spec(), sign=forgotten).id
    assert [1, 2] == taken
    assert [] == store.keys(f"{keys.PREFIX}taken:*")


def test_an_id_that_always_expires_is_an_error(queue: JobQueue, store: redis.Redis) -> None:
    def forgotten(spec: JobSpec, job_id: int) -> JobSpec:
        _forget(store, job_id)
        return sign(spec, job_id)

    with pytest.raises(Refused, match="the store forgets the ids of new jobs"):
        queue.requests.submit(make_spec(), sign=forgotten)


def test_an_array_never_has_ids_that_another_job_may_have(queue: JobQueue) -> None:
    def larger(spec: JobSpec, job_id: int) -> JobSpec:
        return sign(replace(spec, array=Array(indexes=Indexes.parse("0-9"))), job_id)

    with pytest.raises(Refused, match="the store forgets the ids of new jobs"):
        queue.requests.submit(make_spec(array=Array(indexes=Indexes.parse("0-1"))), sign=larger)


def _forget(client: redis.Redis, job_id: int) -> None:
    client.delete(f"{keys.PREFIX}taken:{job_id}")


def _ticket(queue: JobQueue, job_id: int) -> str | None:
    job = queue.jobs.get(job_id)
    return job.spec.ticket
