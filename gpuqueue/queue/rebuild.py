"""Converts jobs that the store or the history has lost to script arguments, and jobs of the store to records.

The store gets its lost jobs back from the history, or from the workers of their runs. The history gets its lost jobs
back from the store.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from gpuqueue.clock import from_epoch_ms, to_epoch_ms
from gpuqueue.codec import decode_ended, decode_spec, decode_started, encode_started
from gpuqueue.errors import Unreadable
from gpuqueue.lazy.imports import later
from gpuqueue.model.device import DeviceFilter, DeviceKind
from gpuqueue.model.job import Job, JobState, WaitReason
from gpuqueue.model.run import Ending, EndingKind, Record, Run, RunDevice, StartKind, Survivor
from gpuqueue.queue import dependency_args, replies
from gpuqueue.queue import job_fields as stored
from gpuqueue.queue.lease import Stray

if TYPE_CHECKING:
    import logging
else:
    logging = later("logging")


def restored(survivor: Survivor) -> list[str | float]:
    """Return the arguments of rebuild_job.lua for a job, without the epoch and the lease.

    A running job without a recorded run goes back to the queue, and its last attempt does not count.
    """
    job, run = survivor.record.job, survivor.run
    spec = job.spec
    unreported = job.state.is_active and run is None
    words: list[str | float] = [
        job.id,
        JobState.QUEUED.value if unreported else job.state.value,
        job.reason.value if job.reason and job.state is JobState.HELD else "",  # dependencies.lua sets other reasons
        spec.account.name,
        int(spec.priority),
        spec.mem_bytes,
        str(survivor.shape),
        int(spec.requeue),
        survivor.payload,
        to_epoch_ms(job.submitted_at),
        max(0, job.attempt - 1) if unreported else job.attempt,
        job.losses,
        dependency_args.left(job, survivor.ends, again=_again(survivor)),
    ]
    return words if run is None else [*words, *_run(survivor, run)]


def _again(survivor: Survivor) -> WaitReason | None:
    """Return why a waiting job runs again after its last run: RETRY, REQUEUE, or None for neither.

    A preempted or lost job usually runs again without a retry. A loss takes a retry only after too many losses. The
    history knows this only while the job waits for its time; afterwards the loss is not counted as a retry.
    """
    job, run = survivor.record.job, survivor.record.last_run
    if job.state.is_active or run is None or run.attempt != job.attempt or run.ending is None:
        return None
    if run.ending.exit_code == os.EX_TEMPFAIL and run.ending.kind is EndingKind.EXITED:
        return WaitReason.REQUEUE if job.requeues else None
    if not job.retries or run.ending.kind is EndingKind.PREEMPTED:
        return None
    if run.ending.kind is EndingKind.OUT_OF_MEMORY and job.mem_retries:
        return None
    was_lost = run.ending.kind is EndingKind.LOST
    return WaitReason.RETRY if not was_lost or job.reason is WaitReason.RETRY else None


def gathered(survivor: Survivor) -> list[str | int]:
    """Return the arguments of rebuild_array.lua after the epoch; the id alone if the progress is unknown."""
    job = survivor.record.job
    if job.tally is None:
        return [job.id]
    ended = [job.tally.ended[state.value] for state in (JobState.SUCCEEDED, JobState.FAILED, JobState.LOST)]
    began_ms = to_epoch_ms(job.started_at) if job.started_at else 0
    return [job.id, str(job.tally.left), str(job.tally.held), int(job.state is JobState.CANCELLING), *ended, began_ms]


def preemptions(survivor: Survivor) -> tuple[int, ...]:
    """Return a job's id and how often it was preempted; an empty tuple if it never was."""
    endings = [run.ending for run in survivor.record.runs if run.ending is not None]
    times = sum(ending.kind is EndingKind.PREEMPTED for ending in endings)
    return (survivor.record.job.id, times) if times else ()


def remembered(survivor: Survivor) -> tuple[int | str, ...]:
    """Return the place, tags and note of a job for rebuild_marks.lua; an empty tuple if none has changed."""
    job = survivor.record.job
    tagged = set(job.tags) != set(job.spec.tags)
    if job.front is None and not tagged and job.note is None:
        return ()
    return (job.id, "" if job.front is None else job.front, int(tagged), ",".join(job.tags), job.note or "")


def _run(survivor: Survivor, run: Run) -> list[str | float]:
    spec = survivor.record.job.spec
    claimed_ms = to_epoch_ms(run.claimed_at)
    total_bytes = run.devices[0].total_bytes
    return [
        run.token,
        run.host,
        run.worker,
        ",".join(device.uuid for device in run.devices),
        claimed_ms,
        to_epoch_ms(run.started_at) if run.started_at else claimed_ms,
        _rate(spec.gpus * (spec.mem_bytes / total_bytes if total_bytes and not spec.placement.exclusive else 1.0)),
        encode_started(log_path=run.log_path or "", devices=run.devices),
        to_epoch_ms(survivor.parked_until) if survivor.parked_until else 0,
    ]


def offered(stray: Stray) -> list[str | float]:
    """Return the arguments of adopt.lua about a run and its job.

    A job that the store has lost can come back only with a readable spec.
    """
    shares = (device.lease_bytes / (device.total_bytes or device.lease_bytes) for device in stray.devices)
    words: list[str | float] = [
        stray.host,
        stray.worker,
        ",".join(device.uuid for device in stray.devices),
        "" if stray.claimed_ms is None else stray.claimed_ms,
        _rate(sum(shares)),
        encode_started(log_path=stray.log_path, devices=stray.devices),
    ]
    try:
        spec = decode_spec(stray.payload or "")
    except Unreadable:
        return [*words, ""]
    asked, spec = spec, replies.granted(spec, stray.devices[0].lease_bytes)
    waits = dependency_args.asked(spec)
    if spec is not asked:
        waits = f"{waits} memretries=1".strip()  # at least once
    shape = spec.shape
    if shape.device is None and stray.devices[0].kind not in {None, DeviceKind.CPU}:
        shape = replace(shape, device=DeviceFilter.GPU)  # as in submit.lua: it must not run on a CPU later
    whose: list[str | float] = [spec.account.name, int(spec.priority), spec.mem_bytes, str(shape), int(spec.requeue)]
    return [*words, stray.payload or "", *whose, waits]


def survivor(job_id: int, fields: Mapping[str, str], payload: str | None) -> Survivor | None:
    """Return a job of the store with its current or last run; only the history knew the earlier runs.

    Returns None for an unreadable job, so that it does not block the others.
    """
    try:
        job = replies.job(job_id, fields, payload)
        token = fields.get(stored.TOKEN)
        run = _run_of(job, token, fields) if token else None
    except (Unreadable, ValueError, KeyError) as error:
        logging.getLogger(__name__).error("job %s cannot be recorded in the history: %s", job_id, error)
        return None
    # The reason MEMORY is derived when a job is read; no event records it.
    job = replace(job, reason=None if job.reason is WaitReason.MEMORY else job.reason)
    record = Record(job=job, runs=(run,) if run else ())
    meant = job.spec.shape.device is None and fields.get(stored.SHAPE, "").split(":")[4:5] == [DeviceFilter.GPU.value]
    return Survivor(record=record, payload=payload or "", meant_for_gpu=meant)


def with_end(record: Record, event: Mapping[str, str]) -> Record:
    """Return *record* with the end of its run from the event of that end; unchanged if the event does not have it."""
    run = record.runs[-1]
    ended_at = record.job.ended_at
    if event.get("token") != run.token:
        return record
    if "ended" not in event:
        ending = Ending.lost(event.get("detail", "")) if record.job.state is JobState.LOST else None
        return replace(record, runs=(replace(run, ended_at=ended_at, ending=ending),))
    try:
        ended = decode_ended(event["ended"])
    except Unreadable:
        return record
    done = replace(
        run,
        ended_at=ended_at,
        duration_s=ended.duration_s,
        ending=ended.ending,
        devices=ended.devices or run.devices,
        peak_at_once_bytes=ended.peak_at_once_bytes,
    )
    return replace(record, runs=(done,))


def _run_of(job: Job, token: str, fields: Mapping[str, str]) -> Run:
    log_path, devices = (
        None,
        tuple(RunDevice(uuid=uuid, lease_bytes=int(fields[stored.MEM_BYTES])) for uuid in job.devices),
    )
    if fields.get(stored.START_REPORT):
        log_path, devices = decode_started(fields[stored.START_REPORT])
    return Run(
        job_id=job.id,
        attempt=job.attempt,
        token=token,
        host=fields[stored.HOST],
        worker=fields[stored.WORKER],
        devices=devices,
        claimed_at=from_epoch_ms(int(fields[stored.CLAIMED_MS])),
        started_at=job.started_at,
        log_path=log_path or None,
        start_kind=StartKind.known(fields.get(stored.START_KIND)),
    )


def _rate(rate: float) -> str:
    """Return a usage per second as text for the scripts, which accept no exponent."""
    return f"{rate:.9f}"
