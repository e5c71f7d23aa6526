"""Events, which carry each step of a job from the queue to the history. Pure.

The script that changes a job appends the event to the outbox in the same atomic step. The recorder reads the outbox and
writes the events to the history. The queue and the history share this type and do not import each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from datetime import datetime
from enum import Enum

from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.job import JobState, WaitReason

#: The history is behind if an event waits in the outbox for longer than this, in seconds.
BEHIND_S = 30.0


class Act(str, Enum):
    """The act that an event records.

    The values are stored, so they stay the same when a script is renamed. Several scripts can record ``ready``: the
    first one that runs once the job is due.
    """

    SUBMIT = "submit"
    CLAIM = "claim"
    STARTED = "started"
    NOTE = "note"
    RUN_MARK = "run_mark"
    #: A mark as earlier versions recorded it: of an idle run.
    IDLE = "idle"
    RELEASE_CLAIM = "release_claim"
    FINISH = "finish"
    LOSE = "lose"
    PROMOTE = "promote"
    PREEMPT = "preempt"
    CANCEL = "cancel"
    HOLD = "hold"
    RELEASE = "release"
    RESTORE = "restore"
    ADOPT = "adopt"
    PARK = "park"
    READY = "ready"
    #: A change of an array's members changed the array.
    ARRAY = "array"
    EDIT = "edit"
    MOVE = "move"
    MARK = "mark"
    #: An act of a newer version that this version does not know.
    OTHER = "other"

    @classmethod
    def _missing_(cls, value: object) -> Act:  # noqa: ARG003 - the signature is that of Enum
        return cls.OTHER

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """One step of one job. ``id`` is the id of the outbox entry, ``<ms>-<n>``, ascending in the order of the steps.

    ``state``, ``attempt``, ``losses`` and ``reason`` are those of the job after the step. ``fields`` holds the fields
    that are specific to the act:

    ======== ===========================================================================================================
    submit   ``spec`` (see :func:`gpuqueue.codec.encode_spec`); ``begin`` (earliest start in ms, empty: at once);
             ``meant`` (``gpu``) if the queue knew a GPU and the request names no device kind
    claim    ``token``, ``host``, ``worker``, ``devices`` (UUIDs, comma-separated), ``lease`` (bytes on each device),
             ``start`` (see :class:`gpuqueue.model.run.StartKind`); for a member of an array also ``of`` (the array),
             ``index``, ``left`` (the indexes that the array has left after the claim)
    started  ``token``, ``started`` (see :func:`gpuqueue.codec.encode_started`); in the history its ``limits`` (JSON)
    note     ``token``, ``detail`` (information about the run for its owner)
    run_mark ``token``, ``kind`` (see :class:`gpuqueue.model.run_mark.MarkKind`), ``stage`` (0: the mark is over),
             ``marks`` (all of the run, see ``job_fields.py``), ``detail`` (for its owner). The idle of
             earlier versions has ``since`` (ms), and neither ``kind`` nor ``marks``
    release_claim
             ``token``, ``detail`` (the claim was released before it became a run; it does not count as an attempt)
    finish   ``token``, ``ended`` (see :func:`gpuqueue.codec.encode_ended`); if the job was queued again also ``again``
             (the reason) and ``begin`` (earliest start in ms, empty: at once). After a lack of device memory also
             ``mem`` (bytes that the job asks for now), ``blamed``, ``mem_retries`` and ``mem_allowed``, or why the job
             was not queued again: ``mem_refused`` (``times``, ``devices``, ``limit``) and ``mem_most`` (bytes)
    lose     ``token``, ``detail`` (the run is over, and its ending is unknown)
    restore  ``token`` if the job has a run; ``meant``, ``front``, ``tags`` (all of them), ``note`` (the store or the
             history had lost the job, and it was restored from the other)
    adopt    ``token``, ``claimed`` (ms), ``started``; if the store had lost the run, also the fields of claim; if the
             store had lost the job, also the fields of submit
    park     ``token``, ``until`` (ms; the host went down and left the run to its shim)
    edit     ``spec``, ``meant``, ``begin`` (the new request of the job); if its run was given more time, instead of the
             last two ``limit`` (the new time limit in ms) and ``by`` (the account)
    move     ``front`` (place before the user's other jobs, the highest first; empty: in the order of submission)
    mark     ``add``, ``remove`` (tags, comma-separated), ``note`` (empty: removed), each only if it was given. Also for
             ended jobs. The job's state stays the same
    ready    none (the job no longer waits for a time or a job, and may start)
    preempt  ``token``, ``by`` (the job that preempts the run), ``deadline`` (ms)
    promote  ``priority`` (the priority to which aging promoted the job)
    array    ``began`` (ms; the first member was claimed), or ``left`` and ``held`` (indexes). The acts cancel, hold and
             release of an array have these fields too, and ``part`` (the requested indexes, empty for all)
    ======== ===========================================================================================================
    """

    id: str
    act: Act
    job_id: int
    state: JobState
    at: datetime
    attempt: int
    losses: int = 0
    reason: WaitReason | None = None
    fields: Mapping[str, str] = field(default_factory=dict)


def place(event_id: str) -> tuple[int, int]:
    """Return the sort key of *event_id* in the outbox. Compared as text, ``…-10`` would come before ``…-9``."""
    ms, _, number = event_id.partition("-")
    return int(ms), int(number or 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Cursor:
    """The position up to which the history has read the outbox of the store with this ``epoch``."""

    epoch: str
    last_id: str = "0-0"
