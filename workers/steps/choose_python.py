"""The second step: resolves the name of a job's Python environment to its program on this host."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from gpuqueue.model.job_spec import JobSpec
from gpuqueue.model.python_environments import OF_ANOTHER_PYTHON
from gpuqueue.queue.evidence import NO_EVIDENCE
from workers.measure.active_runs import LiveRun
from workers.steps.conclusion import NotStarted
from workers.threads.timeout import in_time

#: How long the check for the program may take, in seconds: it may lie on a dead file server. Then the start decides.
LIMIT_S = 5.0


def choose_python(run: LiveRun, programs: Mapping[str, str]) -> LiveRun:
    """Return *run* with the program of its environment by *programs*, the Python programs of this host by name.

    Raises:
        NotStarted: This host has no such environment, or its program is missing.

    """
    if run.spec is None or run.spec.environment is None:
        return run
    name = run.spec.environment
    program = programs.get(name)
    if program is None:
        raise NotStarted(f"this host has no environment {name} (setting environments)", host_lacks=NO_EVIDENCE)
    if in_time(lambda: _is_missing(program), LIMIT_S):
        raise NotStarted(f"the environment {name} is missing: there is no {program}", host_lacks=NO_EVIDENCE)
    run.spec = with_python(run.spec, program)
    return run


def with_python(spec: JobSpec, program: str) -> JobSpec:
    """Return *spec* with the Python *program* for its script, and with its directory first on PATH.

    So a command such as torchrun, and what a script starts, belong to the same environment.
    """
    path = spec.env.get("PATH") or os.environ.get("PATH", os.defpath)
    env = {name: value for name, value in spec.env.items() if name not in OF_ANOTHER_PYTHON}
    env["PATH"] = f"{Path(program).parent}{os.pathsep}{path}"
    if spec.interpreter is None:
        return replace(spec, env=env)
    return replace(spec, env=env, argv=(program, *spec.argv[1:]), interpreter=program)


def _is_missing(program: str) -> bool:
    """Return whether *program* is certainly missing. The submitter may be able to read what the worker cannot."""
    try:
        os.stat(program)  # noqa: PTH116 - as the start does
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False
