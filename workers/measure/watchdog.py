"""Enforces the memory limit of a job from outside: warns at the first excess, and ends the job before others suffer.

This is the last of the layers in docs/explanation/memory-cap.md, and the only one that measures all frameworks and all
processes of a job together. It reacts within a sample or two. A neighbour that allocates memory before that may still
find the card full.
"""

from __future__ import annotations

import logging
from enum import Enum

from gpuqueue.model.device import DeviceKind
from gpuqueue.model.run import EndingKind
from gpuqueue.text.units import MIB, format_bytes
from workers.measure.active_runs import LiveRun
from workers.measure.sample import Sample

log = logging.getLogger(__name__)

#: How far a job may exceed its lease before it is ended: a share of the lease, and at least so many bytes.
#: CUDA's own memory is not part of a framework's cap, and its size differs from card to card.
TOLERANCE = 0.05
TOLERANCE_BYTES = 256 * MIB
#: The score at which a job is ended. A sample with `Excess.END` adds 2, any other sample subtracts 1.
ENOUGH = 4


class Excess(Enum):
    """How a job's memory on a device relates to its lease."""

    NONE = "none"
    #: Above the lease, but within the tolerance and without harm to other jobs.
    WARN = "warn"
    #: Above the tolerance, or in memory that is allocated to other jobs.
    END = "end"


def limit_bytes(lease_bytes: int) -> int:
    """Return the bytes that a job with a lease of *lease_bytes* may use before it is ended."""
    return lease_bytes + max(TOLERANCE_BYTES, round(TOLERANCE * lease_bytes))


def excess(used_bytes: int, lease_bytes: int, *, free_bytes: int, allocated_bytes: int) -> Excess:
    """Return the excess of a job that uses *used_bytes*; *allocated_bytes* are allocated to jobs and not used yet."""
    if used_bytes <= lease_bytes:
        return Excess.NONE
    if used_bytes > limit_bytes(lease_bytes) or free_bytes < allocated_bytes:
        return Excess.END
    return Excess.WARN


def enforce_limit(run: LiveRun, sample: Sample) -> None:
    """Check one sample of a run, and warn or end the run if it uses too much.

    On a simulated device the resident memory counts, interpreter and libraries included. A request for a GPU
    does not cover these, so a run within the tolerance is not warned there. The CPU's memory is left to the kernel.
    """
    device, share = sample.device, sample.measured(run.held.token)
    if share is None or share.used_bytes is None or device.kind is DeviceKind.CPU or not run.held.capped:
        return
    used_bytes, lease_bytes = share.used_bytes, share.lease_bytes
    reading, not_used_bytes = sample.reading, sample.committed_bytes - sample.reading.used_bytes
    found = excess(used_bytes, lease_bytes, free_bytes=reading.free_bytes, allocated_bytes=not_used_bytes)
    if device.kind is DeviceKind.SIMULATED and used_bytes <= limit_bytes(lease_bytes):
        found = Excess.NONE
    meter = run.meter(device.uuid)
    # One high sample alone may be a process that is exiting. The score also catches a job that goes up and down.
    meter.excess = meter.excess + 2 if found is Excess.END else max(0, meter.excess - 1)
    asked = format_bytes(lease_bytes)
    holds = f"it holds {format_bytes(used_bytes)} on {device.uuid}"
    if found is not Excess.NONE and not meter.warned:
        meter.warned = True
        words = (
            f"{holds}, more than the {asked} it asked for; above {format_bytes(limit_bytes(lease_bytes))} it is ended"
        )
        run.notes.append(words)
        _log(run, words)
    if meter.excess >= ENOUGH and not meter.ended:
        words = f"ended: {holds} and asked for {asked}; give it more with --mem"
        meter.ended = run.ask_end(EndingKind.OUT_OF_MEMORY, words)
        if meter.ended:
            _log(run, words)


def _log(run: LiveRun, words: str) -> None:
    """Write *words* to the job's log and to the worker's log."""
    log.warning("%s: %s", run, words)
    run.write_to_log(words)
