"""The names of devices and jobs in the sentences of ``why``."""

from __future__ import annotations

from gpuqueue.client.why import Why
from gpuqueue.queue.explanation import Verdict
from gpuqueue.text.sanitize import plain
from gpuqueue.words import values


def label(found: Why, uuid: str) -> str:
    """Return the label of a device: ``HOST:INDEX``, or its UUID if no worker has announced it."""
    status = found.devices.get(uuid)
    return plain(uuid) if status is None else values.place_of(status.host, [status.device])


def trouble_on(found: Why, verdict: Verdict) -> str | None:
    """Return why the worker of a device gives it no job now, None if it does or nobody knows."""
    status = found.devices.get(verdict.device)
    return None if status is None or status.trouble is None else plain(status.trouble)


def called(found: Why, job_id: int) -> str:
    """Return ``job`` and the label of a job, or its id if the label is unknown."""
    other = found.others.get(job_id)
    return f"job {other.label if other else job_id}"


def named(found: Why, job_id: int) -> str:
    """Return the same as :func:`called`, with the job's user if known."""
    other = found.others.get(job_id)
    return called(found, job_id) + (f" ({plain(other.spec.account.name)})" if other else "")


def count(number: int, noun: str) -> str:
    """Return *number* and *noun*, in the plural if needed."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
