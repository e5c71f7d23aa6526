"""What the queue adds to the environment of a signed job, and a launcher permits beside it. Standard library only.

The worker adds it (``environment.py``): the hook that runs inside the job's own Python, numbers of threads,
and, where jobs run as their submitters, a place without a daemon of NVIDIA's MPS.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

#: The directory of the hook that runs inside the job's own Python.
INSIDE = Path(__file__).parent.parent / "inside" / "site"
#: The directory of the programs that a script for sbatch starts, and the file by which bash keeps it on its PATH.
SLURM = INSIDE.parent / "slurm"
SLURM_BIN, BASH_ENV = SLURM / "bin", "BASH_ENV"
#: The variables by which OpenMP and the libraries below numpy and torch learn how many threads to start.
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
#: The largest number of them, and what such a number is.
MAX_THREADS = 9999
THREAD_COUNT = re.compile("[1-9][0-9]{0,3}")
#: The variable that names the directory of the pipes of NVIDIA's MPS daemon.
MPS_PIPES = "CUDA_MPS_PIPE_DIRECTORY"
#: A directory that is not there, and that only root could make. Every other account could start a daemon in its own.
NO_PIPES = "/nonexistent"


def with_hook(pythonpath: str) -> str:
    """Return *pythonpath*, which may be empty, with the hook's directory first.

    An empty PYTHONPATH adds no empty entry, because Python reads that as the current directory.
    """
    entries = [entry for entry in pythonpath.split(os.pathsep) if entry != str(INSIDE)]
    return os.pathsep.join([str(INSIDE), *entries]) if any(entries) else str(INSIDE)


def with_srun(env: Mapping[str, str], path: str) -> dict[str, str]:
    """Return the PATH of a job with the environment *env* whose script is one for sbatch, and what keeps it.

    *path* is its PATH else. ``srun`` comes first: Slurm's own, if the host has one, would take the id of the job for
    one of Slurm. The submitter's BASH_ENV stays.
    """
    entries = [entry for entry in path.split(os.pathsep) if entry != str(SLURM_BIN)]
    keeps = {} if env.get(BASH_ENV) else {BASH_ENV: str(SLURM / "bash_env")}
    return {"PATH": os.pathsep.join([str(SLURM_BIN), *entries]), **keeps}
