"""Divides a request for GPU memory between CUDA and a framework's allocator. Pure.

CUDA takes memory beside each framework's allocator: the context of the process and the kernels of the libraries. What
to ask for a peak of an allocator (:func:`request_bytes`), and what the allocator of a job with that request may take
(:func:`allocator_bytes`), follow from the same number. So the allocator of a job that asks for its peak may always take
that peak and ALLOWANCE of it more, where CUDA takes no more than was assumed for the request.
"""

from __future__ import annotations

import math

from gpuqueue.text.units import MIB

#: What CUDA takes beside an allocator on a device whose context was not measured. It is 250 to 600 MiB, depending on
#: the card and the CUDA version; the largest value keeps the total below the job's request.
CUDA_BYTES = 600 * MIB
#: What the kernels of a framework's libraries take beside a measured context, which has none of them.
KERNELS_BYTES = 100 * MIB
#: The share of a counted peak that is added for fragmentation, and for workspaces of cuDNN and cuBLAS.
ALLOWANCE = 0.10


def cuda_bytes(context_bytes: int | None) -> int:
    """Return what CUDA takes beside an allocator. *context_bytes* is the measured context, None if it was not."""
    return CUDA_BYTES if context_bytes is None else context_bytes + KERNELS_BYTES


def allowance_bytes(peak_bytes: int) -> int:
    """Return the allowance for a counted peak."""
    return math.ceil(peak_bytes * ALLOWANCE)


def request_bytes(peak_bytes: int, cuda: int = CUDA_BYTES) -> int:
    """Return the bytes to ask for, on each device, for an allocator's peak; *cuda* bytes are CUDA's own."""
    return peak_bytes + allowance_bytes(peak_bytes) + cuda


def allocator_bytes(mem_bytes: int, cuda: int = CUDA_BYTES) -> int:
    """Return the part of *mem_bytes* for a framework's allocator: without the *cuda* bytes, but at least half."""
    return max(mem_bytes - cuda, mem_bytes // 2)
