"""Edits waiting jobs, and gives jobs more time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from gpuqueue.client import notifications, reads
from gpuqueue.client.connection import Connection
from gpuqueue.client.devices import check_limits, uuids_of
from gpuqueue.client.memory import OpenMemory, with_memory
from gpuqueue.client.placement import UuidsOf, replaced
from gpuqueue.errors import BadRequest
from gpuqueue.model import job_ref, times, validation, whole_jobs
from gpuqueue.model.job import Job, JobState
from gpuqueue.model.job_request import JobEdit, spec_fields
from gpuqueue.model.job_spec import ASKED, AUTO, JobSpec
from gpuqueue.model.validation import NONE

#: The values of a job that the word ``none`` removes.
REMOVABLE = frozenset({"time_limit", "signal", "cpus", "cpu_mem"})


def edit(connection: Connection, job: int | str, wanted: JobEdit) -> Job:
    """Apply *wanted*; if the queue has deleted a dependency, apply again with its ending from the history."""
    from gpuqueue.queue.requests import Unknown, only_waiting  # noqa: PLC0415 - lazy import for startup time

    job_id = job_ref.whole_job(job)
    if not wanted:
        raise BadRequest(f"give an option to change: gpuqueue edit {job_id} --mem 8G")
    change = change_of(wanted, lambda names: uuids_of(connection, names))
    notifications.judge(connection, notifications.replaced((), wanted.on_end, wanted.on_fail))
    apply = partial(
        connection.queue.requests.edit,
        job_id,
        _signed(connection, job_id, _checked(connection, wanted, _with_learned(connection, wanted, change))),
        priority=wanted.priority is not None,
        after=wanted.after is not None,
        begin=wanted.begin is not None,
        time=wanted.time_limit is not None,
        by=connection.user,
    )
    try:
        state = apply()
    except Unknown as unknown:
        state = reads.with_ends(connection, unknown, lambda ends: apply(ends=ends))
    if state is None:
        raise only_waiting(job_id, reads.show(connection, job_id).job.state)
    return reads.get(connection, job_id)


def extend(connection: Connection, job: int | str, time: str | float) -> Job:
    """Raise the time limit of a job by *time*; if it waits, as an edit does."""
    from gpuqueue.queue.requests import not_extended  # noqa: PLC0415 - lazy import for startup time

    name, added_s = job_ref.one_job(job), validation.added_time(time)
    while True:
        known = reads.show(connection, str(name)).job
        if known.spec.array is not None or known.member is not None or known.spec.time_limit_s is None:
            raise not_extended(known)
        if known.state in {JobState.QUEUED, JobState.HELD}:
            return edit(connection, known.id, JobEdit(time_limit=known.spec.time_limit_s + added_s))
        if known.spec.is_whole:
            raise BadRequest(
                f"job {known.label} is at {known.spec.device}, which keeps its time limit: change it there"
            )
        state = connection.queue.requests.extend(known.id, added_s, by=connection.user)
        if state is None or state.is_end or state is JobState.CANCELLING:
            raise not_extended(reads.show(connection, known.id).job)
        if state in {JobState.STARTING, JobState.RUNNING}:
            return reads.get(connection, known.id)


def _signed(connection: Connection, job_id: int, change: Callable[[JobSpec], JobSpec]) -> Callable[[JobSpec], JobSpec]:
    """Return *change*, and a renewed ticket if this connection signs jobs."""
    signer = connection.signer
    return change if signer is None else lambda spec: signer.renewed(change(spec), job_id)


def _checked(
    connection: Connection, wanted: JobEdit, change: Callable[[JobSpec], JobSpec]
) -> Callable[[JobSpec], JobSpec]:
    """Return *change*, and a check of the limits of the changed job if *wanted* sets one."""
    if {wanted.cpus, wanted.cpu_mem} <= {None, NONE}:
        return change

    def checked(spec: JobSpec) -> JobSpec:
        changed = change(spec)
        check_limits(connection, changed)
        return changed

    return checked


def _with_learned(
    connection: Connection, wanted: JobEdit, change: Callable[[JobSpec], JobSpec]
) -> Callable[[JobSpec], JobSpec]:
    """Return *change*, and the memory that earlier runs of the changed job needed if *wanted* asks for it."""
    if wanted.mem != AUTO:
        return change
    return lambda spec: with_memory(connection, change(spec), OpenMemory(auto=True), None)


def change_of(wanted: JobEdit, uuids_of: UuidsOf) -> Callable[[JobSpec], JobSpec]:
    """Return a function that makes the changed spec. *uuids_of* maps names of devices to UUIDs.

    A memory of ``"auto"`` stays as it is: the caller knows whose history to ask. The returned function raises
    BadRequest if the changed spec is invalid.

    Raises:
        BadRequest: a value is malformed.

    """
    fields, waits, place = _fields(wanted), _waits(wanted), replaced(wanted, uuids_of)
    notified = partial(notifications.replaced, on_end=wanted.on_end, on_fail=wanted.on_fail)

    def changed(spec: JobSpec) -> JobSpec:
        if spec.is_whole:
            whole_jobs.check_edit(spec, wanted)
        return replace(
            spec,
            **fields,
            **place(spec.placement),
            waits=replace(spec.waits, **waits),
            retries=validation.other_retries(spec.retries, wanted.retries, wanted.retry_on, wanted.mem_retries),
            array=validation.other_at_once(spec.array, wanted.at_once),
            notifications=notified(spec.notifications),
        )

    return changed


def _fields(wanted: JobEdit) -> dict[str, Any]:
    """Return the fields of the spec that take one value each."""
    faults = validation.Faults()
    fields = faults.of("", spec_fields, wanted, REMOVABLE) or {}
    if wanted.time_limit is not None:
        fields["extended_s"] = 0.0
    if wanted.mem is not None and wanted.mem != AUTO:
        fields |= {"mem_bytes": faults.of("mem", validation.mem_bytes, wanted.mem), "mem_source": ASKED}
    faults.check()
    return fields


def _waits(wanted: JobEdit) -> dict[str, Any]:
    waits: dict[str, Any] = {}
    if wanted.after is not None:
        waits["after"] = () if wanted.after in (NONE, (NONE,)) else validation.dependencies(wanted.after)
    if wanted.begin is not None:
        waits["begin_at"] = times.begin(wanted.begin)
    return waits
