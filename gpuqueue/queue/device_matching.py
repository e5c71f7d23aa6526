"""Matching of jobs and devices, as far as Python needs it: names in the store, and why no device fits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from gpuqueue.model.device import Device, DeviceFilter, DeviceKind, suits
from gpuqueue.model.job import JobSpec
from gpuqueue.model.placement import Placement, fits_model
from gpuqueue.text.sanitize import plain
from gpuqueue.text.units import format_apart

#: Maximum number of models in an error message.
MODELS_NAMED = 4

#: Names of the devices that a job with this device kind may run on, singular and plural.
_NOUNS = {
    None: ("device", "devices"),
    DeviceFilter.GPU: ("GPU", "GPUs"),
    DeviceFilter.CPU: ("CPU", "CPUs"),
    DeviceFilter.ANY: ("device", "devices"),
}


def kind_word(device: Device) -> str:
    """Return the kind in a device's record; ``mig`` for a MIG instance, which no job on several devices can use."""
    return "mig" if device.mig_parent is not None else device.kind.value


def takers(spec: JobSpec, devices: Collection[tuple[Device, str]]) -> list[str]:
    """Return the UUIDs of those *devices*, each with its pool, that a job may run on, busy or not."""
    gpus_known = any(device.kind is not DeviceKind.CPU for device, _ in devices)
    return [
        device.uuid
        for device, pool in devices
        if spec.pool in ("", pool)
        and suits(spec.device, device.kind, gpus_known=gpus_known)
        and (spec.gpus == 1 or device.mig_parent is None)
        and admits(spec.placement, device)
    ]


def admits(placement: Placement, device: Device) -> bool:
    """Return whether *placement* allows *device*, by the device's name and UUID."""
    named = not placement.devices or device.uuid in placement.devices
    return named and (not placement.models or any(fits_model(each, device.name) for each in placement.models))


def models_of(devices: Collection[tuple[Device, str]], pool: str) -> str:
    """Return the models in *pool* as text (in all pools if it is empty): ``4 of Tesla T4, 1 of A100``."""
    counts = Counter(device.name for device, its_pool in devices if pool in ("", its_pool))
    most_first = sorted(counts.items(), key=lambda each: (-each[1], each[0]))
    words = [f"{count} of {plain(name)}" for name, count in most_first[:MODELS_NAMED]]
    return ", ".join(words) + (", …" if len(counts) > MODELS_NAMED else "")


def why_impossible(spec: JobSpec, why: str, figure: int, devices: Collection[tuple[Device, str]] = ()) -> str:
    """Return in one line why none of *devices* could ever run a job, and what to do.

    *why* and *figure* are from the reply of ``submit.lua``.
    """
    where = f" in pool {spec.pool}" if spec.pool else ""
    _, several = _NOUNS[spec.device]
    lines = {
        "pool": f"no device is in pool {spec.pool}: see the pools in gpuqueue gpus --json, or leave out --pool",
        "model": (
            f"no device of type {plain(' or '.join(spec.placement.models))}{where}: there are "
            f"{models_of(devices, spec.pool)}: say another --device-type, or none"
        ),
        "named": (
            f"no device that was named{where} fits the rest of what was asked: leave out --device, --pool or "
            "--device-type"
        ),
        "mig": (
            f"{spec.gpus} {several} asked for, but a program can use only one MIG instance, and no host has "
            f"{spec.gpus} GPUs without MIG{where}: leave out --gpus"
        ),
        "devices": (
            f"{spec.gpus} {several} asked for, but no host has more than {figure}{_of(spec)}{where}: ask for fewer "
            "with --gpus"
        ),
    }
    return lines.get(why) or _too_large(spec, figure, where)


def _of(spec: JobSpec) -> str:
    """Return the device filter of a job as text."""
    if spec.placement.devices:
        return " of those that were named"
    return f" of type {plain(' or '.join(spec.placement.models))}" if spec.placement.models else ""


def _too_large(spec: JobSpec, figure: int, where: str) -> str:
    one, several = _NOUNS[spec.device]
    size, largest = format_apart(spec.mem_bytes, figure)
    asked = f"{size} on each of {spec.gpus} {several}" if spec.gpus > 1 else size
    if spec.gpus > 1 and spec.mem_bytes <= figure:
        return (
            f"{asked} asked for{_of(spec)}{where}, but no host has so many that can give it, though "
            f"the largest can give {largest}: ask for less with --mem, or for fewer with --gpus"
        )
    return (
        f"{asked} asked for, but the largest {one}{_of(spec)}{where} can give {largest} (its memory less the headroom)"
        ": ask for less with --mem"
    )
