"""What the queue tells the book: one event for each arrow of a job's lifecycle. Pure.

The script that moves a job appends the event to the outbox in the same atomic step; the recorder reads it
and the book writes it down. The queue and the book know this type and not each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from datetime import datetime
from enum import Enum

from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.job import JobState, WaitReason

#: An event that waits for longer has a book that is behind, in seconds.
BEHIND_S = 30.0


class Act(str, Enum):
    """What was done: the name of the script that did it. ``ready`` is done by whichever comes by when it is time."""

    SUBMIT = "submit"
    CLAIM = "claim"
    STARTED = "started"
    NOTE = "note"
    GIVEBACK = "giveback"
    FINISH = "finish"
    LOSE = "lose"
    LIFT = "lift"
    PREEMPT = "preempt"
    CANCEL = "cancel"
    HOLD = "hold"
    RELEASE = "release"
    RESTORE = "restore"
    ADOPT = "adopt"
    PARK = "park"
    READY = "ready"
    #: What an array's members came to moved the array as well.
    ARRAY = "array"
    EDIT = "edit"
    MOVE = "move"
    MARK = "mark"
    #: A command at the job's end has run, or has not.
    TOLD = "told"
    #: An act of a newer version, which this one does not know.
    OTHER = "other"

    @classmethod
    def _missing_(cls, value: object) -> Act:  # noqa: ARG003 - the name is Enum's
        return cls.OTHER

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """One step of one job. ``id`` is the outbox entry's id, ``<ms>-<n>``, growing in the order of the steps.

    ``state``, ``attempt``, ``losses`` and ``reason`` are the job's after the step. ``fields`` holds what only
    this act brings:

    ======== ==============================================================================
    submit   ``spec`` (see :func:`gpuqueue.codec.encode_spec`); ``begin`` (ms; not before, empty: at once); ``meant``
             (gpu) where the queue knew a GPU and the request does not say on what it is to run
    claim    ``token``, ``host``, ``worker``, ``devices`` (UUIDs, comma-separated), ``lease`` (bytes on each),
             ``start`` (how it came to it, see :class:`gpuqueue.model.run.StartKind`); where it made a member of an
             array
             a job of its own, ``of`` (the array), ``index``, ``left`` (what is left of the array then)
    started  ``token``, ``started`` (see :func:`gpuqueue.codec.encode_started`)
    note     ``token``, ``detail`` (something about the run that its owner should know)
    giveback ``token``, ``detail`` (the claim did not become a run and counts as none)
    finish   ``token``, ``ended`` (see :func:`gpuqueue.codec.encode_ended`); where the job was queued again ``again``
             (why) and ``begin`` (ms; not before, empty: at once)
    lose     ``token``, ``detail`` (the run is over, nobody knows how)
    restore  ``token``, where a run is on (the one store had lost the job, the other still knew it); ``meant``;
             ``front``, ``tags`` (all of them), ``note``
    adopt    ``token``, ``claimed`` (ms), ``started``; where the store had lost the run all that claim has;
             where it had lost the job all that submit has
    park     ``token``, ``until`` (ms; its machine went down and left the run to its shim)
    edit     ``spec``, ``meant``, ``begin`` (its request is this from now on)
    move     ``front`` (its place before its user's others: the highest number goes first; empty: by its arrival)
    mark     ``add``, ``remove`` (tags, comma-separated), ``note`` (empty: none any more), each where it was said. Of a
             job that has ended long ago as well: where it stands is not moved
    told     ``number`` (of the notice among the job's), ``outcome`` (:class:`gpuqueue.model.notification.Outcome`),
    ``trouble``; of a
             job that has ended: where it stands is not moved
    ready    nothing (what it waited for is over: it may start from now on)
    preempt  ``token``, ``by`` (the job that its run must make place for), ``deadline`` (ms)
    lift     ``level`` (it waited long and counts as of this level from now on)
    array    ``began`` (ms; its first member was taken), or ``left`` and ``held`` (indexes); so do cancel, hold and
             release of an array, and ``part`` (what was asked for, empty for all of it)
    ======== ==============================================================================
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
    """Return where *event_id* stands in the outbox; as text, ``…-10`` would come before ``…-9``."""
    ms, _, number = event_id.partition("-")
    return int(ms), int(number or 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Cursor:
    """How far the book has read the outbox of the store whose ``epoch`` this is."""

    epoch: str
    last_id: str = "0-0"
