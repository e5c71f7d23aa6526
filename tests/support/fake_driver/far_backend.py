"""A backend in another process, because a driver's library must be chosen before a process starts.

The test holds a :class:`FarBackend`, which is a DeviceBackend; run as a program, this file is its other side.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuqueue.model.device import Health
from workers.devices.select import choose

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from gpuqueue.model.device import Device, Reading, Utilisation
    from workers.devices.backend import DeviceBackend

#: The health of the fake cards by default.
WELL = Health(
    temperature_c=40.0,
    limit_c=83.0,
    utilisation=0.0,
    memory_utilisation=0.0,
    power_w=60.5,
    throttled=(),
    ecc_uncorrected=0,
    compute_mode="default",
    retired_rows=0,
    xids=(),
)

_ROOT = Path(__file__).parents[3]


class FarBackend:
    """The result of ``choose(spec, host)`` in a process with *environ* added; *spec* ``nvml`` skips `choose`."""

    def __init__(self, spec: str, environ: Mapping[str, str], host: str = "testhost") -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, spec, host],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(_ROOT), **environ},
        )
        try:
            self._receive()  # raises if the backend cannot be created
        except BaseException:
            self.close()
            raise

    def devices(self) -> tuple[Device, ...]:
        """Return the devices, as in DeviceBackend."""
        devices: tuple[Device, ...] = self._ask("devices")
        return devices

    def reading(self, device: Device) -> Reading:
        """Return a reading, as in DeviceBackend."""
        reading: Reading = self._ask("reading", device)
        return reading

    def used_by(self, reading: Reading, pids: Collection[int]) -> int | None:
        """Return the used bytes, as in DeviceBackend."""
        used_bytes: int | None = self._ask("used_by", reading, list(pids))
        return used_bytes

    def health(self, device: Device) -> Health:
        """Return the health, as in DeviceBackend."""
        health: Health = self._ask("health", device)
        return health

    def utilisations(self, device: Device) -> Mapping[int, Utilisation] | None:
        """Return the utilisation by process, as in DeviceBackend."""
        found: Mapping[int, Utilisation] | None = self._ask("utilisations", device)
        return found

    def accounted(self, device: Device, pids: Collection[int]) -> Mapping[int, int]:
        """Return the accounted maxima, as in DeviceBackend."""
        most: Mapping[int, int] = self._ask("accounted", device, list(pids))
        return most

    def distance(self, a: Device, b: Device) -> int | None:
        """Return the distance, as in DeviceBackend."""
        level: int | None = self._ask("distance", a, b)
        return level

    def close(self) -> None:
        """End the other process.

        It exits when its pipe is closed, so that its coverage data is saved.
        """
        with self._process:
            if self._process.stdin:
                self._process.stdin.close()
            try:
                self._process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                self._process.kill()

    def _ask(self, question: str, *args: object) -> Any:
        if self._process.stdin is None:
            raise EOFError("the far side is gone")
        pickle.dump((question, args), self._process.stdin)
        self._process.stdin.flush()
        return self._receive()

    def _receive(self) -> Any:
        """Return the next answer, or raise it if it is an error."""
        if self._process.stdout is None:
            raise EOFError("the far side is gone")
        answer = pickle.load(self._process.stdout)  # noqa: S301 - both ends are this file
        if isinstance(answer, Exception):
            raise answer
        return answer


def _serve(spec: str, host: str) -> None:
    """Answer questions until the test closes the pipe."""
    backend = _attempt(_make, spec, host)
    _send(backend if isinstance(backend, Exception) else None)
    while True:
        try:
            question, args = pickle.load(sys.stdin.buffer)  # noqa: S301 - both ends are this file
        except EOFError:
            return
        _send(_attempt(getattr(backend, question), *args))


def _make(spec: str, host: str) -> DeviceBackend:
    if spec != "nvml":
        return choose(spec, host)
    from workers.devices.deadline import Deadlined  # noqa: PLC0415 - as in choose
    from workers.devices.nvml import NvmlBackend  # noqa: PLC0415 - as in choose

    return Deadlined(NvmlBackend())


def _attempt(call: Any, *args: object) -> Any:
    """Return the result of *call*, or the error that it raises."""
    try:
        return call(*args)
    except Exception as error:  # noqa: BLE001 - the near side raises it again
        return error


def _send(answer: object) -> None:
    pickle.dump(answer, sys.stdout.buffer)
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    _serve(*sys.argv[1:])
