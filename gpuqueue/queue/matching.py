"""How jobs meet devices, as far as Python must know: the words in the store, and why nothing fits."""

from __future__ import annotations

from collections.abc import Collection

from gpuqueue.device import Device, DeviceKind, DeviceWish, suits
from gpuqueue.job import JobSpec
from gpuqueue.units import format_apart

#: What people call the devices that a job with this wish may run on: one, and several.
_NOUNS = {
    None: ("device", "devices"),
    DeviceWish.GPU: ("GPU", "GPUs"),
    DeviceWish.CPU: ("CPU", "CPUs"),
    DeviceWish.ANY: ("device", "devices"),
}


def kind_word(device: Device) -> str:
    """Return what a device's record calls it: its kind, or ``mig`` for a part of a GPU, which joins in no gang."""
    return "mig" if device.mig_parent is not None else device.kind.value


def takers(spec: JobSpec, devices: Collection[tuple[Device, str]]) -> list[str]:
    """Return those of *devices*, each with its pool, that a job may run on, however busy they may be: their UUIDs."""
    gpus_known = any(device.kind is not DeviceKind.CPU for device, _ in devices)
    return [
        device.uuid
        for device, pool in devices
        if spec.pool in ("", pool)
        and suits(spec.device, device.kind, gpus_known=gpus_known)
        and (spec.gpus == 1 or device.mig_parent is None)
    ]


def why_impossible(spec: JobSpec, why: str, figure: int) -> str:
    """Return in one line why no known device could ever run a job, and what to do; *why* is ``submit.lua``'s word."""
    where = f" in pool {spec.pool}" if spec.pool else ""
    one, several = _NOUNS[spec.device]
    if why == "pool":
        return f"no device is in pool {spec.pool}: see the pools in gpuqueue gpus --json, or leave out --pool"
    if why == "urgent":
        return f"{spec.account.name} may not use the level urgent here: use --priority high, or ask who runs this site"
    if why == "mig":
        return (
            f"{spec.gpus} {several} asked for, but a program can use only one MIG instance, and no host has "
            f"{spec.gpus} GPUs without MIG{where}: leave out --gpus"
        )
    if why == "devices":
        return f"{spec.gpus} {several} asked for, but no host has more than {figure}{where}: ask for fewer with --gpus"
    size, largest = format_apart(spec.mem_bytes, figure)
    asked = f"{size} on each of {spec.gpus} {several}" if spec.gpus > 1 else size
    return (
        f"{asked} asked for, but the largest {one}{where} can give {largest} (its memory less the headroom): "
        "ask for less with --mem"
    )
