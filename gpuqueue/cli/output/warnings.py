"""Warnings at a submit that refuse nothing: of a missing program, and of variables that are no settings.

The program may exist on the job's host.
"""

from __future__ import annotations

from gpuqueue.console import print_message
from gpuqueue.model.job_spec import JobSpec
from gpuqueue.settings.sources import unknown_variables
from gpuqueue.system.command_line import missing_program


def warn_if_no_program(spec: JobSpec, name: str) -> None:
    """Warn if the program of a job with this *spec* and *name* cannot be started on this machine.

    A placeholder in its name is not checked, nor a job with a copy of its code, whose program may be in that copy, nor
    one with an environment, whose program the host knows.
    """
    if spec.snapshot is not None or spec.environment is not None or (spec.array is not None and "{" in spec.argv[0]):
        return
    missing = missing_program(spec.argv, cwd=spec.cwd, env=spec.env)
    if missing is not None:
        print_message("gpuqueue", f"{missing}: {name} waits, and starts only on a host that has the program")


def warn_of_unknown_variables() -> None:
    """Print one line for each variable ``GPUQUEUE_…`` that is no setting, such as a misspelled one."""
    for name, hint in unknown_variables().items():
        print_message("gpuqueue", f"warning: {name} is no setting and has no effect: {hint}")
