"""Each kind of device passes the conformance suite; ``tests/gpu`` runs it on a real card."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

import pytest
from fake_driver.fake_driver import JOB, FakeGpus, build, compiler
from fake_driver.far_backend import FarBackend

from gpuqueue.model.device import DeviceKind
from workers.devices.cpu import CpuBackend
from workers.devices.select import choose
from workers.devices.simulated import SimulatedBackend

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


from device_conformance import Bench, DeviceConformance, ended_after

GIB = 2**30


class TestCpu(DeviceConformance):
    """The conformance suite on the CPU."""

    @pytest.fixture
    def bench(self) -> Iterator[Bench]:
        """Return a bench on the CPU, where a process uses its resident memory."""
        bench = Bench(CpuBackend("testhost"), {DeviceKind.CPU})
        with ended_after(bench):
            yield bench


class TestSimulated(DeviceConformance):
    """The conformance suite on simulated devices."""

    @pytest.fixture
    def bench(self) -> Iterator[Bench]:
        """Return a bench on simulated devices, where the environment of a process names its device."""
        backend = SimulatedBackend(f"contract{os.getpid()}", "2x24G")
        bench = Bench(backend, {DeviceKind.SIMULATED}, environ=lambda device: {"CUDA_VISIBLE_DEVICES": device.uuid})
        with ended_after(bench):
            yield bench


class TestSimulatedWithCpu(DeviceConformance):
    """The conformance suite on simulated devices with the CPU."""

    @pytest.fixture
    def bench(self) -> Iterator[Bench]:
        """Return a bench on both, where each device keeps its own way to measure."""
        backend = choose("sim:2x24G,cpu", f"contract{os.getpid()}")
        bench = Bench(
            backend,
            {DeviceKind.SIMULATED, DeviceKind.CPU},
            environ=lambda device: {"CUDA_VISIBLE_DEVICES": device.uuid},
        )
        with ended_after(bench):
            yield bench


@pytest.mark.skipif(compiler() is None, reason="no C compiler to build the fake driver with")
class TestNvmlOnTheFake(DeviceConformance):
    """The conformance suite on GPUs, through real pynvml and the fake driver."""

    @pytest.fixture
    def bench(self, tmp_path: Path) -> Iterator[Bench]:
        """Return a bench on fake GPUs, where the environment of a process names the GPU for its fake CUDA."""
        with _on_the_fake("gpu", {DeviceKind.GPU}, tmp_path) as bench:
            yield bench


@pytest.mark.full  # the parts of it are tested one by one above
@pytest.mark.skipif(compiler() is None, reason="no C compiler to build the fake driver with")
class TestNvmlWithCpuOnTheFake(DeviceConformance):
    """The conformance suite on GPUs with the CPU, as on a host with ``--devices gpu,cpu``."""

    @pytest.fixture
    def bench(self, tmp_path: Path) -> Iterator[Bench]:
        """Return a bench on both. A process on the CPU holds memory on no GPU, and the job of the fake is on both."""
        with _on_the_fake("gpu,cpu", {DeviceKind.GPU, DeviceKind.CPU}, tmp_path) as bench:
            yield bench


@contextlib.contextmanager
def _on_the_fake(spec: str, kinds: set[DeviceKind], tmp_path: Path) -> Iterator[Bench]:
    """Yield a bench for *spec* on a machine with two fake GPUs."""
    fake = FakeGpus.create(tmp_path / "state", (24 * GIB, 80 * GIB))
    environ = fake.environ(build(tmp_path))
    backend = FarBackend(spec, environ)
    bench = Bench(
        backend,
        kinds,
        code=JOB.read_text(),
        environ=lambda device: {**environ, "CUDA_VISIBLE_DEVICES": device.uuid},
        reports_health=True,
    )
    with contextlib.closing(backend), ended_after(bench):
        yield bench
