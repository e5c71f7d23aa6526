"""Matching of jobs and limits, as far as Python needs it: what a run counts for, and the error messages."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from gpuqueue.errors import Refused
from gpuqueue.model.device import DeviceFilter
from gpuqueue.model.job import Job, JobSpec
from gpuqueue.model.limits import Measure, Use
from gpuqueue.text.units import format_apart, format_duration


def use_of(spec: JobSpec, gives_bytes: Iterable[int] = ()) -> Use:
    """Return what a run of *spec* counts for against limits; memory is rounded as in the job's shape.

    An exclusive job counts for all memory of each of its devices: at least for the smallest of *gives_bytes* that is
    large enough. *gives_bytes* are the capacities of the devices that the job may run on.
    """
    gpus = 0 if spec.device is DeviceFilter.CPU else spec.gpus
    each = spec.shape.mem_bytes
    if spec.placement.exclusive:
        each = min((given for given in gives_bytes if given >= each), default=each)
    return Use(running_jobs=1, running_gpus=gpus, running_mem=spec.gpus * each)


#: Time that a run at its time limit needs to end, in milliseconds (as GONE_MS in lua/shared/state.lua).
GONE_MS = 5000


def kept_from(job: Job, text: str, *, now_ms: int) -> Use:
    """Return the room under a limit that is reserved against *job*; *text* is a value of the store's ``lk`` hash.

    No room is reserved against *job* if the reservation is for the job itself or for one like it, if the job ends
    before the room is needed, or if *text* is damaged. See ``lua/shared/limits.lua``.
    """
    try:
        _, gpus, kept_bytes, user, start, _, _, shape = text.split(":", 7)
        room = Use(running_jobs=1, running_gpus=int(gpus), running_mem=int(kept_bytes))
        start_ms = int(start)
    except ValueError:
        return Use()
    limit_s = job.spec.shape.time_limit_s
    is_gone_before = limit_s and start_ms and now_ms + limit_s * 1000 + GONE_MS <= start_ms
    is_its_own = user == job.spec.account.name and shape in _shapes(job.spec)
    return Use() if is_its_own or is_gone_before else room


def _shapes(spec: JobSpec) -> set[str]:
    """Return the shapes that a job may have in the store: without a device kind it is usually meant for a GPU."""
    shape = spec.shape
    return {str(shape), str(shape if shape.device else replace(shape, device=DeviceFilter.GPU))}


#: What each maximum of a pool limits, and the option for it.
_OF_POOL = {"max_mem": ("on a device", "--mem"), "max_time": ("of time", "--time"), "max_gpus": ("devices", "--gpus")}
#: What each measure counts, singular and plural.
_OF_USER = {
    Measure.RUNNING_JOBS: ("job", "jobs"),
    Measure.RUNNING_GPUS: ("GPU", "GPUs"),
    Measure.RUNNING_MEM: ("of device memory", "of device memory"),
    Measure.QUEUED_JOBS: ("job", "jobs"),
}


def beyond_limit(spec: JobSpec, whose: str, name: str, figures: tuple[int, int, int]) -> Refused:
    """Return the error for a job that a limit refuses; *whose* and *name* are from the reply of ``submit.lua``.

    *figures* are the amount in use, the maximum, and the amount that the job asks for.
    """
    used, most, asked = figures
    if whose == "pool":
        return _beyond_pool(spec, name, most, asked)
    measure = Measure(name)
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
        f"{whose} has {measure.shown(used)} of {allowed} {words} running (limit {name}), and what is beyond is refused "
        "here: submit when a run has ended"
    )


def _words(measure: Measure, amount: int) -> str:
    one, several = _OF_USER[measure]
    return one if amount == 1 else several


def _beyond_pool(spec: JobSpec, name: str, most: int, asked: int) -> Refused:
    if name == "max_mem":
        said, allowed = format_apart(asked, most)
    elif name == "max_time":
        said, allowed = format_duration(asked / 1000), format_duration(most / 1000)
    else:
        said, allowed = str(asked), str(most)
    where = f"pool {spec.pool}" if spec.pool else "a job without a pool"
    if name == "max_time" and not asked:
        return Refused(f"{where} may have {allowed} and not more (limit {name}): say how long it may run with --time")
    if name == "max_mem" and spec.placement.exclusive:
        return Refused(
            f"a job that is alone on its device gets all of it, here at least {said}, and {where} may have {allowed} "
            f"on a device (limit {name}): leave out --exclusive, or ask for a smaller device with --device-type"
        )
    noun, option = _OF_POOL[name]
    return Refused(
        f"{said} {noun} asked for, and {where} may have {allowed} (limit {name}): ask for less with {option}"
    )
