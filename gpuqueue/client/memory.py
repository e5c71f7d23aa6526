"""Decides the memory of a new job: what was asked, what was learned from earlier runs, an estimate, or the default.

An explicit request is never changed. The submitter gets a line where the history knows better.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from gpuqueue.client.connection import Connection
from gpuqueue.errors import BadRequest
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.lazy.imports import later
from gpuqueue.model.job_spec import JobSpec
from gpuqueue.settings.parsers import LearnMemory
from gpuqueue.text.sanitize import plain
from gpuqueue.text.units import format_bytes

if TYPE_CHECKING:
    from gpuqueue.client import device_room
    from gpuqueue.learning import advice, program, signature
    from gpuqueue.learning.past_run import PastRun
    from gpuqueue.learning.signature import Lesson
    from gpuqueue.model import mem_source
else:  # a command without a script needs none of them
    advice = later("gpuqueue.learning.advice")
    device_room = later("gpuqueue.client.device_room")
    mem_source = later("gpuqueue.model.mem_source")
    program = later("gpuqueue.learning.program")
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
    found = lesson.learned
    room_bytes = device_room.most_for(connection, spec)
    mem_bytes = found.within(found.room_bytes if room_bytes is None else room_bytes)
    source = mem_source.MemSource(mem_source.MemKind.LEARNED, found.runs, lesson.signature)
    if note is not None:
        note(f"asking {format_bytes(mem_bytes)}: {advice.reason(lesson)}")
    return replace(spec, mem_bytes=mem_bytes, mem_source=str(source))


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
        raise BadRequest("give the device memory that the job needs: --mem 6G")
    raise BadRequest(f"{why}, and there is no default: give --mem 6G, or find it out with gpuqueue estimate")


def _suggest(connection: Connection, spec: JobSpec, note: Note | None) -> None:
    """Call *note* if earlier runs show that *spec* asks for too much or too little.

    An exclusive job gets all of a device, whatever it asks for.
    """
    if note is None or spec.placement.exclusive or not program.names_a_file(spec.argv, spec.script):
        return
    runs = _runs(connection, spec, needed=False)
    lesson = _lesson(connection, spec, runs) if runs else None
    if lesson is None:
        return
    asks_too_little = lesson.learned.need_bytes > spec.mem_bytes
    room_bytes = device_room.most_for(connection, spec) if asks_too_little else None
    line = advice.suggestion(spec.mem_bytes, lesson, room_bytes)
    if line is not None:
        note(line)


def _runs(connection: Connection, spec: JobSpec, *, needed: bool) -> tuple[PastRun, ...] | None:
    """Return the account's own earlier runs of the program, None if the history did not answer."""
    what = program.program_of(spec.argv, spec.script, spec.cwd)
    return connection.past_runs.of(spec.account.name, what, needed=needed)


def _lesson(connection: Connection, spec: JobSpec, runs: tuple[PastRun, ...]) -> Lesson | None:
    return signature.lesson_for(signature.Wanted.of(spec), runs, connection.settings.headroom_bytes)
