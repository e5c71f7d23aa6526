"""Selects the devices that a worker serves, and finds the device that a user names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuqueue.errors import BadRequest
from workers.devices.cpu import CpuBackend
from workers.devices.deadline import Deadlined
from workers.devices.simulated import PREFIX, SimulatedBackend
from workers.devices.with_cpu import WithCpu

if TYPE_CHECKING:
    from pathlib import Path

    from gpuqueue.model.device import Device
    from workers.devices.backend import DeviceBackend

#: Suffix of a spec that also serves the CPU.
BESIDE = ",cpu"


def choose(spec: str, host: str, runs_dir: Path | None = None) -> DeviceBackend:
    """Return the devices that *spec* names: ``auto``, ``gpu``, ``cpu``, or simulated ones like ``sim:4x24G``.

    ``auto`` selects the GPUs if there are any, and otherwise the CPU. With a broken driver it raises instead of
    selecting the CPU, because jobs meant for a GPU would then run on the CPU, slowly and without a warning. With the
    suffix ``,cpu``, as in ``gpu,cpu``, the CPU is served in addition to the other devices. Simulated devices ignore
    jobs whose run directory is not below *runs_dir*.

    Raises:
        BadRequest: *spec* is invalid, or names GPUs and there are none.
        DeviceTrouble: there is a driver, but it is broken.

    """
    chosen = _choose_one(spec.removesuffix(BESIDE), host, runs_dir)
    if spec.endswith(BESIDE) and not isinstance(chosen, CpuBackend):
        return WithCpu(chosen, CpuBackend(host))
    return chosen


def _choose_one(spec: str, host: str, runs_dir: Path | None) -> DeviceBackend:
    if spec == "cpu":
        return CpuBackend(host)
    if spec.startswith(PREFIX):
        return SimulatedBackend(host, spec, runs_dir)
    if spec not in ("auto", "gpu"):
        raise BadRequest(
            f"{spec!r} names no devices: write auto, gpu, cpu, or simulated ones like sim:4x24G; gpu,cpu serves both"
        )
    gpus = _gpus()
    if gpus is not None:
        return gpus
    if spec == "auto":
        return CpuBackend(host)
    raise BadRequest(f"{host} has no NVIDIA GPU or no driver for it: try nvidia-smi, or write auto, cpu or sim:4x24G")


def find(backend: DeviceBackend, wanted: str) -> Device:
    """Return the device that *wanted* names: an index, a UUID, or a unique prefix of a UUID.

    Raises:
        BadRequest: *wanted* matches no device, or several.
        DeviceTrouble: the driver does not answer.

    """
    devices = backend.devices()
    for device in devices:
        if wanted in (str(device.index), device.uuid):
            return device
    matches = [device for device in devices if wanted and device.uuid.startswith(wanted)]
    if len(matches) == 1:
        return matches[0]
    what = "means several devices" if matches else "is no device"
    there = ", ".join(f"{device.index} ({device.uuid})" for device in matches or devices)
    raise BadRequest(f"{wanted!r} {what}: there is {there or 'none'}")


def _gpus() -> DeviceBackend | None:
    """Return this host's GPUs, None if it has none."""
    from workers.devices.nvml import NvmlBackend  # noqa: PLC0415 - only a host that may have GPUs needs pynvml

    probed = NvmlBackend.probe()
    if probed is None:
        return None
    backend = Deadlined(probed)
    return backend if backend.devices() else None
