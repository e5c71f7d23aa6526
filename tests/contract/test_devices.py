"""What every kind of device must hold to; one suite over all of them."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from dataclasses import astuple, dataclass, field
from typing import TYPE_CHECKING

import pytest
from fake_driver.fake_driver import JOB, FakeGpus, build, compiler
from fake_driver.far_backend import FarBackend

from gpuqueue.model.device import DeviceKind, Health
from workers.devices.cpu import CpuBackend
from workers.devices.select import choose
from workers.devices.simulated import SimulatedBackend

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from gpuqueue.model.device import Device
    from workers.devices.backend import DeviceBackend

GIB = 2**30
HELD_BYTES = 64 * 2**20

#: Really holds argv[1] bytes, says so, and lives until its stdin ends.
HOLD = "import sys; held = b'x' * int(sys.argv[1]); print('ready', flush=True); sys.stdin.read()"


def until(condition: Callable[[], bool], within_s: float = 20.0) -> bool:
    """Look at *condition* until it holds or the time is up."""
    deadline_s = time.monotonic() + within_s
    pause = threading.Event()
    while not condition():
        if time.monotonic() > deadline_s:
            return False
        pause.wait(0.02)
    return True


@dataclass
class Bench:
    """A backend with a way to make a process hold memory on a device of it."""

    backend: DeviceBackend
    kinds: set[DeviceKind]
    code: str = HOLD
    environ: Callable[[Device], dict[str, str]] = lambda _: {}
    tells_health: bool = False
    processes: list[subprocess.Popen[str]] = field(default_factory=list)

    def hold(self, device: Device, size_bytes: int = HELD_BYTES) -> int:
        """Start a process that holds *size_bytes* on *device* and return its pid when it does."""
        process = subprocess.Popen(
            [sys.executable, "-c", HOLD if device.kind is DeviceKind.CPU else self.code, str(size_bytes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **self.environ(device)},
        )
        self.processes.append(process)
        assert process.stdout
        assert "ready\n" == process.stdout.readline()
        return process.pid

    def used_by(self, device: Device, *pids: int) -> int | None:
        """Return what *pids* hold on *device* now."""
        return self.backend.used_by(self.backend.reading(device), pids)

    def end(self) -> None:
        """Kill what holds memory."""
        for process in self.processes:
            process.kill()
            with process:
                pass
        self.processes.clear()


class DeviceConformance:
    """The rules; a subclass gives the fixture ``bench``."""

    def test_devices_have_stable_unique_uuids(self, bench: Bench) -> None:
        """The same devices come in the same order each time, each with its own UUID and an index that counts up."""
        devices = bench.backend.devices()
        assert devices == bench.backend.devices()
        assert len(devices) == len({device.uuid for device in devices}) > 0
        assert sorted(device.index for device in devices) == [device.index for device in devices]
        assert bench.kinds == {device.kind for device in devices}
        assert all(device.name and device.total_bytes > 0 for device in devices)

    def test_free_is_never_more_than_total(self, bench: Bench) -> None:
        """A look gives free and total bytes that fit together and fit the device."""
        for device in bench.backend.devices():
            reading = bench.backend.reading(device)
            assert device.total_bytes == reading.total_bytes
            assert 0 <= reading.free_bytes <= reading.total_bytes

    def test_no_process_uses_nothing(self, bench: Bench) -> None:
        """An empty set of processes holds exactly nothing, and only the CPU does not list them."""
        for device in bench.backend.devices():
            assert 0 == bench.used_by(device)
            assert bench.backend.reading(device).listed == (device.kind is not DeviceKind.CPU)

    def test_a_process_that_allocates_is_seen(self, bench: Bench) -> None:
        """A process that holds memory is seen with at least what it holds, and on a device with a list, in the list."""
        for device in {bench.backend.devices()[0], bench.backend.devices()[-1]}:
            free_before_bytes = bench.backend.reading(device).free_bytes
            pid = bench.hold(device)
            assert HELD_BYTES <= (bench.used_by(device, pid) or 0) < HELD_BYTES + 4 * GIB
            if bench.backend.reading(device).listed:
                assert pid in bench.backend.reading(device).processes
                assert bench.backend.reading(device).free_bytes <= free_before_bytes - HELD_BYTES

    def test_two_processes_add_up(self, bench: Bench) -> None:
        """What two processes hold together is the sum of what each holds, and naming one twice changes nothing."""
        device = bench.backend.devices()[0]
        first, second = bench.hold(device), bench.hold(device)
        together = bench.used_by(device, first, second, second) or 0
        apart = (bench.used_by(device, first) or 0) + (bench.used_by(device, second) or 0)
        assert apart == pytest.approx(together, abs=2**20)
        assert 2 * HELD_BYTES <= together

    def test_a_dead_process_is_not_seen(self, bench: Bench) -> None:
        """A process that was killed holds nothing any more, and its memory is free again."""
        device = bench.backend.devices()[0]
        pid = bench.hold(device)
        assert (bench.used_by(device, pid) or 0) > 0
        bench.end()
        assert until(lambda: bench.used_by(device, pid) == 0)
        assert until(lambda: pid not in bench.backend.reading(device).processes)

    def test_a_process_on_one_device_is_not_on_another(self, bench: Bench) -> None:
        """Memory held on one device is not seen on its neighbour."""
        devices = bench.backend.devices()
        if len(devices) == 1:
            pytest.skip("there is one device only")
        pid = bench.hold(devices[0])
        assert 0 == bench.used_by(devices[1], pid)
        assert pid not in bench.backend.reading(devices[1]).processes

    def test_a_maximum_that_nobody_kept_is_not_told(self, bench: Bench) -> None:
        """Of a process that never was there is no figure, and one of a process that lives is what it held at least."""
        device = bench.backend.devices()[0]
        pid = bench.hold(device)
        kept = bench.backend.accounted(device, [pid, 4_000_001])
        assert 4_000_001 not in kept
        assert all(HELD_BYTES <= most for most in kept.values())

    def test_health_is_in_range_or_unknown(self, bench: Bench) -> None:
        """What a device tells of itself is possible, and what it does not tell is None and never a zero of itself."""
        for device in bench.backend.devices():
            health = bench.backend.health(device)
            assert Health is type(health)
            assert all(1 <= each < 150 for each in (health.memory_temperature_c, health.limit_c) if each is not None)
            assert all(0 <= each <= 1 for each in (health.utilisation, health.memory_utilisation) if each is not None)
            assert health.compute_mode in (None, "default", "prohibited", "exclusive_process")
            if not bench.tells_health or device.kind is DeviceKind.CPU:
                assert {None} == set(astuple(health))

    def test_distance_is_the_same_both_ways(self, bench: Bench) -> None:
        """Two devices are as far apart one way as the other, and a device is not away from itself."""
        devices = bench.backend.devices()
        assert bench.backend.distance(devices[0], devices[0]) in (None, 0)
        there = bench.backend.distance(devices[0], devices[-1])
        assert there == bench.backend.distance(devices[-1], devices[0])
        assert there is None or 0 <= there <= 50


@contextlib.contextmanager
def _ended(bench: Bench) -> Iterator[Bench]:
    try:
        yield bench
    finally:
        bench.end()


class TestCpu(DeviceConformance):
    """The rules on the CPU."""

    @pytest.fixture
    def bench(self) -> Iterator[Bench]:
        """Processes on the CPU hold what is resident."""
        bench = Bench(CpuBackend("testhost"), {DeviceKind.CPU})
        with _ended(bench):
            yield bench


class TestSimulated(DeviceConformance):
    """The rules on simulated devices."""

    @pytest.fixture
    def bench(self) -> Iterator[Bench]:
        """Processes are on a simulated device by their environment."""
        backend = SimulatedBackend(f"contract{os.getpid()}", "2x24G")
        bench = Bench(
            backend,
            {DeviceKind.SIMULATED},
            environ=lambda device: {"CUDA_VISIBLE_DEVICES": device.uuid},
        )
        with _ended(bench):
            yield bench


class TestSimulatedWithCpu(DeviceConformance):
    """The rules on simulated devices and the CPU beside them."""

    @pytest.fixture
    def bench(self) -> Iterator[Bench]:
        """Each device keeps its own way to measure."""
        backend = choose("sim:2x24G,cpu", f"contract{os.getpid()}")
        bench = Bench(
            backend,
            {DeviceKind.SIMULATED, DeviceKind.CPU},
            environ=lambda device: {"CUDA_VISIBLE_DEVICES": device.uuid},
        )
        with _ended(bench):
            yield bench


@pytest.mark.skipif(compiler() is None, reason="no C compiler to build the fake driver with")
class TestNvmlOnTheFake(DeviceConformance):
    """The rules on GPUs, through real pynvml and the fake driver."""

    @pytest.fixture
    def bench(self, tmp_path: Path) -> Iterator[Bench]:
        """Processes allocate with the fake CUDA on the fake GPU that their environment names."""
        with _on_the_fake("gpu", {DeviceKind.GPU}, tmp_path) as bench:
            yield bench


@pytest.mark.skipif(compiler() is None, reason="no C compiler to build the fake driver with")
class TestNvmlWithCpuOnTheFake(DeviceConformance):
    """The rules on GPUs and the CPU beside them, as a host has it with ``--devices gpu,cpu``."""

    @pytest.fixture
    def bench(self, tmp_path: Path) -> Iterator[Bench]:
        """A process on the CPU holds its memory on no GPU, and the fake's job is on both."""
        with _on_the_fake("gpu,cpu", {DeviceKind.GPU, DeviceKind.CPU}, tmp_path) as bench:
            yield bench


@contextlib.contextmanager
def _on_the_fake(spec: str, kinds: set[DeviceKind], tmp_path: Path) -> Iterator[Bench]:
    """Give what *spec* means on a machine with two fake GPUs."""
    fake = FakeGpus.create(tmp_path / "state", (24 * GIB, 80 * GIB))
    environ = fake.environ(build(tmp_path))
    backend = FarBackend(spec, environ)
    bench = Bench(
        backend,
        kinds,
        code=JOB.read_text(),
        environ=lambda device: {**environ, "CUDA_VISIBLE_DEVICES": device.uuid},
        tells_health=True,
    )
    with contextlib.closing(backend), _ended(bench):
        yield bench
