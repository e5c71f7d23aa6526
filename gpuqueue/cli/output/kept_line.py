"""What ``gpuqueue show`` says about the files that a job asked to keep."""

from __future__ import annotations

from gpuqueue.client import Client
from gpuqueue.errors import GpuQueueError
from gpuqueue.model.run import Record
from gpuqueue.model.run_files import KeptFiles, KeptState
from gpuqueue.text.sanitize import plain
from gpuqueue.text.units import format_bytes
from gpuqueue.words.times import when

_WORDS = {KeptState.WAITING: "not yet", KeptState.FAILED: "nothing", KeptState.UNKNOWN: "not known"}


def kept_of(client: Client, record: Record) -> KeptFiles | None:
    """Return the state of the files that a job keeps; None if it keeps none, or has not run."""
    job = record.job
    if not job.spec.keep or job.spec.array is not None or not any(run.log_path for run in record.runs):
        return None
    try:
        return client.files.kept(job.label)
    except GpuQueueError as error:
        return KeptFiles(state=KeptState.UNKNOWN, reason=str(error))


def kept_line(found: KeptFiles, label: str) -> str:
    """Return the line of ``gpuqueue show`` about the kept files of the job *label*."""
    if found.state is KeptState.KEPT and found.size_bytes is not None:
        until = f" until {when(found.expires_at)}" if found.expires_at is not None else ""
        return f"  kept       {format_bytes(found.size_bytes)}{until} (gpuqueue fetch --kept {label})"
    return f"  kept       {_WORDS.get(found.state, str(found.state))}: {plain(found.reason or '-')}"
