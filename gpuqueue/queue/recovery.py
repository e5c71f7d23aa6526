"""Recovery from lost data: open the store, restore its jobs, and hand out the jobs that it still has."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from gpuqueue.clock import from_epoch_ms, to_epoch_ms
from gpuqueue.codec.request import decode_ended, decode_spec, decode_started, encode_started
from gpuqueue.errors import Unreadable
from gpuqueue.lazy.imports import later
from gpuqueue.model.device import DeviceFilter, DeviceKind
from gpuqueue.model.job import Job, JobState, WaitReason
from gpuqueue.model.run import Ending, EndingKind, Record, Run, RunDevice, StartKind, Survivor
from gpuqueue.queue import job_fields as stored
from gpuqueue.queue import keys, replies, requests
from gpuqueue.queue.entries import read_entries, read_ids
from gpuqueue.queue.lease import Stray
from gpuqueue.queue.store import Store, answering, to_ms

if TYPE_CHECKING:
    import logging
else:
    logging = later("logging")

#: Number of arguments of rebuild_array.lua for an array with unknown progress.
_UNREPORTED = 2


class Recovery:
    """Opens a store, restores its jobs from the history, and hands out the jobs that it still has."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @answering
    def begin(self) -> str | None:
        """Begin a rebuild of the store, or join the current one; return the coming epoch, None if the store is open."""
        return self._store.scripts.run("rebuild_begin", os.urandom(8).hex()) or None

    @answering
    def restore(self, epoch: str, jobs: Sequence[Survivor], *, lease_s: float) -> int | None:
        """Restore jobs of the history in their old states, before the store opens as *epoch*.

        Running jobs get a lease of *lease_s* seconds from now on. A job that cannot be restored is left out and logged.

        Returns:
            The number of jobs that were not back before; None if this rebuild is over.

        """
        each = [(epoch, to_ms(lease_s), *restored(survivor)) for survivor in jobs]
        replies = self._store.scripts.run_each("rebuild_job", each)
        for survivor, reply in zip(jobs, replies, strict=True):
            if isinstance(reply, Exception):
                if "BADARGS" not in str(reply):
                    raise reply
                logging.getLogger(__name__).error("job %s cannot be put back: %s", survivor.record.job.id, reply)
        reported = [int(reply) for reply in replies if not isinstance(reply, Exception)]
        words = [word for survivor in jobs for word in preemptions(survivor)]
        if words:
            reported.append(min(0, int(self._store.scripts.run("rebuild_preemptions", epoch, *words))))
        marks = [word for survivor in jobs for word in remembered(survivor)]
        if marks:
            reported.append(min(0, int(self._store.scripts.run("rebuild_marks", epoch, *marks))))
        return None if -1 in reported else sum(reported)

    @answering
    def gather(self, epoch: str, arrays: Sequence[Survivor]) -> bool:
        """Restore the progress of arrays, after all jobs are back; return whether this rebuild is still on.

        An array with unknown progress is held, and none of it can be released: members would run twice.
        """
        each = [(epoch, *gathered(array)) for array in arrays]
        replies = self._store.scripts.run_each("rebuild_array", each)
        unreported = {
            int(words[1]): "the history does not have its progress" for words in each if len(words) == _UNREPORTED
        }
        for words, reply in zip(each, replies, strict=True):
            if isinstance(reply, Exception):
                if "BADARGS" not in str(reply):
                    raise reply
                unreported[int(words[1])] = str(reply)
        held = self._store.scripts.run_each("rebuild_array", [(epoch, array_id) for array_id in unreported])
        replies += held
        for (array_id, why), reply in zip(unreported.items(), held, strict=True):
            if isinstance(reply, Exception):
                raise reply
            if reply == 1:
                logging.getLogger(__name__).error("array %s cannot be put back, it is held: %s", array_id, why)
        return -1 not in replies

    @answering
    def open(
        self,
        floor: int,
        *,
        epoch: str | None = None,
        last: int = 0,
        pause_s: float = 0.0,
        gpu_hosts: Collection[str] = (),
    ) -> bool:
        """Open the store; return whether this call opened it. New ids start above *floor*.

        *epoch* is the return value of :meth:`begin`. *last* is the highest id in the history. No job is claimed for
        *pause_s* seconds. *gpu_hosts* have served GPUs.
        """
        epoch = epoch or self.begin()
        words: list[str | float] = [floor, last, to_ms(pause_s), *gpu_hosts]
        return epoch is not None and bool(self._store.scripts.run("rebuild_finish", epoch, *words))

    @answering
    def pause_left_s(self) -> float:
        """Return how many seconds claims stay paused after a rebuild; 0 if they are not paused."""
        claims, ticked = cast("list[str | None]", self._store.client.hmget(keys.META, "claims", "reap"))
        now_ms = self._store.now_ms()
        claims_ms = int(claims or 0)
        return max(1, claims_ms - now_ms) / 1000 if is_paused(claims_ms, int(ticked or 0), now_ms=now_ms) else 0.0

    @answering
    def last_given(self) -> int:
        """Return the last job id that was assigned or skipped."""
        return int(cast("str | None", self._store.client.get(keys.SEQ)) or 0)

    def survivors(self) -> Iterator[list[Survivor]]:
        """Yield every job that the store still holds, with its current or last run, in pages ordered by id.

        Jobs with damaged entries are left out.

        Raises:
            Unreachable: the store does not answer.

        """
        last = "0"
        while page := self._survivors(last):
            last = page[-1][0]
            yield [job for _, job in page if job is not None]

    @answering
    def _survivors(self, after: str) -> list[tuple[str, Survivor | None]]:
        ids = read_ids(self._store, after, limit=500)
        found = zip(ids, read_entries(self._store, ids), strict=True)
        return [(each, survivor(int(each), fields, spec) if fields else None) for each, (fields, spec) in found]


def is_paused(claims_ms: int | None, ticked_ms: int | None, *, now_ms: int) -> bool:
    """Return whether claims are paused, by the fields ``claims`` and ``reap`` of the store's ``meta`` hash.

    As ``pausing`` in ``lua/shared/fair_share.lua``: a pause lasts until the first tick after its end.
    """
    return (claims_ms or 0) > min(now_ms, ticked_ms or 0)


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
        requests.waits_words_left(job, survivor.ends, again=_again(survivor)),
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
        return WaitReason.REQUEUE if job.requeues or job.reason is WaitReason.REQUEUE else None
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
    waits = requests.waits_words(spec)
    if spec is not asked:
        waits = f"{waits} memretries=1".strip()  # at least once
    shape = spec.shape
    if shape.device is None and stray.devices[0].kind not in {None, DeviceKind.CPU, DeviceKind.SLURM}:
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
        notes=ended.notes,
        values=ended.values,
    )
    return replace(record, runs=(done,))


def _run_of(job: Job, token: str, fields: Mapping[str, str]) -> Run:
    log_path, devices = (
        None,
        tuple(RunDevice(uuid=uuid, lease_bytes=int(fields[stored.MEM_BYTES])) for uuid in job.devices),
    )
    if fields.get(stored.START_REPORT):
        log_path, devices, _ = decode_started(fields[stored.START_REPORT])
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
