"""What the keys of ``gpuqueue top`` do with one job or several."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gpuqueue.cli.output.queue_table import Line
from gpuqueue.cli.top import lines
from gpuqueue.client import Client
from gpuqueue.errors import GpuQueueError
from gpuqueue.model.job import JobState
from gpuqueue.text.sanitize import plain, short

#: Changes the job of a line and returns the result in a few words.
Act = Callable[[Client, Line], str]
#: Longest list of jobs in a message, in columns.
LISTED = 40


def cancel(client: Client, line: Line) -> str:
    """Cancel the job; a line of an array stands for the whole array."""
    return str(client.jobs.cancel(line.job.id).state)


def hold(client: Client, line: Line) -> str:
    """Hold the job, or release it if it is held."""
    act = client.jobs.release if line.state is JobState.HELD else client.jobs.hold
    return str(act(line.job.id).state)


def retry(client: Client, line: Line) -> str:
    """Submit the request of an ended job again."""
    return f"submitted again as {client.jobs.retry(line.job.id).label}"


def raise_priority(by: int) -> Act:
    """Return the act that changes the priority by *by* steps. The store checks the permission."""

    def act(client: Client, line: Line) -> str:
        now = client.jobs.get(line.job.id)  # the snapshot may lack an earlier key press
        priority = lines.priority_beside(now, by)
        if priority is None:
            return f"priority {now.spec.priority}, and there is none {'above' if by > 0 else 'below'}"
        return f"priority {client.jobs.edit(line.job.id, priority=priority).spec.priority}"

    return act


def change(client: Client, chosen: Sequence[Line], act: Act) -> str:
    """Do *act* to each job, and return what happened; jobs with the same result are named together."""
    results: dict[str, list[str]] = {}
    for line in {line.job.id: line for line in chosen}.values():
        try:
            results.setdefault(f": {act(client, line)}", []).append(line.job.label)
        except GpuQueueError as error:
            results.setdefault(f" is unchanged: {error}" if len(chosen) > 1 else str(error), []).append(line.job.label)
    messages = []
    for result, labels in results.items():
        named = result.startswith((":", " "))
        messages.append(f"job {short(', '.join(labels), LISTED)}{result}" if named else result)
    return "; ".join(messages)


def question(verb: str, chosen: Sequence[Line]) -> str:
    """Return the question whether to *verb* these jobs."""
    if len(chosen) > 1:
        return f"{verb} {len(chosen)} jobs: {short(', '.join(line.job.label for line in chosen), LISTED)}?"
    job = chosen[0].job
    which = job.label if job.spec.array is None else f"{job.label} with all its members"
    return f"{verb} job {which} ({plain(job.spec.name)}, {plain(job.spec.account.name)}, {job.state})?"
