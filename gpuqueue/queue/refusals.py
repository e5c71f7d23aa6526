"""Error messages for requests that no device could ever run, or that a limit refuses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

from gpuqueue.errors import Refused
from gpuqueue.model.device import Device, DeviceFilter
from gpuqueue.model.job_spec import JobSpec
from gpuqueue.model.measures import AT_SUBMIT, Measure
from gpuqueue.text.sanitize import plain
from gpuqueue.text.units import format_apart, format_duration

#: Maximum number of models in an error message.
MODELS_NAMED = 4

#: Names of the devices that a job with this device kind may run on, singular and plural.
_NOUNS = {
    None: ("device", "devices"),
    DeviceFilter.GPU: ("GPU", "GPUs"),
    DeviceFilter.CPU: ("CPU", "CPUs"),
    DeviceFilter.ANY: ("device", "devices"),
    DeviceFilter.SLURM: ("device", "devices"),
}


def _models_of(devices: Collection[tuple[Device, str]], pool: str) -> str:
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
        "pool": f"no device is in pool {spec.pool}: {_pools_in(devices)}choose another pool, or none",
        "model": (
            f"no device of type {plain(' or '.join(spec.placement.models))}{where}: there are "
            f"{_models_of(devices, spec.pool)}: give another --device-type, or none"
        ),
        "named": (
            f"no device that was named{where} fits the rest of what was asked: choose another device, pool or type"
        ),
        "mig": (
            f"{spec.gpus} {several} asked for, but a program can use only one MIG instance, and no host has "
            f"{spec.gpus} GPUs without MIG{where}: ask for one device"
        ),
        "devices": (
            f"{spec.gpus} {several} asked for, but no host has more than {figure}{_of(spec)}{where}: ask for fewer "
            "devices"
        ),
    }
    return lines.get(why) or _too_large(spec, figure, where)


def _pools_in(devices: Collection[tuple[Device, str]]) -> str:
    pools = sorted({pool for _, pool in devices if pool})
    return f"the pools are {plain(', '.join(pools))}: " if pools else ""


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
            f"{asked} asked for{_of(spec)}{where}, but no host has that many devices that can give it, though "
            f"the largest can give {largest}: ask for less memory, or for fewer devices"
        )
    return (
        f"{asked} asked for, but the largest {one}{_of(spec)}{where} can give {largest} (its memory less the headroom)"
        ": ask for less memory"
    )


#: What each maximum of a pool limits, and what to ask for instead.
_OF_POOL = {
    "max_mem": ("on a device", "less memory"),
    "max_time": ("of time", "less time"),
    "max_gpus": ("devices", "fewer devices"),
}
#: What each measure counts, singular and plural.
_OF_USER = {
    Measure.RUNNING_JOBS: ("job", "jobs"),
    Measure.RUNNING_GPUS: ("GPU", "GPUs"),
    Measure.RUNNING_MEM: ("of device memory", "of device memory"),
    Measure.QUEUED_JOBS: ("job", "jobs"),
}


def beyond_limit(spec: JobSpec, limit: Mapping[str, str]) -> Refused:
    """Return the error for a job that a *limit* refuses, which is from the reply of ``submit.lua``."""
    whose, name = limit["whose"], limit["measure"]
    used, most, asked = (int(limit[each]) for each in ("used", "most", "asked"))
    if whose == "pool":
        return _beyond_pool(spec, name, most, asked)
    measure = Measure(name)
    if measure in AT_SUBMIT:
        return _beyond_submit(whose, measure, used, most, asked)
    allowed, words = measure.shown(most), _words(measure, most)
    if measure is Measure.QUEUED_JOBS:
        waiting = f"{whose} has {used} {_words(measure, used)} waiting, and at most {allowed} may (limit {name})"
        if asked > max(1, most):
            return Refused(f"{waiting}: this array alone has {asked} members, submit it in smaller ones")
        these = f", and this array has {asked} members" if asked > 1 else ""
        return Refused(f"{waiting}{these}: submit when some have started")
    if asked > most:
        is_all = measure is Measure.RUNNING_MEM and spec.placement.exclusive
        asks = "this job, which gets all of its device, would have" if is_all else "this job alone asks for"
        return Refused(
            f"{whose} may have {allowed} {words} running at a time (limit {name}), and {asks} {measure.shown(asked)}"
        )
    return Refused(
        f"{whose} has {measure.shown(used)} of {allowed} {words} running (limit {name}), and jobs beyond it are "
        "refused here: submit when a run has ended"
    )


def _beyond_submit(whose: str, measure: Measure, used: int, most: int, asked: int) -> Refused:
    if measure is Measure.OPEN_JOBS:
        remedy = "submit when some have ended, or many at once as an array"
        many = f"{whose} has {used} jobs that have not ended, and at most {most} may be open (limit {measure})"
        return Refused(f"{many}: {remedy}")
    if measure is Measure.OPEN_BYTES:
        full, allowed = format_apart(used + asked, most)
        remedy = "submit when some have ended, or put large values into files"
        whole = f"with this one, the requests of {whose}'s jobs that have not ended take {full}"
        return Refused(f"{whole}, and at most {allowed} may (limit {measure}): {remedy}")
    if measure is Measure.ARRAY_MEMBERS:
        remedy = "submit it in smaller ones" if asked > most else "submit it when some have started"
        waiting = f"{whose} has {used} array members waiting, and at most {most} may (limit {measure})"
        return Refused(f"{waiting}: this array has {asked} members, {remedy}")
    size, allowed = format_apart(asked, most)
    if measure is Measure.ARGUMENTS:
        return Refused(f"the arguments take {size}, and at most {allowed} may (limit {measure}): put them into a file")
    return Refused(
        f"the environment takes {size}, and at most {allowed} may (limit {measure}): submit from a smaller one "
        "(env -i), or put large values into a file"
    )


def _words(measure: Measure, amount: int) -> str:
    one, several = _OF_USER[measure]
    return one if amount == 1 else several


def _beyond_pool(spec: JobSpec, name: str, most: int, asked: int) -> Refused:
    if name == "max_mem":
        wanted, allowed = format_apart(asked, most)
    elif name == "max_time":
        wanted, allowed = format_duration(asked / 1000), format_duration(most / 1000)
    else:
        wanted, allowed = str(asked), str(most)
    where = f"pool {spec.pool}" if spec.pool else "a job without a pool"
    if name == "max_time" and not asked:
        return Refused(f"{where} may have {allowed} and not more (limit {name}): give a time limit")
    if name == "max_mem" and spec.placement.exclusive:
        return Refused(
            f"a job that is alone on its device gets all of it, here at least {wanted}, and {where} may have {allowed} "
            f"on a device (limit {name}): leave out --exclusive, or ask for a smaller device with --device-type"
        )
    noun, instead = _OF_POOL[name]
    return Refused(f"{wanted} {noun} asked for, and {where} may have {allowed} (limit {name}): ask for {instead}")
