"""A machine with GPUs, real or of the fake driver, for tests that run on both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

import pytest
from device_conformance import HELD_BYTES, Bench
from fake_driver.fake_driver import JOB
from fake_driver.far_backend import FarBackend

from gpuqueue.model.device import Device, DeviceKind
from gpuqueue.text.units import format_bytes


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A machine with GPUs.

    ``environ`` is what a program needs in addition to find the machine's driver; ``backend`` reads that driver.
    """

    real: bool
    environ: dict[str, str]
    backend: FarBackend

    def card(self, wanted_bytes: int) -> Device:
        """Return the first device with *wanted_bytes* free.

        On a real machine other programs may use the devices.
        """
        for device in self.backend.devices():
            if self.free_bytes(device) >= wanted_bytes:
                return device
        return self.lacks(f"no GPU with {format_bytes(wanted_bytes)} free")

    def whole_cards(self, count: int) -> tuple[Device, ...]:
        """Return *count* cards that one program can use together, which MIG instances are not."""
        cards = tuple(device for device in self.backend.devices() if device.mig_parent is None)
        return cards[:count] if len(cards) >= count else self.lacks(f"{len(cards)} whole GPUs and not {count}")

    def free_bytes(self, device: Device) -> int:
        """Return the free bytes of *device*."""
        return self.backend.reading(device).free_bytes

    def must_name_our_processes(self) -> None:
        """End the test unless the driver reports the memory of the tests' own processes."""
        device = self.card(2 * HELD_BYTES)
        environ = {**self.environ, "CUDA_VISIBLE_DEVICES": device.uuid}
        bench = Bench(self.backend, {DeviceKind.GPU}, code=JOB.read_text(), environ=lambda _: environ)
        try:
            pid = bench.hold(device)
            listed = self.backend.reading(device).processes
        finally:
            bench.end()
        if pid not in listed:
            self.lacks(
                f"this machine hides our processes: GPU {device.index} lists the pids {sorted(listed)}, and not {pid}, "
                "which holds memory on it; a container sees them with the host's pids only (docker run --pid=host)"
            )
        held_bytes = listed[pid]
        assert held_bytes is not None, f"the driver does not say what pid {pid} holds on GPU {device.index} (N/A)"
        assert held_bytes >= HELD_BYTES

    def lacks(self, words: str) -> NoReturn:
        """End the test: skip it on a real machine, fail it on the fake one, which has everything."""
        if self.real:
            pytest.skip(words)
        pytest.fail(words)
