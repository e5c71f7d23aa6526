"""Jobs and runs in the form of the ``--json`` output. They are only written, never read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuqueue.codec.text import Plain, iso
from gpuqueue.codec.wire import to_plain
from gpuqueue.lazy.imports import later
from gpuqueue.model.job import Job

if TYPE_CHECKING:
    from gpuqueue.model import mem_source, notification
    from gpuqueue.model.notification import Delivery
    from gpuqueue.model.run import Record, Run
else:  # a submit writes no job
    mem_source = later("gpuqueue.model.mem_source")
    notification = later("gpuqueue.model.notification")


def job_to_plain(job: Job) -> Plain:
    """Return *job* as the ``--json`` output shows it, without the environment."""
    spec = job.spec
    return {
        "id": job.id,
        "name": spec.name,
        "user": spec.account.name,
        "submit_host": spec.account.host,
        "state": job.state.value,
        "reason": job.reason.value if job.reason else None,
        "command": list(spec.argv),
        "cwd": spec.cwd,
        "script": spec.script,
        "interpreter": spec.interpreter,
        "environment": spec.environment,
        "mem_bytes": spec.mem_bytes,
        "mem_source": _mem_source_to_plain(spec.mem_source),
        "expected_utilisation": spec.expected_utilisation,
        "gpus": spec.gpus,
        "device": spec.device.value if spec.device else None,
        "placement": to_plain(spec.placement),
        "time_limit_s": spec.time_limit_s,
        "signal": str(spec.signal) if spec.signal else None,
        "priority": str(spec.priority),
        "pool": spec.pool,
        "attempt": job.attempt,
        "losses": job.losses,
        "retries": job.retries,
        "max_retries": spec.retries.times,
        "retry_on": [each.value for each in spec.retries.on] if spec.retries.times else [],
        "requeues": job.requeues,
        "mem_retries": job.mem_retries,
        "max_mem_retries": spec.retries.most_mem_times,
        "after": [str(each) for each in spec.waits.after],
        "awaits": [str(each) for each in job.awaits],
        "begins_at": iso(job.begins_at),
        "idle_since": iso(job.idle_since),
        "dedupe": spec.waits.dedupe,
        "notifications": [{"when": each.when.value, "to": each.shown} for each in spec.notifications],
        "because": job.because,
        "submitted_at": iso(job.submitted_at),
        "claimed_at": iso(job.claimed_at),
        "started_at": iso(job.started_at),
        "ended_at": iso(job.ended_at),
        "host": job.host,
        "devices": list(job.devices),
        "array_id": job.member.array_id if job.member else None,
        "array_index": job.member.index if job.member else None,
        "array": tally_to_plain(job),
        "retry_of": spec.retry_of,
        "front": job.front,
        "tags": list(job.tags),
        "note": job.note,
        "git": to_plain(spec.git),
        "separate_stderr": spec.separate_stderr,
        "keep": list(spec.keep),
        "probe": spec.probe,
        "cpus": spec.cpus,
        "cpu_mem_bytes": spec.cpu_mem_bytes,
    }


def _mem_source_to_plain(text: str | None) -> Plain | None:
    source = mem_source.MemSource.known(text)
    if source is None:
        return None
    return {
        "kind": source.kind.value,
        "runs": source.runs,
        "signature": source.signature.value if source.signature else None,
    }


def tally_to_plain(job: Job) -> Plain | None:
    """Return the array of *job* as the ``--json`` output shows it, None for any other job."""
    array, here = job.spec.array, job.tally
    if array is None:
        return None
    return {
        "indexes": str(array.indexes),
        "count": len(array),
        "at_once": array.at_once,
        "sweep": [str(axis) for axis in array.axes],
        "left": str(here.left) if here else None,
        "held": str(here.held) if here else None,
        "ended": dict(here.ended) if here else None,
    }


def run_to_plain(run: Run) -> Plain:
    """Return *run* as the ``--json`` output shows it."""
    return {
        "job_id": run.job_id,
        "attempt": run.attempt,
        "host": run.host,
        "worker": run.worker,
        "claimed_at": iso(run.claimed_at),
        "started_at": iso(run.started_at),
        "ended_at": iso(run.ended_at),
        "duration_s": run.duration_s,
        "ending": to_plain(run.ending),
        "peak_bytes": run.peak_bytes,
        "peak_at_once_bytes": run.peak_at_once_bytes,
        "start_kind": str(run.start_kind) if run.start_kind else None,
        "log_path": run.log_path,
        "devices": to_plain(run.devices),
    }


def record_to_plain(record: Record) -> Plain:
    """Return *record* as the ``--json`` output shows it.

    This is the job, its ``runs`` and ``notes``, and its notifications as ``deliveries``.
    """
    notes = [{"at": iso(note.at), "attempt": note.attempt, "text": note.text} for note in record.notes]
    runs = [run_to_plain(run) for run in record.runs]
    return {
        **job_to_plain(record.job),
        "runs": runs,
        "notes": notes,
        "deliveries": [_reported(record, each) for each in record.reported],
    }


def _reported(record: Record, reported: Delivery) -> Plain:
    notifications = record.job.spec.notifications
    place = notification.target_number(reported.number)
    return {
        "to": notifications[place].shown if place < len(notifications) else None,
        "about": "idle" if notification.is_about_idle(reported.number) else "end",
        "outcome": reported.outcome.value if reported.outcome else None,
        "at": iso(reported.at),
        "tries": reported.tries,
        "trouble": reported.trouble,
    }
