"""Retries jobs that have ended."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpuqueue.client import notifications, placeholders, reads
from gpuqueue.client.connection import Connection
from gpuqueue.client.devices import uuids_of
from gpuqueue.client.edit import change_of
from gpuqueue.client.memory import OpenMemory, with_expected_duration, with_expected_utilisation, with_memory
from gpuqueue.client.placement import counts_use
from gpuqueue.client.selection import may_change
from gpuqueue.client.wait import recorded
from gpuqueue.errors import BadRequest, HistoryUnreachable, Refused, Unreadable
from gpuqueue.model import job_ref, validation
from gpuqueue.model.array import Array, Indexes
from gpuqueue.model.dependencies import Waits
from gpuqueue.model.job import Job, JobState
from gpuqueue.model.job_spec import AUTO, JobSpec
from gpuqueue.model.script_args import words_before_args
from gpuqueue.system.environment import given_variables, travelling
from gpuqueue.system.git_checkout import CheckoutReader
from gpuqueue.text.sanitize import plain

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gpuqueue.model.job_ref import JobName
    from gpuqueue.model.job_request import JobEdit
    from gpuqueue.model.job_spec import Checkout
    from gpuqueue.model.run import Record


#: The end states of members that a retry of an array runs again.
FAILED = (JobState.FAILED, JobState.LOST)


def spec_again(
    connection: Connection,
    job: int | str,
    changes: JobEdit,
    *,
    args: Sequence[str] | None = None,
    python: str | None = None,
    env: Mapping[str, str] | Sequence[str] | None = None,
    warn: Callable[[str], None] | None = None,
    mine: Mapping[str, str] | None = None,
) -> JobSpec:
    """Return the spec of a retry of *job*, with *changes*. Nothing is submitted.

    *warn* is called with a line if the environment is not that of the first submission. *mine* is the environment of
    the caller, by default that of this process. With it, the git checkout of the job's directory is not read: this
    process is not the caller's, and must not follow what lies there. *python* is another interpreter of the script.

    The spec names no first job for a member of an array that was cancelled before it began: it has no record.
    """
    name = job_ref.job_name(job)
    before = _before(connection, job, name)
    spec = before.spec if python is None else _with_python(before.spec, name, python)
    first = _environment(connection, before, name, given_variables(env), warn, mine)
    notifications.judge(connection, notifications.replaced((), changes.on_end, changes.on_fail))
    changed = change_of(changes, lambda names: uuids_of(connection, names))(spec)
    again = replace(
        changed,
        argv=_argv(spec, name, args),
        env=first,
        account=connection.account,
        waits=_waits(changes, changed),
        retry_of=None if _never_began(connection, before) else before.id,
        tags=before.tags,
        git=_checkout(connection, spec, is_caller=mine is None),
        extended_s=0.0,
        ticket=None,
        array=None if spec.array is None else _failed(connection, before, spec.array, name),
    )
    if args is not None:
        placeholders.check(again)
    if counts_use(again, connection.settings):
        again = with_expected_utilisation(connection, again)
    again = with_expected_duration(connection, again)
    return with_memory(connection, again, OpenMemory(auto=True), warn) if changes.mem == AUTO else again


def _before(connection: Connection, job: int | str, name: JobName) -> Job:
    """Return the job to run again.

    Raises:
        Refused: it has not ended, or this caller may not run it again.

    """
    before = reads.get(connection, name.id if name.part is not None and name.member is None else job)
    _must_be_over(before, name)
    _must_be_own(connection, before, name)
    return before


def _never_began(connection: Connection, job: Job) -> bool:
    """Return whether *job* is a member of an array that no device has taken, so that it has no record of its own."""
    if job.member is None or job.attempt:
        return False
    return connection.queue.jobs.get(job.id) is None and connection.recorded(job.id) is None


def check_retried(connection: Connection, job_id: int) -> None:
    """Check that a new job may say that it is a retry of the job *job_id*, which then counts as retried.

    An array may still have active members: a retry of a part names the whole array.

    Raises:
        JobNotFound: there is no such job.
        Refused: it has not ended, or this caller may not run it again.

    """
    name = job_ref.job_name(job_id)
    before = reads.get(connection, job_id)
    _must_be_own(connection, before, name)
    if before.spec.array is None:
        _must_be_over(before, name)


def _must_be_own(connection: Connection, before: Job, name: JobName) -> None:
    whose = before.spec.account.name
    if not may_change(connection, whose):
        raise Refused(
            f"job {name} is {whose}'s: only {whose} may run it again, or an administrator of this site (setting "
            f"admins), for it runs with the environment of {whose}"
        )


def _checkout(connection: Connection, spec: JobSpec, *, is_caller: bool) -> Checkout | None:
    """Return the checkout of the job's directory now, None if the first submission recorded none.

    The retry of a job with a snapshot runs the same code, and so has the same checkout.
    """
    if spec.snapshot is not None:
        return spec.git
    reads_git = is_caller and connection.settings.git and spec.git is not None
    return CheckoutReader(Path(spec.cwd)).seen() if reads_git else None


def _argv(spec: JobSpec, name: JobName, args: Sequence[str] | None) -> tuple[str, ...]:
    """Return the command line of *spec*, with *args* in place of the script's arguments unless they are None."""
    if args is None:
        return spec.argv
    if spec.script is None:
        raise BadRequest(f"job {name} runs a command, not a script: submit it again with its new arguments")
    return (*spec.argv[: words_before_args(spec)], *validation.words("args", args))


def _with_python(spec: JobSpec, name: JobName, python: str) -> JobSpec:
    """Return *spec* with the interpreter *python*, which is looked for where the job runs."""
    if spec.interpreter is None:
        raise BadRequest(f"job {name} runs no Python script, so it has no interpreter to change")
    script = words_before_args(spec) - 1
    return replace(spec, argv=(python, *spec.argv[script:]), interpreter=python, environment=None)


def _environment(
    connection: Connection,
    job: Job,
    name: JobName,
    given: Mapping[str, str],
    warn: Callable[[str], None] | None,
    mine: Mapping[str, str] | None,
) -> dict[str, str]:
    """Return the environment of a retry of *job*: that of the first submission as far as it is kept, and *given*.

    Removed secrets come from the caller's environment *mine*, and so does all of a removed environment.
    """
    unreadable = Unreadable(f"what job {name} asked for cannot be read any more: submit it again")
    array_id = None if job.member is None else job.member.array_id
    for each in (job.id, array_id):
        queued = None if each is None else connection.queue.jobs.get(each)
        if queued is not None:
            if not queued.spec.env:  # the placeholder for an unreadable request has no environment
                raise unreadable
            _must_be_signed(connection, job, name, queued.spec.env)
            return {**queued.spec.env, **job.spec.env, **given}
    try:
        kept = connection.database.kept_environment(job.id, array_id)
    except Unreadable:
        raise unreadable from None
    _must_be_signed(connection, job, name, None if kept is None else kept.variables)
    mine = travelling(os.environ if mine is None else mine)
    removed = () if kept is None else tuple(each for each in kept.removed if each not in given)
    if warn is not None and (kept is None or removed):
        warn(_not_as_first(name, None if kept is None else removed, mine))
    known = dict(mine) if kept is None else {**kept.variables, **{each: mine[each] for each in removed if each in mine}}
    return {**known, **job.spec.env, **given}


def _must_be_signed(connection: Connection, job: Job, name: JobName, env: Mapping[str, str] | None) -> None:
    """Check that *job* with *env* is what its submitter asked for, if this connection signs jobs."""
    if connection.signer is not None:
        connection.signer.check(job, name, env)


def _not_as_first(name: JobName, removed: Sequence[str] | None, mine: Mapping[str, str]) -> str:
    """Return a line on what a retry cannot have from the first submission: *removed* secrets, or None for all."""
    if removed is None:
        return f"the environment of job {name} is not kept any more, or not for you: the new job gets your current one"
    found, missing = ([plain(each) for each in removed if (each in mine) is here] for here in (True, False))
    parts = [f"from your environment: {', '.join(found)}"] if found else []
    parts += [f"missing, give with --env: {', '.join(missing)}"] if missing else []
    return f"the secrets of job {name} were removed at its end; {'; '.join(parts)}"


def _must_be_over(job: Job, name: JobName) -> None:
    several = name.part is not None and name.member is None
    if several and job.spec.array is None:
        raise BadRequest(f"job {name.id} is no array: there is no part {name}")
    if job.state.is_end or several:  # a part may still have active members: only its failed ones are retried
        return
    remedy = (
        f"gpuqueue edit {name.id} changes what it asks for"
        if job.state in {JobState.QUEUED, JobState.HELD}
        else f"gpuqueue cancel {name} ends it, gpuqueue wait {name} waits for its end"
    )
    raise Refused(f"job {name} is {job.state}: only a job that has ended can be retried; {remedy}")


def _waits(changes: JobEdit, changed: JobSpec) -> Waits:
    """Return what a retry waits for: dependencies and an earliest start only if *changes* give them."""
    return Waits(
        dedupe=changed.waits.dedupe,
        after=() if changes.after is None else changed.waits.after,
        begin_at=None if changes.begin is None else changed.waits.begin_at,
    )


def _failed(connection: Connection, job: Job, array: Array, name: JobName) -> Array:
    """Return *array* with only the members that failed, limited to the part that *name* names.

    Raises:
        HistoryUnreachable: the history does not have all members that the store knows to have failed.

    """
    if job.state.is_end:
        recorded(connection, job)  # wait for the history, which may lag
    members = [record.job.member for record in _failed_members(connection, job.id, len(array))]
    known = 0 if job.tally is None else sum(job.tally.ended.get(state.value, 0) for state in FAILED)
    if len(members) < known:
        raise HistoryUnreachable(
            f"the history has {len(members)} of the {known} members of {job.id} that failed or were lost: it lags, try "
            f"again later, or name one member, such as {job.id}_0 (gpuqueue status shows the history)"
        )
    failed = Indexes.of(each.index for each in members if each and (name.part is None or each.index in name.part))
    if not failed.ranges:
        raise Refused(f"no member of {name} failed or was lost: there is nothing to retry, unless you name members")
    try:
        return replace(array, indexes=failed)
    except BadRequest as error:
        raise Refused(
            f"{len(failed)} members of {name} failed, too scattered for one array: retry parts, such as {name.id}_0-499"
        ) from error


def _failed_members(connection: Connection, array_id: int, most: int) -> list[Record]:
    from gpuqueue.model.history_query import HistoryQuery  # noqa: PLC0415 - lazy import: a submit needs no history

    return connection.database.history(HistoryQuery(array_id=array_id, states=FAILED, limit=most))
