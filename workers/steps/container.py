"""The container of a run: whether this host can start it, and what the shim gets to know of it."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from gpuqueue.model.container import Engine
from gpuqueue.model.device import DeviceKind
from gpuqueue.model.job_spec import JobSpec
from gpuqueue.model.run import RunDevice
from gpuqueue.queue.evidence import NO_EVIDENCE
from gpuqueue.settings.settings import Settings
from gpuqueue.system.environment import is_of_one_machine
from workers.measure.active_runs import LiveRun
from workers.shim.containers import ENGINES, PATH
from workers.steps.conclusion import NotStarted

#: How long Podman may take to start the process that holds the user namespace, in seconds.
HOLD_NAMESPACE_S = 20.0


def engine_of(setting: str) -> tuple[str, str | None]:
    """Return the container engine that the *setting* names, and its program on this host; None if it is missing."""
    name, _, path = setting.partition("=")
    return name, None if not name else shutil.which(path or ENGINES[name].program, path=PATH)


def container_of(
    spec: JobSpec, setting: str, devices: Sequence[RunDevice], env: Mapping[str, str]
) -> Mapping[str, Any] | None:
    """Return the container of a run with the variables *env* for the shim, None if the job runs in none.

    *setting* names the engine. Variables that hold paths or names of one machine stay outside: the image has its own.
    """
    if spec.container is None:
        return None
    engine, program = engine_of(setting)
    return {
        "engine": engine,
        "program": program,
        "image": spec.container,
        "binds": spec.binds,
        "devices": [device.uuid for device in devices if device.kind is DeviceKind.GPU],
        "outside": [name for name, value in env.items() if is_of_one_machine(name, value)],
    }


def check_container(run: LiveRun, settings: Settings) -> None:
    """Check that this host has a container engine, if *run* needs one.

    Raises:
        NotStarted: It has none.

    """
    if run.spec is None or run.spec.container is None:
        return
    name, program = engine_of(settings.container_engine)
    if not name:
        raise NotStarted("this host runs no containers (setting container_engine)", host_lacks=NO_EVIDENCE)
    if program is None:
        reason = f"the container engine {name} is not installed on this host (setting container_engine)"
        raise NotStarted(reason, host_lacks=NO_EVIDENCE)
    if name == Engine.PODMAN and settings.launcher_in_use is None and os.getuid() != 0:
        hold_namespace(program, run.spec.env)


def hold_namespace(program: str, env: Mapping[str, str]) -> None:
    """Have Podman start the process that holds the user namespace of this account, if it does not run.

    Else the first job starts it, and it ends with that job, while other jobs need it. A failure is that of the job.
    """
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        subprocess.run(
            [program, "unshare", "true"],
            env={**env},
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            timeout=HOLD_NAMESPACE_S,
            check=False,
        )
