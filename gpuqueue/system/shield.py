"""Which signal ends the processes of this host.

An engine such as Slurm ends an allocation by a SIGTERM to every process in it at once, then by SIGKILL. If workers and
tunnel ended on that, nobody would report what became of the runs. So in a pilot only the pilot itself acts on SIGTERM:
it has the host hand back in order. All other processes of the host are **shielded**: they end on SIGINT.
"""

from __future__ import annotations

import os
import signal
from types import FrameType

#: Set in the environment of the processes of a pilot, and so of a shim (workers/shim/preempt_request.py has it, too).
SHIELDED = "_GPUQUEUE_SHIELDED"


def is_shielded() -> bool:
    """Return whether this process belongs to a pilot."""
    return SHIELDED in os.environ


def stop_signal() -> signal.Signals:
    """Return the signal that ends a process of this host in order."""
    return signal.SIGINT if is_shielded() else signal.SIGTERM


def shield() -> None:
    """In a pilot: do at SIGINT what this process does at SIGTERM, and only note a SIGTERM. For the main thread."""
    handler = signal.getsignal(signal.SIGTERM)
    if is_shielded() and handler is not _note:
        signal.signal(signal.SIGINT, handler)
        signal.signal(signal.SIGTERM, _note)  # a handler: an ignored signal would stay ignored in jobs


def is_ending() -> bool:
    """Return whether a shielded process has got the engine's signal: the allocation ends, and no run may begin."""
    return bool(_noted)


_noted: list[int] = []


def _note(number: int, _frame: FrameType | None) -> None:
    _noted[:] = [number]
