"""The variables of Slurm that a job has whose script is one for ``sbatch``. Standard library only.

The worker sets them, and the launcher of a host whose jobs are signed makes sure that it sets nothing else. The job
asks for them by the variable :data:`MARK`, in which it has those that its ``#SBATCH`` lines decide.
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
#: How often the job began before.
RESTARTS = "SLURM_RESTART_COUNT"
#: ``srun`` as a function that bash passes on: it starts the program, once.
SRUN = "BASH_FUNC_srun%%"
_SRUN = r"""() {
  local option value
  while [[ ${1-} == -* ]]; do
    option=$1 value=
    shift
    case $option in
      --) break ;;
      --*=*) value=${option#*=} option=${option%%=*} ;;
      --unbuffered|--label|--exclusive|--overlap|--pty|--exact|--overcommit|--quiet|--verbose) ;;
      --kill-on-bad-exit|-[uloQvKE]) ;;
      -[A-Za-z]?*) value=${option:2} option=${option:0:2} ;;
      *) value=${1-}; [[ $# -eq 0 ]] || shift ;;
    esac
    case $option in
      -n|-N|--ntasks|--nodes|--ntasks-per-node)
        if [[ $value != 1 && $value != 1-1 ]]; then
          echo "srun: $option $value: gpuqueue starts a program once: torchrun starts a process for each GPU" >&2
          return 1
        fi ;;
    esac
  done
  command "$@"
}"""
#: Variables that the lines of a script decide.
OF_LINES = re.compile(r"SLURM_[A-Z_]{1,40}")


def names(env: Mapping[str, str]) -> set[str]:
    """Return the variables of Slurm that a job with the environment *env* may have, with its MARK."""
    return {*slurm_variables(env, directory="", host=""), *SAME, RESTARTS}


def slurm_variables(env: Mapping[str, str], *, directory: str, host: str) -> dict[str, str]:
    """Return the variables of Slurm for a run with the environment *env* in *directory* on *host*; none without a MARK.

    A variable of the lines of the script does not replace one of the run.
    """
    if MARK not in env:
        return {}
    try:
        lines = json.loads(env[MARK])
    except (ValueError, RecursionError):
        lines = {}
    items = lines.items() if isinstance(lines, dict) else ()
    of_lines = {name: value for name, value in items if isinstance(value, str) and OF_LINES.fullmatch(name)}
    attempt = env.get("GPUQUEUE_ATTEMPT", "")
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
        DIRECTORY: directory,
        **dict.fromkeys(HOSTS, host),
        SRUN: _SRUN,
    }
