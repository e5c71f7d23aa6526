"""Which variables a program reads once and never again: they must agree before a spare may become a job. Pure.

Those of the loader, of Python and of the C library are read before any line of the program; those of the numeric
libraries when they are imported. Whatever else is in the environment is read when it is wanted, so that a spare may be
given another value. Measured by setting each after the import and looking at what it did; and by noting what Python
and ``import torch`` ask for, which a test repeats.

Read by the worker, and in the spare itself, in whatever Python that is (3.8 and later): standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping

#: Names, and beginnings of names.
NAMES = frozenset(
    {
        "ATEN_CPU_CAPABILITY",
        "HOME",  # the user's own packages lie there
        "LANG",
        "LANGUAGE",
        "MATPLOTLIBRC",
        "MPLBACKEND",
        "MPI_LOCALNRANKS",  # MKL shares the processors among the processes of a host
        "MPLCONFIGDIR",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
        "SETUPTOOLS_USE_DISTUTILS",  # a .pth file reads it when Python starts
        "TMPDIR",
        "TZ",
        "VIRTUAL_ENV",
        "XDG_CACHE_HOME",
        "XDG_CONFIG_HOME",
    }
)
BEGINNINGS = (
    "ACCELERATE_",
    "ACC_DEVICE_",
    "ACC_PROFLIB",
    "BLIS_",
    "COMPILE_STROBELIGHT_",
    "COVERAGE_",
    "CUBLAS",
    "CUDA_",
    "CUDNN_",
    "DNNL_",
    "FX_",
    "GFORTRAN_",
    "GLIBC_TUNABLES",
    "GOMP_",
    "GOTO_",
    "HF_",
    "INTEL_",
    "I_MPI_",
    "KINETO_",
    "KMP_",
    "LC_",
    "LD_",
    "MALLOC_",
    "MKLDNN_",
    "MKL_",
    "NCCL_",
    "NPY_",
    "NUMBA_",
    "NUMEXPR_",
    "NUMPY_",
    "NVIDIA_",
    "NVPL_",
    "OMP_",
    "ONEDNN_",
    "OPENBLAS_",
    "OPENSSL_",
    "PYTHON",
    "PYTORCH_",
    "TORCH",
    "TQDM_",
    "TRANSFORMERS_",
    "TRITON_",
    "VECLIB_",
)
#: What torch reads twice: its allocator when it is loaded, all else when CUDA starts, which a spare never has. Another
#: allocator by then ends the process.
ALLOCATOR, BACKEND = frozenset({"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"}), "backend"
#: Of those, what is read when CUDA starts: each run has values of its own.
LIVE = ALLOCATOR | {"CUDA_DEVICE_ORDER", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "CUDA_VISIBLE_DEVICES"}
#: What each run has of its own and a spare must not know.
OWN = ("GPUQUEUE_",)


def latched(env: Mapping[str, str]) -> dict[str, str]:
    """Return the part of *env* that must be the same."""
    return {name: value for name, value in env.items() if is_latched(name)}


def is_latched(name: str) -> bool:
    """Return whether a variable of this name is read once."""
    return name not in LIVE and (name in NAMES or name.startswith(BEGINNINGS)) and not name.startswith(OWN)


def is_too_late(name: str) -> bool:
    """Return whether a script that sets a variable of this name may do so too late in a spare."""
    return is_latched(name) or name in ALLOCATOR


def chooses_allocator(env: Mapping[str, str]) -> str | None:
    """Return the variable by which *env* chooses the allocator of torch, None if it leaves that alone."""
    return next((name for name in sorted(ALLOCATOR) if BACKEND in env.get(name, "")), None)


def difference(ours: Mapping[str, str], theirs: Mapping[str, str]) -> str | None:
    """Return the first variable by which two latched environments differ, None if they agree."""
    return next((name for name in sorted({*ours, *theirs}) if ours.get(name) != theirs.get(name)), None)


def for_spare(env: Mapping[str, str]) -> dict[str, str]:
    """Return the environment that a spare is started in: that of a job, less what that job's run alone has."""
    return {name: value for name, value in env.items() if name not in LIVE and not name.startswith(OWN)}
