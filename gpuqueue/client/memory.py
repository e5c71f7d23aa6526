"""Decides the memory of a new job: what was asked, what was learned from earlier runs, an estimate, or the default.

An explicit request is never changed. The submitter gets a line where the history knows better.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from gpuqueue.client.connection import Connection
from gpuqueue.errors import BadRequest, Unreachable
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.lazy.imports import later
from gpuqueue.learning.signature import Wanted, expected_duration_s, expected_utilisation, program_of
from gpuqueue.model.device import DeviceKind, suits
from gpuqueue.model.job_spec import JobSpec
from gpuqueue.model.placement import fits_model
from gpuqueue.model.script_args import args_start
from gpuqueue.settings.parsers import LearnMemory
from gpuqueue.text.sanitize import plain
from gpuqueue.text.units import format_bytes

if TYPE_CHECKING:
    from gpuqueue.learning import advice, signature
    from gpuqueue.learning.past_run import PastRun
    from gpuqueue.learning.signature import Lesson
    from gpuqueue.model import mem_source
    from gpuqueue.model import run as runs
    from gpuqueue.model.run import Record
    from gpuqueue.queue.lease import DeviceStatus
else:
    advice = later("gpuqueue.learning.advice")
    mem_source = later("gpuqueue.model.mem_source")
    runs = later("gpuqueue.model.run")
    program = later("gpuqueue.learning.signature")
    signature = later("gpuqueue.learning.signature")

Note = Callable[[str], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenMemory:
    """A request that leaves the memory open.

    With ``auto``, the submitter asks for what was learned. ``estimated_bytes`` is what ``gpuqueue estimate`` found on
    the submitter's machine, and ``default_bytes`` the submitter's own default; None if there is none.
    """

    auto: bool = False
    estimated_bytes: int | None = None
    default_bytes: int | None = None


def with_memory(connection: Connection, spec: JobSpec, open_memory: OpenMemory | None, note: Note | None) -> JobSpec:
    """Return *spec* with its memory decided, and call *note* with a line about it.

    *open_memory* is None if the submitter named the memory, which then stays as it is.

    Raises:
        BadRequest: the memory is open, and there is no number for it.

    """
    if spec.placement.whole:
        return spec
    if open_memory is None:
        _suggest(connection, spec, note)
        return spec
    rule = LearnMemory.AUTO if open_memory.auto else connection.settings.learn_memory
    if rule is LearnMemory.SUGGEST:
        found = _with(spec, _default_bytes(connection, spec, open_memory), mem_source.MemKind.DEFAULT)
        _suggest(connection, found, note)
        return found
    runs = _runs(connection, spec, needed=True)
    lesson = None if runs is None else _lesson(connection, spec, runs)
    if lesson is not None and (rule is LearnMemory.AUTO or lesson.is_sure):
        return _learned(connection, spec, lesson, note)
    if rule is LearnMemory.DEFAULT:
        return _with(spec, _default_bytes(connection, spec, open_memory), mem_source.MemKind.DEFAULT)
    why = "the history does not answer" if runs is None else f"no earlier run of {plain(spec.name)} shows its memory"
    return _without_history(connection, spec, open_memory, why, note)


def _learned(connection: Connection, spec: JobSpec, lesson: Lesson, note: Note | None) -> JobSpec:
    found, room_bytes = lesson.learned, _room_for(connection, spec, lesson)
    runs_again = spec.requeue and spec.retries.most_mem_times > 0
    mem_bytes = found.first_within(room_bytes) if runs_again else found.within(room_bytes)
    source = mem_source.MemSource(mem_source.MemKind.LEARNED, found.runs, lesson.signature)
    if note is not None:
        note(f"asking {format_bytes(mem_bytes)}: {advice.reason_for(mem_bytes, lesson)}")
    return replace(spec, mem_bytes=mem_bytes, mem_source=str(source))


def _room_for(connection: Connection, spec: JobSpec, lesson: Lesson) -> int | None:
    """Return the most that a device of a job like *spec* can give; that of the runs of *lesson* if it is unknown."""
    room_bytes = most_for(connection, spec)
    return lesson.learned.room_bytes if room_bytes is None else room_bytes


def with_advice(connection: Connection, record: Record) -> Record:
    """Return *record* with the memory that is enough for its job by the rule of ``--mem auto``.

    It is unchanged if no run shows that, or if newer runs show less than the job's own peak: they have forgotten it.
    """
    spec = record.job.spec
    past = _runs(connection, spec, needed=False)
    lesson = _lesson(connection, spec, past) if past else None
    peak_bytes = max((device.peak.bytes or 0 for run in record.runs for device in run.devices), default=0)
    if lesson is None or lesson.learned.need_bytes < peak_bytes:
        return record
    mem_bytes = lesson.learned.within(None)
    if spec.placement.whole or mem_bytes > spec.mem_bytes:  # less than that its devices have given
        mem_bytes = lesson.learned.within(_room_for(connection, spec, lesson))
    found = runs.MemAdvice(mem_bytes=mem_bytes, runs=lesson.learned.runs, reason=advice.reason(lesson))
    return replace(record, advice=found)


def _without_history(
    connection: Connection, spec: JobSpec, open_memory: OpenMemory, why: str, note: Note | None
) -> JobSpec:
    """Return *spec* with the estimate, else the default. *why* says why nothing was learned."""
    if open_memory.estimated_bytes is not None:
        found, words = _with(spec, open_memory.estimated_bytes, mem_source.MemKind.ESTIMATE), "estimated by a dry run"
    else:
        default_bytes = _default_bytes(connection, spec, open_memory, why)
        found, words = _with(spec, default_bytes, mem_source.MemKind.DEFAULT), "the default"
    if note is not None:
        note(f"asking {format_bytes(found.mem_bytes)}, {words}: {why}")
    return found


def _with(spec: JobSpec, size_bytes: int, kind: mem_source.MemKind) -> JobSpec:
    return replace(spec, mem_bytes=size_bytes, mem_source=str(kind))


def _default_bytes(connection: Connection, spec: JobSpec, open_memory: OpenMemory, why: str | None = None) -> int:
    """Return the memory of a job that does not say how much it needs. *why* says why nothing was learned.

    Raises:
        BadRequest: neither the submitter, nor the settings, nor the pool have a default.

    """
    for size_bytes in (open_memory.default_bytes, connection.settings.default_mem_bytes):
        if size_bytes is not None:
            return size_bytes
    default_bytes = connection.queue.rules.limits().of_pool(spec.pool).default_mem_bytes
    if default_bytes is not None:
        return default_bytes
    if why is None:
        raise BadRequest(
            "give the device memory that the job needs: --mem 6G, or --mem auto for what earlier runs needed; gpuqueue "
            "estimate and gpuqueue probe find it out"
        )
    raise BadRequest(
        f"{why}, and there is no default: give --mem 6G, or find it out with gpuqueue estimate or gpuqueue probe"
    )


def _suggest(connection: Connection, spec: JobSpec, note: Note | None) -> None:
    """Call *note* if earlier runs show that *spec* asks for too much or too little.

    An exclusive job gets all of a device, whatever it asks for.
    """
    if note is None or spec.placement.exclusive or not signature.names_a_file(spec.argv, spec.script):
        return
    runs = _runs(connection, spec, needed=False)
    lesson = _lesson(connection, spec, runs) if runs else None
    if lesson is None:
        return
    asks_too_little = lesson.learned.need_bytes > spec.mem_bytes
    room_bytes = most_for(connection, spec) if asks_too_little else None
    line = advice.suggestion(spec.mem_bytes, lesson, room_bytes)
    if line is not None:
        note(line)


def _runs(connection: Connection, spec: JobSpec, *, needed: bool) -> tuple[PastRun, ...] | None:
    """Return the account's own earlier runs of the program, None if the history did not answer."""
    what = signature.program_of(spec.argv, spec.script, spec.cwd)
    return connection.past_runs.of(spec.account.name, what, needed=needed)


def _lesson(connection: Connection, spec: JobSpec, runs: tuple[PastRun, ...]) -> Lesson | None:
    return signature.lesson_for(signature.Wanted.of(spec), runs, connection.settings.headroom_bytes)


def most_for(connection: Connection, spec: JobSpec) -> int | None:
    """Return the most bytes that each device of a job like *spec* can give, on the host that can give most.

    External processes do not count, since they may end. What nobody holds is the driver's own and counts. None if no
    device is known that the job may use, or if the store does not answer. A CPU has no device memory.

    ``memory_retry.lua`` has the same rule.
    """
    try:
        devices = connection.queue.devices.all()
    except Unreachable:
        return None
    gpus_known = any(each.device.kind.is_gpu for each in devices)
    alike: dict[tuple[str, DeviceKind], list[int]] = {}  # all devices of a job are on one host and of one kind
    for each in devices:
        if each.device.kind.is_gpu and _may_use(spec, each, gpus_known=gpus_known):
            alike.setdefault((each.host, each.device.kind), []).append(_room_bytes(each))
    enough = [sorted(rooms, reverse=True)[spec.gpus - 1] for rooms in alike.values() if len(rooms) >= spec.gpus]
    return max(enough, default=None)


def _may_use(spec: JobSpec, status: DeviceStatus, *, gpus_known: bool) -> bool:
    wanted, device = spec.placement, status.device
    return (
        spec.pool in {"", status.pool}
        and suits(spec.device, device.kind, gpus_known=gpus_known)
        and (not wanted.devices or device.uuid in wanted.devices)
        and (not wanted.models or any(fits_model(model, device.name) for model in wanted.models))
        and (spec.gpus == 1 or device.mig_parent is None)
    )


def _room_bytes(status: DeviceStatus) -> int:
    of_driver = status.external_bytes if status.driver_bytes is None else status.driver_bytes
    return status.device.total_bytes - status.headroom_bytes - (of_driver or 0)


def with_expected_utilisation(connection: Connection, spec: JobSpec) -> JobSpec:
    """Return *spec* with its expected utilisation, unchanged if the account's own earlier runs do not show it.

    A submit does not wait for a history that would have to be opened first (see past_runs.py).
    """
    program = program_of(spec.argv, spec.script, spec.cwd)
    runs = connection.past_runs.of(spec.account.name, program, needed=False)
    found = expected_utilisation(Wanted.of(spec), runs or ())
    return spec if found is None else replace(spec, expected_utilisation=found)


def with_expected_duration(connection: Connection, spec: JobSpec) -> JobSpec:
    """Return *spec* with its expected duration, unchanged if the account's own earlier runs do not show it.

    Nobody learns from programs on the path of all users. As above, a submit does not wait for the history.
    """
    if not signature.names_a_file(spec.argv, spec.script):
        return spec
    runs = _runs(connection, spec, needed=False)
    found_s = expected_duration_s(spec.argv[args_start(spec.argv, spec.interpreter) :], runs) if runs else None
    return spec if found_s is None else replace(spec, expected_duration_s=found_s)
