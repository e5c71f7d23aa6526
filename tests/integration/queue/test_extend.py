"""A job that has started gets more time: who may give it, how much, and what worker and planning see."""

from __future__ import annotations

from dataclasses import replace

import pytest
from factories import job_of, make_offer, must_claim, serve, start, submit, submit_and_claim

from gpuqueue.errors import BadRequest, Refused
from gpuqueue.model.job import JobState
from gpuqueue.model.job_spec import Priority
from gpuqueue.model.limits import Limits
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.queue.lease import Alive, Claim
from gpuqueue.text.units import GIB

HOUR_S, DAY_S = 3600.0, 86400.0


def limits_of(queue: JobQueue, run: Claim) -> dict[str, float]:
    """Return what the next heartbeat says about the limit of *run*."""
    alive = Alive(job_id=run.job_id, token=run.token, observed={"GPU-0": GIB})
    return dict(queue.devices.heartbeat(make_offer(), [alive], lease_s=300).limits)


def test_worker_reservation_and_readers_see_the_new_limit(queue: JobQueue) -> None:
    serve(queue)
    run = submit_and_claim(queue, time_limit_s=HOUR_S, mem_bytes=20 * GIB)
    start(queue, run)
    waiting = submit(queue, mem_bytes=20 * GIB)
    (before,) = queue.maintenance.reserve(after_s=0, most=1)
    unset = limits_of(queue, run)

    assert JobState.RUNNING is queue.requests.extend(run.job_id, 2 * HOUR_S, by="ada")

    spec = job_of(queue, run.job_id).spec
    assert (3 * HOUR_S, 2 * HOUR_S) == (spec.time_limit_s, spec.extended_s)
    assert ({}, {run.token: 3 * HOUR_S}) == (unset, limits_of(queue, run))
    (after,) = queue.maintenance.reserve(after_s=0, most=1)
    assert (waiting, run.claimed_ms + HOUR_S * 1000) == (before.job_id, before.start_ms)
    assert (waiting, run.claimed_ms + 3 * HOUR_S * 1000) == (after.job_id, after.start_ms)
    found = queue.jobs.why(waiting)
    assert found is not None
    assert found.start is not None
    assert found.start.at_ms == after.start_ms


def test_its_next_run_has_the_new_limit_until_an_edit_sets_another(queue: JobQueue) -> None:
    serve(queue)
    run = submit_and_claim(queue, time_limit_s=HOUR_S)
    queue.requests.extend(run.job_id, HOUR_S)
    queue.runs.release_claim(run.job_id, run.token, "busy")
    again = must_claim(queue)
    limits = (again.spec.time_limit_s, limits_of(queue, again))
    queue.runs.release_claim(run.job_id, again.token, "busy")
    queue.requests.edit(run.job_id, lambda spec: replace(spec, time_limit_s=60.0, extended_s=0.0), time=True)
    third = must_claim(queue)

    assert (2 * HOUR_S, {again.token: 2 * HOUR_S}) == limits
    assert (60.0, {}) == (third.spec.time_limit_s, limits_of(queue, third))


def test_a_preempted_run_ends_by_its_deadline_all_the_same(queue: JobQueue) -> None:
    serve(queue)
    run = submit_and_claim(queue, time_limit_s=HOUR_S, mem_bytes=20 * GIB)
    start(queue, run)
    urgent = submit(queue, mem_bytes=20 * GIB, priority=Priority.HIGH)
    assert {run.job_id: urgent} == queue.maintenance.preempt({Priority.HIGH: [Priority.NORMAL]}, after_s=0, grace_s=60)
    before = queue.jobs.why(urgent)

    queue.requests.extend(run.job_id, HOUR_S)

    after = queue.jobs.why(urgent)
    assert before is not None
    assert after is not None
    assert before.devices[0].runs[0].ends_ms == after.devices[0].runs[0].ends_ms is not None


def test_owners_add_as_much_as_the_site_permits_and_admins_more(queue: JobQueue) -> None:
    serve(queue)
    queue.rules.set_policy(half_life_s=DAY_S, urgent=None, shares={}, admins="eve", extend_s=2 * HOUR_S)
    queue.rules.set_limits(Limits.parse("", "*: max_time=6h", {}))
    run = submit_and_claim(queue, time_limit_s=HOUR_S)
    start(queue, run)

    queue.requests.extend(run.job_id, HOUR_S, by="ada")
    with pytest.raises(Refused, match=r"may add 2:00:00 in all here \(setting extend\), and 1:00:00 is added"):
        queue.requests.extend(run.job_id, 1.5 * HOUR_S, by="ada")
    with pytest.raises(Refused, match=r"8:00:00 of time asked for, .* may have 6:00:00 \(limit max_time\)"):
        queue.requests.extend(run.job_id, 6 * HOUR_S, by="ada")
    with pytest.raises(Refused, match="is ada's: only ada may change it"):
        queue.requests.extend(run.job_id, HOUR_S, by="bob")
    with pytest.raises(BadRequest, match="at most ten years"):
        queue.requests.extend(run.job_id, 4000 * DAY_S, by="eve")
    assert 2 * HOUR_S == job_of(queue, run.job_id).spec.time_limit_s

    queue.requests.extend(run.job_id, 40 * DAY_S, by="eve")
    assert 40 * DAY_S + 2 * HOUR_S == job_of(queue, run.job_id).spec.time_limit_s
    queue.rules.set_limits(Limits.parse("", "", {}))
    queue.rules.set_policy(half_life_s=DAY_S, urgent=None, shares={}, extend_s=0)
    with pytest.raises(Refused, match="may add no time here"):
        queue.requests.extend(run.job_id, 1, by="ada")


def test_only_a_job_that_has_started_changes(queue: JobQueue) -> None:
    serve(queue)
    waiting = submit(queue, time_limit_s=HOUR_S)

    assert JobState.QUEUED is queue.requests.extend(waiting, HOUR_S)
    assert queue.requests.extend(99, HOUR_S) is None
    assert HOUR_S == job_of(queue, waiting).spec.time_limit_s
    must_claim(queue)
    queue.jobs.cancel(waiting)
    assert JobState.CANCELLING is queue.requests.extend(waiting, HOUR_S)
