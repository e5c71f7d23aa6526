"""Routes of the group ``client.cron``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from gpuqueue.client import repeating
from gpuqueue.client.connection import Connection
from gpuqueue.model.access import Action
from gpuqueue.model.repeating import NewRepeatingJob, RepeatingJob, RepeatingName, Repetition
from gpuqueue.service.call import HIDDEN, Call
from gpuqueue.service.new_jobs import spec_of
from gpuqueue.service.routes.described import Operations, operation

router = Operations("cron")

Act = Callable[[Connection, Repetition], Repetition]


@operation(router, "POST /repeating-jobs", status=201)
def add_repeating_job(call: Call, body: NewRepeatingJob) -> RepeatingJob:
    """Submit a job again and again, at the times of an expression of cron. The same request again changes nothing."""
    with call.change(Action.SUBMIT, "cron-add") as change:
        call.must_run()
        name = spec_of(call, body.job, call.warnings.append).name  # refuses now what it would refuse at each time
        change.set_detail(name=name, times=body.times)
        return _shown(call, repeating.added(call.connection, body, name=name, token_id=call.caller.token_id))


@operation(router, "cron.list")
def list_repeating_jobs(call: Call, user: str | None = None, *, everybody: bool = False) -> tuple[RepeatingJob, ...]:
    """List repeating jobs: those of the caller, of an account, or of everybody."""
    call.must_see_jobs()
    found = repeating.listed(call.connection, user, everybody=everybody)
    return tuple(_shown(call, each) for each in found if call.may(Action.SEE_JOBS, each.owner))


@operation(router, "cron.remove")
def remove_repeating_job(call: Call, name: str, body: RepeatingName) -> RepeatingJob:
    """Remove a repeating job. Its jobs that wait or run go on."""
    return _changed(call, "cron-remove", name, body, repeating.removed)


@operation(router, "cron.pause")
def pause_repeating_job(call: Call, name: str, body: RepeatingName) -> RepeatingJob:
    """Pause a repeating job: its times pass, and nothing is submitted."""
    return _changed(call, "cron-pause", name, body, repeating.paused)


@operation(router, "cron.resume")
def resume_repeating_job(call: Call, name: str, body: RepeatingName) -> RepeatingJob:
    """Let a repeating job go on from its next time. If its owner asks, by the proof of this request from now on."""

    def resume(connection: Connection, kept: Repetition) -> Repetition:
        if call.caller.owns(kept.owner):
            kept = repeating.with_proof(connection, kept, call.caller.token_id)
        return repeating.resumed(connection, kept)

    return _changed(call, "cron-resume", name, body, resume)


@operation(router, "cron.run")
def run_repeating_job(call: Call, name: str, body: RepeatingName) -> RepeatingJob:
    """Submit a job of a repeating job within seconds, as if its time had come now."""
    return _changed(call, "cron-run", name, body, repeating.due_now)


def _changed(call: Call, act: str, name: str, body: RepeatingName, change: Act) -> RepeatingJob:
    call.must_see_jobs()
    kept = repeating.the(call.connection, name, body.user)
    with call.change(Action.CHANGE_JOB, act, owner=kept.owner, detail={"name": kept.name, "user": kept.owner.name}):
        return _shown(call, change(call.connection, kept))


def _shown(call: Call, kept: Repetition) -> RepeatingJob:
    """Return *kept* as the caller may see it. Why a job was refused can name its arguments."""
    state = repeating.last_state(call.connection, kept)
    if call.may(Action.SEE_ARGUMENTS, kept.owner):
        return repeating.shown(kept, state)
    return replace(repeating.shown(kept, state, (HIDDEN,)), missed_why=kept.missed_why and HIDDEN)
