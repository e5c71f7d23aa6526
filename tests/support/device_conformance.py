"""The conformance tests of every device backend, including real cards."""

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

from gpuqueue.model.device import DeviceKind, Health

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpuqueue.model.device import Device
    from workers.devices.backend import DeviceBackend

GIB = 2**30
HELD_BYTES = 64 * 2**20

#: Allocates argv[1] bytes, prints ``ready``, and lives until its stdin ends.
HOLD = "import sys; held = b'x' * int(sys.argv[1]); print('ready', flush=True); sys.stdin.read()"


def until(condition: Callable[[], bool], within_s: float = 20.0) -> bool:
    """Poll *condition* until it holds or the time is up; return whether it holds."""
    deadline_s = time.monotonic() + within_s
    pause = threading.Event()
    while not condition():
        if time.monotonic() > deadline_s:
            return False
        pause.wait(0.02)
    return True


@dataclass
class Bench:
    """A backend, and a way to make a process hold memory on one of its devices."""

    backend: DeviceBackend
    kinds: set[DeviceKind]
    code: str = HOLD
    environ: Callable[[Device], dict[str, str]] = lambda _: {}
    reports_health: bool = False
    processes: list[subprocess.Popen[str]] = field(default_factory=list)

    def hold(self, device: Device, size_bytes: int = HELD_BYTES) -> int:
        """Start a process that holds *size_bytes* on *device*; return its pid once it does."""
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
        """Kill the processes that hold memory."""
        for process in self.processes:
            process.kill()
            with process:
                pass
        self.processes.clear()


class DeviceConformance:
    """The rules; a subclass provides the fixture ``bench``."""

    def test_devices_have_stable_unique_uuids(self, bench: Bench) -> None:
        """The devices are the same and in the same order each time, with unique UUIDs and ascending indexes."""
        devices = bench.backend.devices()
        assert devices == bench.backend.devices()
        assert len(devices) == len({device.uuid for device in devices}) > 0
        assert sorted(device.index for device in devices) == [device.index for device in devices]
        assert bench.kinds == {device.kind for device in devices}
        assert all(device.name and device.total_bytes > 0 for device in devices)

    def test_free_is_never_more_than_total(self, bench: Bench) -> None:
        """A reading has free and total bytes that agree with each other and with the device."""
        for device in bench.backend.devices():
            reading = bench.backend.reading(device)
            assert device.total_bytes == reading.total_bytes
            assert 0 <= reading.free_bytes <= reading.total_bytes

    def test_no_process_uses_nothing(self, bench: Bench) -> None:
        """An empty set of processes holds exactly nothing, and only the CPU does not list processes."""
        for device in bench.backend.devices():
            assert 0 == bench.used_by(device)
            assert bench.backend.reading(device).listed == (device.kind is not DeviceKind.CPU)

    def test_a_process_that_allocates_is_seen(self, bench: Bench) -> None:
        """A process that holds memory is measured with at least that, and is in the list where there is one."""
        for device in {bench.backend.devices()[0], bench.backend.devices()[-1]}:
            free_before_bytes = bench.backend.reading(device).free_bytes
            pid = bench.hold(device)
            assert HELD_BYTES <= (bench.used_by(device, pid) or 0) < HELD_BYTES + 4 * GIB
            if bench.backend.reading(device).listed:
                assert pid in bench.backend.reading(device).processes
                assert bench.backend.reading(device).free_bytes <= free_before_bytes - HELD_BYTES

    def test_two_processes_add_up(self, bench: Bench) -> None:
        """The memory of two processes is the sum of both, and naming one twice changes nothing."""
        device = bench.backend.devices()[0]
        first, second = bench.hold(device), bench.hold(device)
        together = bench.used_by(device, first, second, second) or 0
        apart = (bench.used_by(device, first) or 0) + (bench.used_by(device, second) or 0)
        assert apart == pytest.approx(together, abs=2**20)
        assert 2 * HELD_BYTES <= together

    def test_a_dead_process_is_not_seen(self, bench: Bench) -> None:
        """A killed process holds nothing any more, and is not listed."""
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

    def test_a_maximum_that_was_not_recorded_is_not_reported(self, bench: Bench) -> None:
        """An unknown process has no accounted maximum, and that of a live process is at least what it holds."""
        device = bench.backend.devices()[0]
        pid = bench.hold(device)
        kept = bench.backend.accounted(device, [pid, 4_000_001])
        assert 4_000_001 not in kept
        assert all(HELD_BYTES <= most for most in kept.values())

    def test_health_is_in_range_or_unknown(self, bench: Bench) -> None:
        """Health figures are plausible, and an unknown figure is None and never zero."""
        for device in bench.backend.devices():
            health = bench.backend.health(device)
            assert Health is type(health)
            assert health.limit_c is None or 1 <= health.limit_c < 150
            assert health.utilisation is None or 0 <= health.utilisation <= 1
            assert health.compute_mode in (None, "default", "prohibited", "exclusive_process")
            if not bench.reports_health or device.kind is DeviceKind.CPU:
                assert {None} == set(astuple(health))

    def test_distance_is_the_same_both_ways(self, bench: Bench) -> None:
        """The distance of two devices is the same in both directions, and that of a device to itself is 0."""
        devices = bench.backend.devices()
        assert bench.backend.distance(devices[0], devices[0]) in (None, 0)
        there = bench.backend.distance(devices[0], devices[-1])
        assert there == bench.backend.distance(devices[-1], devices[0])
        assert there is None or 0 <= there <= 50


@contextlib.contextmanager
def ended_after(bench: Bench) -> Iterator[Bench]:
    """End the processes of *bench* after the block."""
    try:
        yield bench
    finally:
        bench.end()
