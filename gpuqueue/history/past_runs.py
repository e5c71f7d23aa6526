"""The query for earlier runs of a program, and their conversion to values. Pure: two readers run the query.

Of the newest jobs of the account whose last run shows a need, all runs are read. An index finds these jobs, so the
number of other jobs does not matter.
"""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING, Any, TypeAlias

from gpuqueue.learning.past_run import (
    MOST_JOBS,
    OnDevice,
    PastRun,
    code_of,
    kind_of,
    next_request,
    proof_of,
    utilisation_of,
    without_lost,
)
from gpuqueue.model.device import DeviceKind, PeakSource
from gpuqueue.model.script_args import args_start

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

#: The jobs whose last run shows how much memory the program needs: successes, time limits, and out of memory. The
#: condition is that of an index, and a query that uses the index must repeat it literally.
TELLING = "exit_code = 0 OR ending IN ('timed_out', 'out_of_memory')"
#: Longest request of an array that is read for the code and the environment of its members, in bytes.
MOST_SPEC_BYTES = 65536

#: The runs of the newest jobs of an account and a program, one row for each device, newest run first. The request of
#: a member is with its array. The program is given as a range, and the rows are ordered by it, because of PostgreSQL:
#: for one program in the order of the ids it may walk the primary key past all newer jobs, if the program is frequent.
QUERY = f"""
SELECT j.id, r.attempt, r.ending, r.exit_code, j.command, j.interpreter, j.spec, j.array_id, j.mem_bytes, j.mem_retries,
       r.notes, r.duration_s, d.lease_bytes, d.peak_bytes, d.peak_source, d.samples, d.kind, d.name, d.total_bytes,
       d.shared, d.own_utilisation_mean
FROM (SELECT id, command, interpreter, spec, array_id, mem_bytes, mem_retries FROM jobs
      WHERE user_name = :user AND program >= :program AND program <= :program AND ({TELLING})
      ORDER BY program DESC, id DESC LIMIT {MOST_JOBS}) j
JOIN runs r ON r.job_id = j.id
JOIN run_devices d ON d.job_id = r.job_id AND d.attempt = r.attempt
WHERE r.ending IS NOT NULL
ORDER BY j.id DESC, r.attempt DESC, d.device_index
"""  # noqa: S608 - our words
#: The requests of arrays, by their ids.
ARRAYS = f"SELECT id, spec FROM jobs WHERE id = :id AND length(spec) <= {MOST_SPEC_BYTES}"  # noqa: S608 - our words

#: The code of a job and the name of its Python environment. Each is None if it is not known.
Code: TypeAlias = "tuple[str | None, str | None]"
#: The columns of the ending, the job's memory and the notes, the number of columns before those of the device, and the
#: column of its peak.
_ENDING, _MEM, _NOTES = 2, slice(8, 10), 10
_DURATION = 11
_JOB, _PEAK = 12, 13
_SOURCES = {each.value: each for each in PeakSource}
_KINDS = {each.value: each for each in DeviceKind}


def arrays_of(rows: Iterable[Sequence[Any]]) -> set[int]:
    """Return the ids of the arrays whose members are in the *rows* of QUERY."""
    return {row[7] for row in rows if row[7] is not None}


def past_runs(rows: Iterable[Sequence[Any]], arrays: Mapping[int, str]) -> tuple[PastRun, ...]:
    """Return the runs in the *rows* of QUERY, newest first, that show a need.

    *arrays* has the request of each array of :func:`arrays_of`, as text.
    """
    known = codes_of(arrays)
    grouped: dict[int, dict[int, list[Sequence[Any]]]] = {}
    for row in rows:
        grouped.setdefault(row[0], {}).setdefault(row[1], []).append(row)
    return tuple(run for attempts in grouped.values() for run in runs_of(list(attempts.values()), known) if run)


def runs_of(attempts: Sequence[Sequence[Sequence[Any]]], known: Mapping[int, Code]) -> list[PastRun | None]:
    """Return the runs of one job, newest first. None for each that does not show a need.

    A run that died for lack of memory shows nothing if others had taken its memory: see :func:`without_lost`. While
    the job waits for its next run, its own request shows whether it asked for more.
    """
    mem_bytes, mem_retries = attempts[0][0][_MEM]
    died = sum(rows[0][_ENDING] == "out_of_memory" for rows in attempts)
    figures = (
        (
            run_of(rows, known),
            max(row[_JOB] for row in rows),
            max((row[_PEAK] for row in rows if row[_PEAK] is not None), default=None),
        )
        for rows in attempts
    )
    return list(without_lost(figures, next_request(mem_bytes, died=died, mem_retries=mem_retries)))


def codes_of(arrays: Mapping[int, str]) -> Mapping[int, Code]:
    """Return the code and the environment of each array whose request is in *arrays*."""
    return {array_id: _code_and_environment(text) for array_id, text in arrays.items()}


def run_of(rows: Sequence[Sequence[Any]], known: Mapping[int, Code]) -> PastRun | None:
    """Return the run with these *rows* of QUERY, one for each device. None if it does not show a need.

    *known* has the codes of arrays.
    """
    _, _, ending, exit_code, command, interpreter, spec, array_id, *_ = rows[0][:_JOB]
    devices = [_on_device(*row[_JOB:]) for row in rows]
    ended_well = ending == "timed_out" or (ending == "exited" and exit_code == 0)
    is_cut = ending == "timed_out" and is_probe(spec)
    proved = proof_of(
        devices,
        ended_well=ended_well,
        out_of_memory=ending == "out_of_memory",
        is_cut=is_cut,
        note_kinds=_kinds_in(rows[0][_NOTES]),
    )
    if proved is None:
        return None
    proof, size = proved
    words = _words(command)
    code, environment = _code_and_environment(spec) if array_id is None else known.get(array_id, (None, None))
    return PastRun(
        proof=proof,
        bytes=size,
        kind=kind_of(devices[0]),
        words=words[args_start(words, interpreter) :],
        code=code,
        interpreter=interpreter,
        environment=environment,
        gpus=len(devices),
        models=tuple([each.name for each in devices if each.name is not None]),
        room_bytes=min([each.total_bytes for each in devices if each.total_bytes is not None], default=None),
        utilisation=utilisation_of(devices) if ended_well and not is_cut else None,
        lasted_s=rows[0][_DURATION] if ending == "exited" and ended_well else None,
    )


def _on_device(lease: int, peak: int | None, source: str, samples: int, kind: str | None, *device: Any) -> OnDevice:
    return OnDevice(lease, peak, _SOURCES[source], samples, None if kind is None else _KINDS.get(kind), *device)


def _kinds_in(notes: str | None) -> list[str]:
    """Return the kinds of the notes in the column ``notes``."""
    return [] if notes is None else [note["kind"] for note in json.loads(notes)]


def _words(command: str) -> tuple[str, ...]:
    """Return the words of a command line that ``shlex.join`` wrote."""
    if "'" not in command and '"' not in command:  # nearly all, and a hundred times as fast
        return tuple(command.split(" "))
    try:
        return tuple(shlex.split(command))
    except ValueError:
        return (command,)


def _code_and_environment(text: str) -> Code:
    """Return the code of the request *text*, None if it is not known, and its Python environment or its image.

    The text is searched, because parsing all of it would take as long as the rest together. The quotes of a text within
    it are escaped, so no argument can look like a field. The variables of the job are not in it.
    """
    snapshot, commit = _text_after('"snapshot":"', text), _text_after('"commit":"', text)
    code = code_of(snapshot, commit, dirty='"dirty":false' not in text)
    return code, _text_after('"environment":"', text) or _text_after('"container":"', text)


def is_probe(text: str) -> bool:
    """Return whether the request *text* is that of a probe."""
    return _text_after('"probe":"', text) is not None


def _text_after(field: str, text: str) -> str | None:
    _, found, rest = text.partition(field)
    return rest.partition('"')[0] if found else None
