"""Why a job waits, in sentences for people. :mod:`gpuqueue.words.why` makes them."""

from __future__ import annotations

from gpuqueue.lazy.frozen import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceSentence:
    """Why a job does not run on a device: its UUID, ``HOST:INDEX``, what it can give the job, its size, the reason."""

    uuid: str
    label: str
    available_bytes: int
    total_bytes: int
    why_not: str


@dataclass(frozen=True, kw_only=True, slots=True)
class WhySentences:
    """Why a job waits.

    ``start`` says when it may start, or what it waits for; it is empty if the job does not wait. ``asked`` is the job
    and what it asks for, ``obstacles`` what holds it back on all devices, or its state if it does not wait. ``devices``
    are the nearest to a start, ``rest`` is about the others. ``order`` counts the jobs before it.
    """

    asked: str
    start: tuple[str, ...] = ()
    obstacles: tuple[str, ...] = ()
    devices: tuple[DeviceSentence, ...] = ()
    rest: tuple[str, ...] = ()
    order: str | None = None
