"""The figures of an estimate: the parts of a dry run, the allowances, and the memory to request. Pure.

An allowance of 10 % stands for what a dry run cannot count: fragmentation of the caching allocator, and the workspaces
of cuDNN and cuBLAS. The CUDA context and the libraries' kernels take 250 to 600 MiB of a device before the first
tensor. The estimate adds 500 MiB, as docs/howto/estimate-memory.md says.
"""

from __future__ import annotations

import math
from dataclasses import replace

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

    DERIVED = ("allowance_bytes", "need_bytes")

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
        """The bytes that the driver would show: the peak, the allowance and the CUDA context."""
        return self.peak_bytes + self.allowance_bytes + CONTEXT_BYTES

    @property
    def allowance_bytes(self) -> int:
        """The allowance for fragmentation and workspaces, in bytes."""
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

    DERIVED = ("need_bytes", "mem_bytes")

    @property
    def need_bytes(self) -> int | None:
        """The needed bytes: of the history if it suffices, else the larger of both. None if unknown."""
        if self.past is not None and self.past.suffices:
            return self.past.need_bytes
        found = [each.need_bytes for each in (self.past, self.dry_run) if each is not None]
        return max(found, default=None)

    @property
    def mem_bytes(self) -> int | None:
        """The bytes to request: as with ``--mem auto``, else the need, rounded up. None if unknown."""
        if self.past is not None and self.past.suffices:
            return self.past.mem_bytes
        return None if self.need_bytes is None else rounded_up(self.need_bytes)

    def noted(self, *notes: str) -> Estimate:
        """Return the same estimate with more notes."""
        return replace(self, notes=(*self.notes, *notes))
