"""Holds a job to its word where nothing inside it does: warns at the first excess, ends it before others suffer.

The last of the layers in docs/explanation/memory-cap.md, and the only one that sees every framework and every
process of a job together. It reacts within a sample or two; a neighbour that allocates in that very moment may
still meet a full card.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable
from enum import Enum

from gpuqueue.model.device import Device, DeviceKind, Reading
from gpuqueue.model.run import EndingKind
from gpuqueue.text.units import MIB, format_bytes
from workers.measure.active_runs import LiveRun

log = logging.getLogger(__name__)

#: How much more than it asked for a job may hold before it is ended: a share of that, and at least so many bytes.
#: CUDA's own memory comes on top of what a framework was capped at, and differs from card to card.
TOLERANCE = 0.05
TOLERANCE_BYTES = 256 * MIB
#: A sample with too much counts 2, one without takes 1 back: at this sum the job is ended.
ENOUGH = 4


class Excess(Enum):
    """What a job's use of a device means for the others."""

    NONE = "none"
    #: More than it asked for, and nobody is the worse for it yet.
    WARN = "warn"
    #: Far more, or at the cost of a job that was promised the memory.
    END = "end"


def limit_bytes(lease_bytes: int) -> int:
    """Return what a job that asked for *lease_bytes* may hold before it is ended."""
    return lease_bytes + max(TOLERANCE_BYTES, round(TOLERANCE * lease_bytes))


def excess(used_bytes: int, lease_bytes: int, *, free_bytes: int, promised_bytes: int) -> Excess:
    """Return what it means that a job holds *used_bytes*, with *promised_bytes* granted to others and not yet taken."""
    if used_bytes <= lease_bytes:
        return Excess.NONE
    if used_bytes > limit_bytes(lease_bytes) or free_bytes < promised_bytes:
        return Excess.END
    return Excess.WARN


class Watchdog:
    """Watches the runs of one worker on GPUs; the host's memory has the kernel to watch it.

    *promised_bytes* tells what is held and promised on a device in one look, whoever leads the runs there
    (:meth:`workers.measure.admission.Gate.promised_bytes`). It is asked only when a run has more than it asked for.
    """

    def __init__(self, promised_bytes: Callable[[Device, Reading], int]) -> None:
        self._promised_bytes = promised_bytes

    def look(self, run: LiveRun, device: Device, used_bytes: int | None, reading: Reading) -> None:
        """Judge one sample of a run on a device, and act on it."""
        if used_bytes is None or device.kind is not DeviceKind.GPU or not run.held.capped:
            return
        lease_bytes = run.lease_bytes(device.uuid)
        found = Excess.NONE
        if used_bytes > lease_bytes:
            not_taken = self._not_taken_bytes(device, reading)
            found = excess(used_bytes, lease_bytes, free_bytes=reading.free_bytes, promised_bytes=not_taken)
        meter = run.meter(device.uuid)
        # One sample alone may be a process on its way out; a job that goes up and down must not slip through.
        meter.excess = meter.excess + 2 if found is Excess.END else max(0, meter.excess - 1)
        if found is not Excess.NONE and not meter.warned:
            meter.warned = True
            limit = format_bytes(limit_bytes(lease_bytes))
            self._tell(run, f"it holds {format_bytes(used_bytes)} on {device.uuid}, more than the "
                            f"{format_bytes(lease_bytes)} it asked for; above {limit} it is ended")  # fmt: skip
        if meter.excess >= ENOUGH and not meter.ended:
            try:
                run.directory.ask_end(EndingKind.OUT_OF_MEMORY)
            except OSError as error:
                log.warning("%s: its end cannot be asked for, it is tried again: %s", run, error)
                return
            meter.ended = True
            self._tell(run, f"ended: it holds {format_bytes(used_bytes)} on {device.uuid} and asked for "
                            f"{format_bytes(lease_bytes)}; give it more with --mem")  # fmt: skip

    def _not_taken_bytes(self, device: Device, reading: Reading) -> int:
        """Return what was promised to anybody and is not taken yet; 0 where the host lets nobody look around now."""
        try:
            return self._promised_bytes(device, reading) - reading.used_bytes
        except OSError as error:
            log.warning("%s is not judged by what others were promised: %s", device.uuid, error)
            return 0

    def _tell(self, run: LiveRun, words: str) -> None:
        """Say it where the job's owner will look: in the job's log and in its story. And in our own log."""
        log.warning("%s: %s", run, words)
        run.notes.append(words)
        with contextlib.suppress(OSError):
            # Not blocking: the job may have put a pipe there. And nothing is made where it has removed its log.
            job_log = os.open(run.directory.log, os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                os.write(job_log, f"gpuqueue: {words}\n".encode())
            finally:
                os.close(job_log)
