"""Prepares the run of a whole job: the work for its follower, and the follower's command and environment."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from gpuqueue.engines.slurm import Slurm, SlurmAccess
from gpuqueue.engines.whole_job import WholeJob, WholeKey
from gpuqueue.errors import Refused
from gpuqueue.model.burst import PilotSettings
from gpuqueue.model.device import Device
from gpuqueue.model.job_spec import JobSpec
from gpuqueue.model.whole_jobs import nodes_of
from gpuqueue.settings.settings import Settings
from workers.run.environment import TOKEN, of_whole_job
from workers.whole.work import Work

#: What the follower needs of this process's environment, for the commands of the engine. That of the job is in its
#: script.
_KEPT = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "SLURM_CONF", "SSH_AUTH_SOCK", "KRB5CCNAME", "TMPDIR")


def check_host(settings: Settings, device: Device) -> None:
    """Check that this host may hand jobs to an engine, if *device* is one.

    Raises:
        Refused: jobs run as their submitters here, and an engine would run them as the workers' account.

    """
    if device.kind.is_engine and settings.launcher_in_use is not None:
        raise Refused(
            f"{device.name} cannot be served where jobs run as their submitters (run_as = submitter): it would run all "
            "jobs as the account of the workers"
        )


def engine_of(settings: Settings) -> Slurm:
    """Return Slurm as the table ``[burst.slurm]`` of the settings says how to reach it."""
    return Slurm(_access(settings))


def site_of(settings: Settings) -> str:
    """Return what distinguishes the jobs of this site at the engine from those of another site of the same account."""
    return WholeKey.of(str(settings.runs_dir), 0, 0).site


def work_of(settings: Settings, spec: JobSpec, run_dir: Path, *, job_id: int, token: str, losses: int) -> Work:
    """Return the work for a run of *spec*, which has the directory in which the job runs.

    *losses* is how often the job was lost. A run after a loss has the key of the lost one. A job that must not run
    twice has one key.
    """
    attempt = int(token.partition(".")[0])
    key = WholeKey.of(str(settings.runs_dir), job_id, max(1, attempt - losses) if spec.requeue else 1)
    warning = spec.signal
    return Work(
        key=str(key),
        others=tuple(map(str, key.others(attempt))),
        access=_access(settings),
        job=WholeJob(
            argv=spec.argv,
            directory=spec.cwd,
            gpus=spec.gpus,
            nodes=nodes_of(spec),
            output=str(run_dir / f"{key}.out"),
            error=str(run_dir / f"{key}.err") if spec.separate_stderr else None,
            exit_file=str(run_dir / f"{key}.exit"),
            duration_s=spec.time_limit_s,
            cpus=spec.cpus,
            cpu_mem_bytes=spec.cpu_mem_bytes,
            signal=None if warning is None else (warning.name.removeprefix("SIG"), warning.before_s),
            umask=spec.umask,
            requeue=spec.requeue,
            env=of_whole_job(spec, run_dir, job_id=job_id, attempt=attempt),
        ),
    )


def command_of(run_dir: Path) -> tuple[str, ...]:
    """Return the command of the follower. It is isolated: a file in the job's directory must not hide a module."""
    return (sys.executable, "-I", "-m", "workers.whole.follower", str(run_dir))


def environment_of(run_dir: Path, token: str) -> dict[str, str]:
    """Return the environment of the follower."""
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    return {**kept, TOKEN: token, "GPUQUEUE_RUN_DIR": str(run_dir)}


def _access(settings: Settings) -> SlurmAccess:
    found = settings.burst.get("slurm", PilotSettings())
    return SlurmAccess(wrapper=found.wrapper, options=found.options)
