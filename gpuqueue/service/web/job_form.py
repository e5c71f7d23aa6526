"""The form of the page: from what a person types to the request of a job, and from a job to what would be typed.

What a text may be is decided where it is for the command line, and so are the messages about it. A job to run again is
changed in those fields only whose text differs, so that a value that the form shows in other words stays as it was.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from gpuqueue.client import notifications
from gpuqueue.client.placement import UuidsOf, placed
from gpuqueue.errors import BadRequest
from gpuqueue.model import host_limits, validation
from gpuqueue.model.api import NewJob, RetryRequest
from gpuqueue.model.array import Array
from gpuqueue.model.code_snapshot import CodeSnapshot
from gpuqueue.model.dependencies import Waits
from gpuqueue.model.device import DeviceFilter
from gpuqueue.model.job_request import JobEdit, JobRequest
from gpuqueue.model.job_spec import AUTO, NOWHERE, JobSpec, tags_of
from gpuqueue.model.page import JobForm
from gpuqueue.model.script_args import words_before_args
from gpuqueue.system.command_line import FAR_PYTHON
from gpuqueue.text.sanitize import brief
from gpuqueue.text.units import GIB, KIB, MIB, TIB, format_bytes, format_duration, parse_bytes

#: The environment of such a job, beside what its host adds: texts are UTF-8. An empty one would mean a damaged request.
ENVIRONMENT: Mapping[str, str] = {"LANG": "C.UTF-8"}
_SIZES = ((TIB, "T"), (GIB, "G"), (MIB, "M"), (KIB, "K"))
_DURATIONS = ((86400, "d"), (3600, "h"), (60, "m"), (1, "s"))


def new_job_of(form: JobForm, uuids_of: UuidsOf) -> NewJob:
    """Return the job that *form* describes. *uuids_of* maps names of devices to UUIDs.

    Raises:
        BadRequest: some values are malformed. It has all faults, by the fields of the form.

    """
    faults, is_python = validation.Faults(), form.script.endswith(".py")
    faults.of("script", _check_script, form)
    mem, python, environment = form.mem.strip(), form.python.strip(), form.environment.strip()
    faults.of("python", _check_python, form)
    at_once = faults.of("at_once", _at_once, form.at_once.strip())
    wanted = JobRequest(form.script, mem=mem or None, device=form.device.strip() or None)
    given = {
        "args": faults.of("args", _words, form.args),
        "mem_bytes": None if mem in {"", AUTO} else faults.of("mem", validation.mem_bytes, mem),
        "place": faults.of("device", placed, wanted, uuids_of),
        "time_limit_s": faults.of("time_limit", validation.time_limit, form.time_limit.strip() or None),
        "cpus": faults.of("cpus", host_limits.cpus_of, form.cpus.strip() or None),
        "cpu_mem_bytes": faults.of("cpu_mem", host_limits.cpu_mem_of, form.cpu_mem.strip() or None),
        "name": faults.of("name", validation.name, form.name) if form.name.strip() else None,
        "priority": faults.of("priority", validation.priority, form.priority),
        "tags": faults.of("tags", tags_in, form.tags),
        "array": faults.of("sweep" if form.sweep.strip() else "array", _array, form, at_once),
        "after": faults.of("after", validation.dependencies, form.after.replace(",", " ").split()),
        "on_end": faults.of("on_end", notifications.parsed, _targets(form.on_end), ()),
        "on_fail": faults.of("on_fail", notifications.parsed, (), _targets(form.on_fail)),
        "snapshot": faults.of("script", CodeSnapshot, form.snapshot),
    }
    faults.check()
    (device, placement), args = given.pop("place"), given.pop("args")
    waits = Waits(after=given.pop("after"))
    notified = dict.fromkeys((*given.pop("on_end"), *given.pop("on_fail")))
    program = (python or FAR_PYTHON, form.script) if is_python else (f"./{form.script}",)
    return NewJob(
        **{**given, "snapshot": str(given["snapshot"])},
        waits=waits,
        notifications=tuple(notified),
        argv=(*program, *args),
        cwd=NOWHERE,
        env=ENVIRONMENT,
        script=form.script,
        interpreter=python or FAR_PYTHON if is_python else None,
        environment=environment or None,
        auto_mem=mem == AUTO,
        gpus=form.gpus,
        device=device,
        placement=placement,
        pool=form.pool.strip(),
    )


def _check_script(form: JobForm) -> None:
    if not form.script or not form.snapshot:
        raise BadRequest("there is no script: choose a file, or an earlier job to run again")
    if "/" in form.script or form.script.startswith("-"):
        raise BadRequest(f"{brief(form.script)} is no name of a script: rename the file")


def _check_python(form: JobForm) -> None:
    python, environment = form.python.strip(), form.environment.strip()
    if python and not form.script.endswith(".py"):
        raise BadRequest(f"{brief(form.script)} is no .py file: leave the Python empty")
    if python and environment:
        raise BadRequest(f"a Python is named, and the environment {brief(environment)}: leave the Python empty")


def form_of(spec: JobSpec, device_names: Mapping[str, str]) -> JobForm:
    """Return what a person would type to submit *spec*. *device_names* are names of devices by their UUIDs."""
    devices = ",".join(device_names.get(each, each) for each in spec.placement.devices)
    return JobForm(
        script=spec.script or "",
        python=_python(spec),
        args="" if spec.script is None else shlex.join(spec.argv[words_before_args(spec) :]),
        mem="" if spec.placement.whole else size_typed(spec.mem_bytes),
        gpus=spec.gpus,
        device=devices or str(spec.device or ""),
        time_limit="" if spec.time_limit_s is None else _duration(spec.time_limit_s),
        cpus="" if spec.cpus is None else repr(spec.cpus).removesuffix(".0"),
        cpu_mem="" if spec.cpu_mem_bytes is None else size_typed(spec.cpu_mem_bytes),
        name=spec.name,
        priority=str(spec.priority),
        pool=spec.pool,
        tags=" ".join(spec.tags),
    )


def retry_of(form: JobForm, before: JobForm) -> RetryRequest:
    """Return the request to run the job of the form *before* again, with what *form* has in other words.

    Raises:
        BadRequest: a value is malformed, or a field that must have one is empty.

    """

    def changed(name: str, empty: str | None = None) -> str | None:
        now = str(getattr(form, name)).strip()
        if now == str(getattr(before, name)).strip():
            return None
        return empty if empty is not None and not now else now

    mem, args, python = changed("mem"), changed("args"), changed("python")
    if mem == "":
        raise BadRequest("the memory is empty: write a size such as 6G, or auto")
    changes = JobEdit(
        mem=mem,
        gpus=None if form.gpus == before.gpus else form.gpus,
        device=changed("device", str(DeviceFilter.ANY)),
        time_limit=changed("time_limit", validation.NONE),
        cpus=changed("cpus", validation.NONE),
        cpu_mem=changed("cpu_mem", validation.NONE),
        name=changed("name"),
        priority=changed("priority"),
        pool=changed("pool"),
    )
    return RetryRequest(args=None if args is None else _words(args), python=python or None, changes=changes)


def tags_in(text: str) -> tuple[str, ...]:
    """Return the tags in *text*, between spaces or commas.

    Raises:
        BadRequest: a word is no valid tag, or there are too many.

    """
    return tags_of(text.replace(",", " ").split())


def _at_once(text: str) -> int | None:
    if text and not (text.isascii() and text.isdigit()):
        raise BadRequest(f"{brief(text)} is no number of members at once: write one such as 4")
    return validation.count("at_once", int(text)) if text else None


def _array(form: JobForm, at_once: int | None) -> Array | None:
    axes = [line.strip() for line in form.sweep.splitlines() if line.strip()]
    return validation.array(form.array.strip() or None, axes, at_once, None)


def _targets(text: str) -> tuple[str, ...]:
    return tuple(text.replace(",", " ").split())


def _words(text: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(text))
    except ValueError:
        raise BadRequest("the arguments have a quote or a backslash without its end: write 'two words'") from None


def _python(spec: JobSpec) -> str:
    """Return the interpreter of a script that neither uv nor the environment of a host chooses, else nothing."""
    is_plain = spec.interpreter == spec.argv[0] and spec.environment is None
    return spec.interpreter if spec.interpreter is not None and is_plain else ""


def size_typed(size_bytes: int) -> str:
    """Return a size that is read as exactly *size_bytes*."""
    for unit, name in _SIZES:
        if size_bytes % unit == 0:
            return f"{size_bytes // unit}{name}"
    short = format_bytes(size_bytes)
    return short if size_bytes >= KIB and parse_bytes(short) == size_bytes else f"{size_bytes / KIB}K"


def _duration(duration_s: float) -> str:
    """Return a duration such as 1h30m; one that is no whole number of seconds is rounded."""
    left_s, parts = round(duration_s), []
    for unit_s, name in _DURATIONS:
        number, left_s = divmod(left_s, unit_s)
        parts += [f"{number}{name}"] if number else []
    return "".join(parts) or format_duration(duration_s)
