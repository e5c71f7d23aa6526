"""The variables of Slurm that a job has whose script is one for ``sbatch``. Standard library only.

The worker sets them, and the launcher of a host whose jobs are signed makes sure that it sets nothing else. The job
asks for them by the variable :data:`MARK`, in which it has those that its ``#SBATCH`` lines decide. The program
``srun`` on its PATH is that of ``workers/inside/slurm``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

#: The variable of a job from a script for sbatch: a JSON object of variables and their values.
MARK = "GPUQUEUE_SBATCH"
#: Variables of Slurm -> those with the same value here.
SAME: Mapping[str, str] = {
    "SLURM_ARRAY_TASK_ID": "GPUQUEUE_ARRAY_INDEX",
    "SLURM_ARRAY_JOB_ID": "GPUQUEUE_ARRAY_JOB_ID",
    "SLURM_ARRAY_TASK_COUNT": "GPUQUEUE_ARRAY_COUNT",
    "SLURM_JOB_ID": "GPUQUEUE_JOB_ID",
    "SLURM_JOBID": "GPUQUEUE_JOB_ID",
}
#: What is so in each job: one process on one host.
ALWAYS: Mapping[str, str] = {
    **dict.fromkeys(
        ("SLURM_NTASKS", "SLURM_NPROCS", "SLURM_NNODES", "SLURM_JOB_NUM_NODES", "SLURM_TASKS_PER_NODE"), "1"
    ),
    **dict.fromkeys(("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID"), "0"),
}
#: The directory of the job, and its host.
DIRECTORY, HOSTS = "SLURM_SUBMIT_DIR", ("SLURM_JOB_NODELIST", "SLURM_NODELIST", "SLURMD_NODENAME")
#: How often the job began before, and the number of its GPUs.
RESTARTS, GPUS = "SLURM_RESTART_COUNT", "SLURM_GPUS_ON_NODE"
#: Variables that the lines of a script decide.
OF_LINES = re.compile(r"SLURM_[A-Z_]{1,40}")


def names(env: Mapping[str, str]) -> set[str]:
    """Return the variables of Slurm that a job with the environment *env* may have, with its MARK."""
    return {*slurm_variables(env, directory="", host=""), *SAME, RESTARTS, GPUS}


def slurm_variables(env: Mapping[str, str], *, directory: str, host: str) -> dict[str, str]:
    """Return the variables of Slurm for a run with the environment *env* in *directory* on *host*; none without a MARK.

    A variable of the lines of the script replaces none of the run but the directory: with ``--chdir`` of sbatch the job
    does not run in that of its submit.
    """
    if MARK not in env:
        return {}
    try:
        lines = json.loads(env[MARK])
    except (ValueError, RecursionError):
        lines = {}
    items = lines.items() if isinstance(lines, dict) else ()
    of_lines = {name: value for name, value in items if isinstance(value, str) and OF_LINES.fullmatch(name)}
    attempt, devices = env.get("GPUQUEUE_ATTEMPT", ""), env.get("CUDA_VISIBLE_DEVICES", "")
    again = (
        {RESTARTS: str(int(attempt[:9]) - 1)}
        if attempt.isascii() and attempt.isdigit() and int(attempt[:9]) > 1
        else {}
    )
    return {
        **of_lines,
        **ALWAYS,
        **{name: env[ours] for name, ours in SAME.items() if ours in env},
        **again,
        **({GPUS: str(devices.count(",") + 1)} if devices else {}),
        DIRECTORY: of_lines.get(DIRECTORY, directory),
        **dict.fromkeys(HOSTS, host),
    }
