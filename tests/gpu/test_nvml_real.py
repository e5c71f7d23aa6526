"""The same rules on a real card."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from contract.test_devices import HELD_BYTES, Bench, DeviceConformance

from gpuqueue.device import DeviceKind, PeakSource
from workers.devices.nvml import NvmlBackend

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Holds argv[1] bytes through the driver's own library, so that no torch is needed.
HOLD_ON_GPU = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
device, context, at = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
assert cuda.cuInit(0) == 0
assert cuda.cuDeviceGet(ctypes.byref(device), 0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0
assert cuda.cuCtxSetCurrent(context) == 0
assert cuda.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(int(sys.argv[1]))) == 0
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.mark.gpu
class TestNvmlOnARealCard(DeviceConformance):
    """The rules on whatever GPUs this machine has."""

    @pytest.fixture
    def bench(self) -> Iterator[Bench]:
        """Processes allocate with CUDA on the GPU that their environment names."""
        backend = NvmlBackend.probe()  # a driver that is there but broken fails here: that is no reason to skip
        if backend is None or not backend.devices():
            pytest.skip("NVML finds no GPU")
        bench = Bench(
            backend,
            DeviceKind.GPU,
            PeakSource.NVML_SAMPLED,
            code=HOLD_ON_GPU,
            environ=lambda device: {"CUDA_VISIBLE_DEVICES": device.uuid},
        )
        try:
            yield bench
        finally:
            bench.end()

    def test_the_process_list_says_what_is_held(self, bench: Bench) -> None:
        """The driver names the process with its bytes, so peaks of jobs on this machine can be had from it."""
        device = bench.backend.devices()[0]
        pid = bench.hold(device)
        assert HELD_BYTES <= (bench.backend.reading(device).processes.get(pid) or 0)
