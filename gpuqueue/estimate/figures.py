"""The figures of an estimate: the parts of a dry run, the allowances, and the memory to request. Pure.

An allowance of 10 % stands for what a dry run cannot count: fragmentation of the caching allocator, and the workspaces
of cuDNN and cuBLAS. The CUDA context and the libraries' kernels take 250 to 600 MiB of a device before the first
tensor. The estimate adds 500 MiB, as docs/howto/estimate-memory.md says.
"""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from typing import Any

from gpuqueue.estimate.past import Past
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.learning.rule import rounded_up
from gpuqueue.text.units import MIB

ALLOWANCE = 0.10
CONTEXT_BYTES = 500 * MIB

#: The limits of a dry run, printed below each in two lines.
LIMITS = (
    "An estimate. 10 % are added for fragmentation and workspaces of cuDNN and cuBLAS, which are not counted.",
    "Counted in the first steps, on one GPU: what comes later, such as validation or longer inputs, may need more.",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """Memory of one kind of tensors: ``largest_bytes`` at its own peak, ``at_peak_bytes`` at the overall peak."""

    name: str
    largest_bytes: int
    at_peak_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class DryRun:
    """The GPU memory that a few steps of a script would have used, counted on the CPU.

    ``steps`` counts optimizer steps. ``forwards`` counts forward passes of the model, which matter for a script
    without an optimizer. ``ended`` is ``enough``, ``finished`` (the script ended earlier) or ``timed_out`` (after at
    least one step).
    """

    ended: str
    steps: int
    forwards: int
    optimizers: tuple[str, ...]
    dtypes: tuple[str, ...]
    torch: str
    took_s: float
    parts: tuple[Part, ...]
    peak_bytes: int

    def largest(self, name: str) -> int:
        """Return the largest size of the part *name*, in bytes."""
        return next(part.largest_bytes for part in self.parts if part.name == name)

    def at_peak(self, name: str) -> int:
        """Return the size of the part *name* at the overall peak, in bytes."""
        return next(part.at_peak_bytes for part in self.parts if part.name == name)

    @property
    def fixed_bytes(self) -> int:
        """Return the bytes at the peak that do not depend on the batch: parameters, gradients, optimizer states."""
        return sum(map(self.at_peak, ("parameters", "gradients", "optimizer_states")))

    @property
    def variable_bytes(self) -> int:
        """Return the other bytes at the peak: activations, data, buffers, rounding."""
        return self.peak_bytes - self.fixed_bytes

    @property
    def need_bytes(self) -> int:
        """Return the bytes that the driver would show: the peak, the allowance and the CUDA context."""
        return self.peak_bytes + self.allowance_bytes + CONTEXT_BYTES

    @property
    def allowance_bytes(self) -> int:
        """Return the allowance for fragmentation and workspaces, in bytes."""
        return math.ceil(self.peak_bytes * ALLOWANCE)


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """A dry run with one batch size."""

    size: int
    dry_run: DryRun


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """The memory that a script needs on each device, with its sources. ``notes`` are texts for users."""

    script: str
    args: tuple[str, ...]
    past: Past | None = None
    dry_run: DryRun | None = None
    batches: tuple[Batch, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def need_bytes(self) -> int | None:
        """Return the needed bytes: of the history if it suffices, else the larger of both. None if unknown."""
        if self.past is not None and self.past.suffices:
            return self.past.need_bytes
        found = [each.need_bytes for each in (self.past, self.dry_run) if each is not None]
        return max(found, default=None)

    @property
    def mem_bytes(self) -> int | None:
        """Return the bytes to request: as with ``--mem auto``, else the need, rounded up. None if unknown."""
        if self.past is not None and self.past.suffices:
            return self.past.mem_bytes
        return None if self.need_bytes is None else rounded_up(self.need_bytes)

    def noted(self, *notes: str) -> Estimate:
        """Return the same estimate with more notes."""
        return replace(self, notes=(*self.notes, *notes))


def estimate_to_plain(estimate: Estimate) -> dict[str, Any]:
    """Return *estimate* as a JSON object, with the keys in the order of docs/reference/json.md."""
    return {
        "script": estimate.script,
        "args": list(estimate.args),
        "mem_bytes": estimate.mem_bytes,
        "need_bytes": estimate.need_bytes,
        "past": None if estimate.past is None else past_to_plain(estimate.past),
        "dry_run": None if estimate.dry_run is None else dry_run_to_plain(estimate.dry_run),
        "batches": [
            {"size": each.size, "need_bytes": each.dry_run.need_bytes, "peak_bytes": each.dry_run.peak_bytes}
            for each in estimate.batches
        ],
        "notes": list(estimate.notes),
    }


def past_to_plain(past: Past) -> dict[str, Any]:
    """Return *past* as a JSON object."""
    runs = [
        {
            "job_id": run.job_id,
            "ended_at": run.ended_at.isoformat(timespec="milliseconds"),
            "bytes": run.bytes,
            "shows": run.proof.value,
            "same_args": run.same_args,
        }
        for run in past.runs
    ]
    return {
        "whose": past.whose.value,
        "signature": past.lesson.signature.value,
        "need_bytes": past.need_bytes,
        "runs": runs,
    }


def dry_run_to_plain(run: DryRun) -> dict[str, Any]:
    """Return *run* as a JSON object: its fields, and the figures that follow from them."""
    return {
        **asdict(run),
        "allowance_bytes": run.allowance_bytes,
        "context_bytes": CONTEXT_BYTES,
        "need_bytes": run.need_bytes,
    }
