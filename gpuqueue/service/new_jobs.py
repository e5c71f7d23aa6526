"""New jobs: the body of a submit becomes a spec of the caller's account."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable
from dataclasses import fields, replace
from functools import partial
from typing import Any

from gpuqueue.client import notifications, placeholders
from gpuqueue.client.memory import OpenMemory, with_expected_duration, with_expected_utilisation, with_memory
from gpuqueue.client.placement import counts_use
from gpuqueue.client.retry import spec_again
from gpuqueue.client.submit import (
    MAX_MANY,
    ON_CPU,
    environments_of,
    is_checked_first,
    queued,
    queued_many,
    unconfirmed,
    with_max_failures,
    with_mem_retries,
)
from gpuqueue.errors import BadRequest, GpuQueueError, StoreUnreachable
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.access import Action
from gpuqueue.model.api import NewJob, NewJobs, RetryRequest
from gpuqueue.model.code_snapshot import CodeSnapshot
from gpuqueue.model.job import Job
from gpuqueue.model.job_spec import ASKED, JobSpec, JobTerms
from gpuqueue.model.mem_source import MemSource
from gpuqueue.model.python_environments import check_known
from gpuqueue.queue.requests import new_nonce
from gpuqueue.service.batches import Steps, Unqueued
from gpuqueue.service.call import Call
from gpuqueue.service.identity.audit_journal import Change
from gpuqueue.service.uploads import check_held, share
from gpuqueue.system.command_line import name_of
from gpuqueue.text.units import MIB

_KEY = re.compile(r"[A-Za-z0-9_-]{1,128}")


@dataclass(frozen=True, slots=True)
class KeyedRequest:
    """A request with an Idempotency-Key: the key, and the digest of the path and the body."""

    key: str
    digest: str

    @classmethod
    def of(cls, key: str, path: str, body: bytes) -> KeyedRequest:
        """Return the request with *key*."""
        return cls(key, hashlib.sha256(path.encode("utf-8", "surrogateescape") + b"\0" + body).hexdigest())


def submitted(
    call: Call, wanted: NewJob, key: KeyedRequest | None, note: Callable[[str], None]
) -> Steps[tuple[Job, bool]]:
    """Submit *wanted* and return its job, and whether it is new. The same *key* of an account yields the same job.

    *note* is called with lines about the memory and the device of the job.

    Raises:
        BadRequest: a value is malformed.
        JobNotFound: it is a retry of a job that does not exist.
        Refused: no launcher starts jobs of the caller's account, or it is a retry of a job that has not ended.
        Forbidden: it is a retry of a job that the caller may not run again.

    """
    if wanted.retry_of is None:
        with call.change(Action.SUBMIT, "submit") as change:
            spec, nonce = spec_of(call, wanted, note), _nonce(call, key) or new_nonce()
            call.must_run()
            job = None
            if not is_checked_first(spec):
                job = yield Unqueued(spec=spec, nonce=nonce, on_cpu=partial(note, ON_CPU))
            if isinstance(job, Job):
                change.concerns(str(job.id))
                return job, True
            try:
                return _queued(call, spec, nonce, change, note=note)
            except StoreUnreachable as error:
                if job is None or not job.is_unanswered or error.is_unanswered:
                    raise
                raise unconfirmed(error) from error
    first = str(wanted.retry_of)  # some clients send the whole request of a retry
    with call.change(Action.RETRY, "retry", first, owner=call.owner_of(first)) as change:
        call.must(Action.SUBMIT)
        return _queued(call, spec_of(call, wanted, note), _nonce(call, key), change, first, note=note)


def submitted_many(
    call: Call, wanted: NewJobs, key: KeyedRequest | None, note: Callable[[str], None]
) -> list[Job | GpuQueueError]:
    """Submit the jobs of a list, and return each, or why it was refused. The same *key* yields the same jobs.

    Raises:
        BadRequest: a value is malformed, a job is a retry, or there are too many. Nothing is submitted.
        Refused: no launcher starts jobs of the caller's account.

    """
    if len(wanted.jobs) > MAX_MANY or any(each.retry_of is not None for each in wanted.jobs):
        raise BadRequest(f"a list has at most {MAX_MANY} jobs, and no retries")
    with call.change(Action.SUBMIT, "submit") as change:
        call.must_run()
        whole = [replace(each, env={**wanted.env, **each.env}) for each in wanted.jobs]
        specs = [spec_of(call, each, note) for each in whole]
        outcomes = queued_many(call.connection, specs, nonce=_nonce(call, key), note=note)
        change.concerns(*(str(each.id) for each in outcomes if isinstance(each, Job)))
        return outcomes


def repeated(call: Call, wanted: NewJob, *, name: str, nonce: str, taken: int) -> Job:
    """Submit *wanted* for a time of the repeating job *name*, with the id *taken*, and return its job.

    Raises:
        TakenExpired: no job has this id, and none gets it any more.

    """
    with call.change(Action.SUBMIT, "submit", detail={"cron": name}) as change:
        spec = spec_of(call, wanted, _ignored)
        call.must_run()
        found: list[Job] = []
        job = queued(call.connection, spec, found.append, nonce=nonce, note=_ignored, taken=taken)
        change.concerns(str(job.id))
        return job


def _ignored(_note: str) -> None:
    """Take a line for the submitter, who is not there."""


def retried(
    call: Call,
    name: str,
    wanted: RetryRequest,
    key: KeyedRequest | None,
    warn: Callable[[str], None],
    tags: tuple[str, ...] | None = None,
) -> tuple[Job, bool]:
    """Submit the request of the job *name* again, as :func:`submitted` does. *warn* gets what differs from the first.

    *tags* replace those of the first job.

    Raises:
        BadRequest: a value is malformed.
        Refused: the job has not ended.

    """
    with call.change(Action.RETRY, "retry", name, owner=call.owner_of(name)) as change:
        call.must(Action.SUBMIT)
        spec = spec_of_retry(call, name, wanted, warn)
        return _queued(call, spec if tags is None else replace(spec, tags=tags), _nonce(call, key), change, name)


def spec_of(call: Call, wanted: NewJob, note: Callable[[str], None]) -> JobSpec:
    """Return the spec of *wanted*, with the caller's account and with the defaults of the site."""
    values = {field.name: getattr(wanted, field.name) for field in fields(JobTerms)}
    values |= {"name": wanted.name, "mem_bytes": wanted.mem_bytes, **_memory_of(wanted)}
    if wanted.name is None:
        values["name"] = name_of(wanted.argv, wanted.script) if wanted.argv else "job"
    if wanted.device is None and not wanted.placement.devices:
        values["device"] = call.connection.settings.default_device
    if call.account.uid != os.geteuid():
        values["notifications"] = notifications.made_anew(wanted.notifications)
    notifications.judge(call.connection, values["notifications"])
    if wanted.environment is not None:
        check_known(wanted.environment, environments_of(call.connection.queue.devices.all()))
    if wanted.snapshot is not None:
        check_held(call, CodeSnapshot.parse(wanted.snapshot))
    spec = with_mem_retries(JobSpec(**values, account=call.account), call.connection.settings)
    spec = with_max_failures(spec, call.connection.settings)
    if spec.array is not None:
        placeholders.check(spec)
    if spec.is_whole:
        return spec
    if wanted.expected_utilisation is None and counts_use(spec, call.connection.settings):
        spec = with_expected_utilisation(call.connection, spec)
    if wanted.expected_duration_s is None:
        spec = with_expected_duration(call.connection, spec)
    return with_memory(call.connection, spec, _open_memory(wanted), note if wanted.retry_of is None else None)


def _memory_of(wanted: NewJob) -> dict[str, Any]:
    """Return the fields of the spec about memory. A memory that is left open is 1 MiB for now."""
    if wanted.mem_bytes is None:
        return {"mem_bytes": MIB, "mem_source": None}
    if wanted.auto_mem:
        raise BadRequest("give mem_bytes, or auto_mem, but not both")
    if wanted.placement.whole:
        return {"mem_source": None}
    if wanted.mem_source is not None:
        return {"mem_source": str(MemSource.parse(wanted.mem_source))}
    return {"mem_source": ASKED if wanted.retry_of is None else None}


def _open_memory(wanted: NewJob) -> OpenMemory | None:
    if wanted.mem_bytes is not None:
        return None
    return OpenMemory(
        auto=wanted.auto_mem,
        estimated_bytes=wanted.estimated_mem_bytes,
        default_bytes=wanted.default_mem_bytes,
    )


def spec_of_retry(call: Call, name: str, wanted: RetryRequest, warn: Callable[[str], None]) -> JobSpec:
    """Return the spec of a retry of the job *name*."""
    owner = call.owner_of(name)
    call.must(Action.RETRY, owner)
    spec = spec_again(
        call.connection,
        name,
        wanted.changes if call.account.uid == os.geteuid() else notifications.anew(wanted.changes),
        args=wanted.args,
        python=wanted.python,
        env=wanted.env,
        warn=warn,
        mine=wanted.fallback_env,
    )
    if spec.snapshot is not None:
        share(call, CodeSnapshot.parse(spec.snapshot), owner)
    return spec


def _queued(
    call: Call,
    spec: JobSpec,
    nonce: str | None,
    change: Change,
    *before: str,
    note: Callable[[str], None] | None = None,
) -> tuple[Job, bool]:
    """Submit *spec*, and return its job, and whether it is new. The *change* names it behind the jobs *before*."""
    call.must_run()
    found: list[Job] = []
    job = queued(call.connection, spec, found.append, nonce=nonce, note=note)
    change.concerns(*before, str(job.id))
    return job, not found


def _nonce(call: Call, key: KeyedRequest | None) -> str | None:
    """Return the nonce of *key*. Keys of different accounts never meet, nor does a key of different requests.

    Raises:
        BadRequest: the key is malformed.

    """
    if key is None:
        return None
    if not _KEY.fullmatch(key.key):
        raise BadRequest("an Idempotency-Key has 1 to 128 letters, digits, - and _")
    return hashlib.sha256(f"{call.account.uid}\0{call.account.name}\0{key.key}\0{key.digest}".encode()).hexdigest()
