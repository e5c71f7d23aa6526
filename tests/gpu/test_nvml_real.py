"""The device conformance tests on a real card."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from device_conformance import HELD_BYTES, Bench, DeviceConformance
from fake_driver.fake_driver import JOB

from gpuqueue.model.device import DeviceKind
from workers.devices.deadline import Deadlined
from workers.devices.nvml import NvmlBackend

if TYPE_CHECKING:
    from collections.abc import Iterator

GIB = 2**30


@pytest.mark.gpu
class TestNvmlOnARealCard(DeviceConformance):
    """The rules on the GPUs of this machine."""

    @pytest.fixture
    def bench(self) -> Iterator[Bench]:
        """Return a bench whose jobs allocate with CUDA on the GPU that their environment names."""
        backend = NvmlBackend.probe()  # a broken driver raises here, which is no reason to skip
        if backend is None or not backend.count():
            pytest.skip("NVML finds no GPU")
        bench = Bench(
            Deadlined(backend),
            {DeviceKind.GPU},
            code=JOB.read_text(),
            environ=lambda device: {"CUDA_VISIBLE_DEVICES": device.uuid},
            reports_health=True,
        )
        try:
            yield bench
        finally:
            bench.end()

    def test_the_process_list_says_what_is_held(self, bench: Bench) -> None:
        """The driver lists the process with its bytes, so peaks of jobs can be measured on this machine."""
        device = bench.backend.devices()[0]
        pid = bench.hold(device)
        assert HELD_BYTES <= (bench.backend.reading(device).processes.get(pid) or 0)

    def test_a_real_card_reports_its_health(self, bench: Bench) -> None:
        """A recent card reports its temperature, power and slowdown reasons, and a limit above the temperature."""
        device = bench.backend.devices()[0]
        health = bench.backend.health(device)
        if device.mig_parent is None:
            assert health.utilisation is not None
        assert health.temperature_c is not None
        assert 5 < health.temperature_c < 120
        assert health.limit_c is None or 60 < health.limit_c < 120
        assert health.throttled is not None
        assert "default" == health.compute_mode

    def test_the_driver_sees_the_size_that_a_job_takes(self, bench: Bench) -> None:
        """The driver reports what a job allocated, within 2 %, plus its context."""
        device = bench.backend.devices()[0]
        empty, full = bench.hold(device, 2**21), bench.hold(device, GIB)
        context_bytes = bench.used_by(device, empty) or 0
        assert 0 < context_bytes < 4 * GIB
        assert GIB == pytest.approx((bench.used_by(device, full) or 0) - context_bytes, rel=0.02)
