"""The latched environment variables: a program reads each of them once. Pure.

A warm interpreter may become a job only if their latched variables are equal. The loader, Python and the C library read
theirs before the first line of the program. The numeric libraries read theirs at their import. All other variables are
read when they are needed, so a warm interpreter can still get another value. The list was found by setting each
variable after the import and observing the effect, and by recording what Python and ``import torch`` read. A test
repeats the recording.
"""

from __future__ import annotations

from collections.abc import Mapping

#: Names of latched variables. ``BEGINNINGS`` lists prefixes of further names.
NAMES = frozenset(
    (
        *("ATEN_CPU_CAPABILITY", "LANG", "LANGUAGE", "MATPLOTLIBRC", "MPLBACKEND", "MPLCONFIGDIR", "TMPDIR", "TZ"),
        *("VIRTUAL_ENV", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"),
        "HOME",  # the user's own packages are in it
        *("MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE"),  # MKL divides the processors among the processes of a host
        "SETUPTOOLS_USE_DISTUTILS",  # a .pth file reads it when Python starts
    )
)
BEGINNINGS = (
    *("ACCELERATE_", "ACC_DEVICE_", "ACC_PROFLIB", "BLIS_", "COMPILE_STROBELIGHT_", "COVERAGE_", "CUBLAS", "CUDA_"),
    *("CUDNN_", "DNNL_", "FX_", "GFORTRAN_", "GLIBC_TUNABLES", "GOMP_", "GOTO_", "HF_", "INTEL_", "I_MPI_", "KINETO_"),
    *("KMP_", "LC_", "LD_", "MALLOC_", "MKLDNN_", "MKL_", "NCCL_", "NPY_", "NUMBA_", "NUMEXPR_", "NUMPY_", "NVIDIA_"),
    *("NVPL_", "OMP_", "ONEDNN_", "OPENBLAS_", "OPENSSL_", "PYTHON", "PYTORCH_", "TORCH", "TQDM_", "TRANSFORMERS_"),
    *("TRITON_", "VECLIB_"),
)
#: Variables that torch reads twice. At its import it reads the ``backend`` entry, which chooses the allocator. When
#: CUDA starts, which happens only in the job, it reads all other entries. If ``backend`` then names another allocator,
#: torch ends the process.
ALLOCATOR, BACKEND = frozenset({"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"}), "backend"
#: Variables that are not latched although a prefix matches: they are read when CUDA starts, and differ for each run.
LIVE = ALLOCATOR | {
    *("CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"),
    *("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"),
}
#: Prefix of the variables that belong to one run. A warm interpreter must not see them.
OWN = ("GPUQUEUE_",)


def latched(env: Mapping[str, str]) -> dict[str, str]:
    """Return the latched variables of *env*."""
    return {name: value for name, value in env.items() if is_latched(name)}


def is_latched(name: str) -> bool:
    """Return whether the variable *name* is latched."""
    return name not in LIVE and (name in NAMES or name.startswith(BEGINNINGS)) and not name.startswith(OWN)


def chooses_allocator(env: Mapping[str, str]) -> str | None:
    """Return the variable of *env* that chooses torch's allocator, None if there is none."""
    return next((name for name in sorted(ALLOCATOR) if BACKEND in env.get(name, "")), None)


def difference(ours: Mapping[str, str], theirs: Mapping[str, str]) -> str | None:
    """Return the first variable that differs between two latched environments, None if they are equal."""
    return next((name for name in sorted({*ours, *theirs}) if ours.get(name) != theirs.get(name)), None)


def for_warm_interpreter(env: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for a warm interpreter: the job's *env* without the variables of that one run."""
    return {name: value for name, value in env.items() if name not in LIVE and not name.startswith(OWN)}
