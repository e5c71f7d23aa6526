"""Jobs, runs and explanations without the arguments of a job: for callers who may not see them. Pure.

Arguments are the command, its Python, the directory, the code and the values of a sweep. The reasons why a job could
not start name them too, so only reasons that certainly hold none of them stay.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from gpuqueue.model.run import EndingKind, Note, Run

if TYPE_CHECKING:
    from gpuqueue.model.job import Job
    from gpuqueue.model.job_spec import JobSpec
    from gpuqueue.queue.explanation import Explanation
    from gpuqueue.queue.lease import DeviceStatus

#: Shown in place of a text that the caller may not see.
HIDDEN = "(hidden)"
#: The directory of a spec must be absolute, so this stands for a hidden one.
_NO_DIRECTORY = "/"
#: The start of the names of variables that hold the values of a sweep.
_SWEPT = "GPUQUEUE_SWEEP_"
#: Endings whose detail may be an error of the system, which names a program or a path.
_WITH_PATHS = frozenset({EndingKind.REFUSED, EndingKind.LOST})
#: Reasons of the scripts and of the worker that hold nothing of the user's.
_GENERIC = re.compile(
    r"dependency [0-9_]+"
    r"|the store lost its data, and how far it had come cannot be read"
    r"|no heartbeat renewed the lease in time"
    r"|its host was declared lost(?: by [\w.@-]+)?"
    r"|its worker vanished between the claim and the start"
    r"|its run directory is damaged"
    r"|it had no shim any more, [0-9]+ processes of it were ended"
    r"|(?:its shim vanished|its run directory was deleted)(?:, [0-9]+ processes of it were ended)?"
)


def without_arguments(job: Job) -> Job:
    """Return *job* without its arguments. The number of an array's members stays."""
    return replace(job, spec=_spec(job.spec), because=job.because and _reason(job.because))


def run_without_arguments(run: Run) -> Run:
    """Return *run* without what its ending says about the arguments of its job."""
    ending = run.ending
    if ending is None or ending.kind not in _WITH_PATHS:
        return run
    return replace(run, ending=replace(ending, detail=ending.detail and _reason(ending.detail)))


def note_without_arguments(note: Note) -> Note:
    """Return *note* without its text, which can say why a host could not start the job."""
    return replace(note, text=HIDDEN)


def explanation_without_arguments(found: Explanation) -> Explanation:
    """Return *found* without the reasons why hosts could not start the job."""
    devices = tuple(replace(each, cannot_start=each.cannot_start and HIDDEN) for each in found.devices)
    return replace(found, devices=devices)


def device_without_arguments(status: DeviceStatus) -> DeviceStatus:
    """Return *status* without the reason why its host could not start the last job that it refused."""
    return replace(status, refusals=status.refusals and replace(status.refusals, why=HIDDEN))


def _spec(spec: JobSpec) -> JobSpec:
    return replace(
        spec,
        argv=(HIDDEN,),
        cwd=_NO_DIRECTORY,
        env=_unswept(spec.env),
        script=None,
        interpreter=None,
        environment=None,
        git=None,
        snapshot=None,
        keep=(),
        notifications=(),
        waits=replace(spec.waits, dedupe=None),
        array=spec.array and replace(spec.array, axes=()),
    )


def _unswept(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if not name.startswith(_SWEPT)}


def _reason(text: str) -> str:
    return text if _GENERIC.fullmatch(text) else HIDDEN
