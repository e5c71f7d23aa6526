"""Tests of the division of a request between CUDA and a framework's allocator."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpuqueue.learning.rule import rounded_up
from gpuqueue.model.framework_memory import CUDA_BYTES, cuda_bytes, request_bytes
from gpuqueue.text.units import GIB, MIB
from workers.run.environment import cap_environment

#: The memory of the largest device.
TOTAL = 288 * GIB


def capped_bytes(peak_bytes: int, estimated: int, at_run: int) -> int:
    """Return what torch may take in a job that asks for what an estimate of *peak_bytes* recommends.

    *estimated* and *at_run* are CUDA's own bytes in the estimate and on the device of the run.
    """
    caps = cap_environment(rounded_up(request_bytes(peak_bytes, estimated)), TOTAL, {}, cuda=at_run)
    return min(int(float(caps["GPUQUEUE_TORCH_FRACTION"]) * TOTAL), int(caps["CUPY_GPU_MEMORY_LIMIT"]))


def test_each_peak_fits_below_the_cap_of_its_request() -> None:
    """A job that asks for what an estimate recommends may take a tenth more than its peak, for each MiB up to 4 GiB."""
    short = [
        peak_bytes // MIB
        for peak_bytes in range(MIB, 4 * GIB, MIB)
        if capped_bytes(peak_bytes, CUDA_BYTES, CUDA_BYTES) < 1.1 * peak_bytes
    ]
    assert [] == short


@given(st.integers(MIB, 250 * GIB), st.integers(0, GIB), st.integers(0, GIB))
def test_a_peak_fits_where_cuda_takes_no_more_than_assumed(peak_bytes: int, estimated: int, less: int) -> None:
    """The same holds for every size, and on each device on which CUDA takes no more than the estimate has assumed."""
    assert capped_bytes(peak_bytes, estimated, max(0, estimated - less)) >= 1.1 * peak_bytes


def test_kernels_are_added_to_a_measured_context() -> None:
    """A measured context has no kernels of libraries, so they are added. Without a measurement the constant holds."""
    assert (CUDA_BYTES, 400 * MIB) == (cuda_bytes(None), cuda_bytes(300 * MIB))
