"""Why a job waits, in a sentence and in a phrase for each reason."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuqueue.model.job import JobState, WaitReason
from gpuqueue.text.units import format_bytes

if TYPE_CHECKING:
    from gpuqueue.model.page import QueueRow

#: What a job without a reason waits for.
TURN = "for its turn"
#: What a job with each reason waits for: it waits ``for memory``.
GOALS = {
    WaitReason.MEMORY: "for memory",
    WaitReason.DEVICE: "for a device that serves it",
    WaitReason.NO_GPU: "for a GPU: a host that has served some finds none",
    WaitReason.SLOTS: "for a free slot on a device",
    WaitReason.RESERVATION: "for a device that is reserved for another job",
    WaitReason.DRAINED: "for a device that is not drained",
    WaitReason.END: "for a device with time enough before its end",
    WaitReason.CALENDAR: "for the end of a reservation in the calendar",
    WaitReason.SILENT: "for a worker that has been silent for a while",
    WaitReason.LIMIT: "for room under a limit",
    WaitReason.DEPENDENCY: "for other jobs to end",
    WaitReason.BEGIN: "for its start time",
    WaitReason.ARRAY_LIMIT: "for another member to end",
    WaitReason.RETRY: "for its retry",
    WaitReason.REQUEUE: "to run again, as its last run asked",
    WaitReason.PAUSE: "for the queue, which was rebuilt",
    WaitReason.HELD: "for its release",
    WaitReason.LOST_TOO_OFTEN: "for its release",
    WaitReason.REQUEUED_TOO_OFTEN: "for its release",
    WaitReason.CANNOT_START: "for its release",
}
#: Each reason but that of memory, which depends on what the job asks for. Readers put the time behind those with one.
SENTENCES = {
    WaitReason.DEVICE: "no device here may run it, by its kind, pool and type, or a card that it names is missing",
    WaitReason.NO_GPU: "a host that has served GPUs finds none now: gpuqueue why has its name and the driver's words",
    WaitReason.SLOTS: "the devices that have the memory run their maximum number of jobs",
    WaitReason.RESERVATION: "the room is reserved for a job that has waited longer",
    WaitReason.DRAINED: "the devices that could run it are drained",
    WaitReason.END: "the devices that could run it end, or are reserved, before it would be over",
    WaitReason.CALENDAR: "the devices that could run it are reserved for others: see gpuqueue reserve list",
    WaitReason.SILENT: "the worker of the devices that could run it is silent",
    WaitReason.LIMIT: "a limit of the user or group leaves no room",
    WaitReason.PAUSE: "the store was rebuilt: nothing starts for a moment",
    WaitReason.HELD: "held by a user",
    WaitReason.LOST_TOO_OFTEN: "its runs were lost too often: release it to try again",
    WaitReason.REQUEUED_TOO_OFTEN: "its runs asked for a requeue too often: release it to try again",
    WaitReason.CANNOT_START: "no host can start it: its directory or program is missing",
    WaitReason.DEPENDENCY: "waits for other jobs to end",
    WaitReason.BEGIN: "it has a start time",
    WaitReason.RETRY: "the last run failed: it is retried after a pause",
    WaitReason.REQUEUE: "the last run asked for a requeue: it goes on after a pause",
    WaitReason.ARRAY_LIMIT: "the array has reached its concurrency limit",
}


def waits_because(row: QueueRow) -> str | None:
    """Return why the job of *row* waits; None if it does not wait, or does so in its turn without a reason."""
    if row.reason is WaitReason.MEMORY:
        if row.whole:
            return "no device is empty now, or other jobs go first"
        cards = f" on {row.gpus} devices of one host" if row.gpus > 1 else ""
        return f"needs {format_bytes(row.mem_bytes)}{cards}; no room now, or other jobs go first"
    if row.reason is not None:
        return SENTENCES[row.reason]
    return "its turn comes next" if row.state is JobState.QUEUED else None
