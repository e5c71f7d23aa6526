"""Tests of the variables that a program reads once: which they are, and how they prevent a warm start."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from factories import make_spec

from gpuqueue.errors import BadRequest
from gpuqueue.model.job_spec import Account
from gpuqueue.model.terminal_size import Window
from gpuqueue.settings.settings import Settings
from workers.warm_pool import Image, first_difference, for_warm_interpreter, image_of, latched

ENV = {"PATH": "/usr/bin", "LANG": "C.UTF-8", "HOME": "/home/ada"}


@pytest.mark.parametrize(
    "name",
    [
        *("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "PYTHONHASHSEED", "PYTHONPATH", "LD_PRELOAD"),
        *("TORCH_LOGS", "TORCHINDUCTOR_MAX_AUTOTUNE", "CUDA_HOME", "CUDA_MODULE_LOADING", "MALLOC_ARENA_MAX", "LC_ALL"),
        *("TMPDIR", "TZ", "HF_HOME", "PYTORCH_NVML_BASED_CUDA_CHECK", "MPLBACKEND", "VIRTUAL_ENV", "HOME"),
        *("XDG_CONFIG_HOME", "XDG_CACHE_HOME", "MATPLOTLIBRC"),
        *("MKLDNN_MAX_CPU_ISA", "ONEDNN_MAX_CPU_ISA", "COVERAGE_PROCESS_START", "SETUPTOOLS_USE_DISTUTILS"),
        *("NUMPY_MADVISE_HUGEPAGE", "NVPL_BLAS_DEBUG_CPU_TYPE", "KINETO_USE_DAEMON", "TQDM_DISABLE", "OPENSSL_CONF"),
    ],
)
def test_what_is_read_once_must_agree(name: str) -> None:
    """A variable that is read once must be equal.

    If it was set, removed or changed, a cold start sees the new value and a warm interpreter does not.
    """
    ours = {key: value for key, value in ENV.items() if key != name}

    assert name == first_difference(latched({**ours, name: "1"}), latched(ours))
    assert name == first_difference(latched(ours), latched({**ours, name: "1"}))
    assert name == first_difference(latched({**ours, name: "1"}), latched({**ours, name: "2"}))


@pytest.mark.parametrize(
    "name",
    [
        *(
            "CUDA_VISIBLE_DEVICES",
            "CUDA_DEVICE_ORDER",
            "PYTORCH_ALLOC_CONF",
            "PYTORCH_CUDA_ALLOC_CONF",
            "GPUQUEUE_TOKEN",
            "CUDA_MPS_PIPE_DIRECTORY",
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
        ),
        *("GPUQUEUE_SWEEP_LR", "WANDB_RUN_ID", "SSH_CONNECTION", "PWD", "XLA_PYTHON_CLIENT_MEM_FRACTION"),
    ],
)
def test_what_is_read_late_may_differ(name: str) -> None:
    """A variable that is read late may differ.

    Each run has its own devices, token and sweep values, so a warm interpreter with fixed ones would fit no run.
    """
    assert first_difference(latched({**ENV, name: "1"}), latched({**ENV, name: "2"})) is None


def test_a_warm_interpreter_does_not_know_the_run_of_its_image() -> None:
    """A warm interpreter has neither the devices nor the token of the run that its image is taken from.

    They identify the processes of that run.
    """
    env = {**ENV, "GPUQUEUE_TOKEN": "1.a", "GPUQUEUE_RUN_DIR": "/x", "CUDA_VISIBLE_DEVICES": "GPU-1", "LR": "3"}

    assert {**ENV, "LR": "3"} == for_warm_interpreter(env)


def image(env: dict[str, str] = ENV, **changes: object) -> Image:
    """Return the image of a job."""
    found = image_of(replace(make_spec(argv=("/usr/bin/python3", "train.py"), cwd="/work"), **changes), env)  # type: ignore[arg-type]
    assert isinstance(found, Image), found
    return found


def test_what_must_be_equal(tmp_path: Path) -> None:
    """A difference that prevents a warm start is named."""
    ours = image()
    other = tmp_path / "python3"
    other.symlink_to("/usr/bin/python3")

    assert image(argv=("/usr/bin/python3", "other.py", "--lr", "2"), cwd="/elsewhere").unlike(ours) is None
    assert "the interpreter differs" == image(argv=(str(other), "train.py")).unlike(ours)
    assert "the account differs" == image(account=Account(name="eve", uid=1, host="h")).unlike(ours)
    assert "PYTHONPATH differs" == image({**ENV, "PYTHONPATH": "/lib"}).unlike(ours)
    assert "the interpreter was changed" == replace(ours, file=(0, 0, 0)).unlike(ours)
    relative = {**ENV, "PYTHONPATH": "lib:/opt/lib"}
    assert "PYTHONPATH is relative, and the working directory differs" == image(relative, cwd="/elsewhere").unlike(
        image(relative)
    )


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"argv": ("/usr/bin/python3", "-m", "train")}, "its command is not python and a script"),
        ({"argv": ("/usr/bin/python3", "-u", "train.py")}, "its command is not python and a script"),
        ({"argv": ("/usr/bin/python3",)}, "its command is not python and a script"),
        ({"argv": ("torchrun", "train.py")}, "its command is not python and a script"),
        ({"argv": ("sh", "-c", "python train.py")}, "its command is not python and a script"),
        ({"argv": ("/no/such/python3", "train.py")}, "there is no such interpreter"),
        ({"argv": ("python0.1", "train.py")}, "there is no such interpreter"),
        ({"argv": ("/usr/bin/python3", "train.py"), "pty": Window(columns=80, rows=24)}, "it has a terminal"),
    ],
)
def test_what_cannot_start_warm(changes: dict[str, object], why: str) -> None:
    """A job that cannot start warm starts cold, and the reason is reported."""
    assert why == image_of(replace(make_spec(), **changes), ENV)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"])
def test_a_job_with_another_allocator_starts_cold(name: str) -> None:
    """A variable that selects another allocator prevents a warm start.

    Torch selects the allocator at its import, and ends a process that names another one when CUDA starts. Regression: a
    warm job failed for this reason. The other values in that variable are read when CUDA starts.
    """
    mixed = {**ENV, name: "max_split_size_mb:64, backend:cudaMallocAsync"}

    found = image_of(make_spec(argv=("/usr/bin/python3", "train.py")), mixed)

    assert f"{name} chooses an allocator, which torch reads only once" == found
    assert image({**ENV, name: "max_split_size_mb:64"}).unlike(image()) is None


def test_an_interpreter_is_searched_in_the_path_of_the_job_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The interpreter is searched in the job's PATH only.

    Regression: a cold job without a PATH uses the system's, but a warm interpreter was another Python from the worker's
    PATH.
    """
    (tmp_path / "python3-of-the-worker").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))

    found = image_of(make_spec(argv=("python3-of-the-worker", "train.py")), {"HOME": "/home/ada"})

    assert "there is no such interpreter" == found


def test_the_settings_of_a_site() -> None:
    """The settings give the number of warm interpreters, their imports and their idle time."""
    found = Settings.load({"GPUQUEUE_WARM_INTERPRETERS": "0", "GPUQUEUE_WARM_MODULES": "torch, my.models"})

    assert (0, "torch,my.models", 600.0) == (found.warm_interpreters, found.warm_modules, found.warm_idle_s)
    for name, raw in (
        ("INTERPRETERS", "-1"),
        ("INTERPRETERS", "many"),
        ("MODULES", "torch;x"),
        ("MODULES", ""),
        ("IDLE", "x"),
    ):
        with pytest.raises(BadRequest, match="warm_"):
            Settings.load({f"GPUQUEUE_WARM_{name}": raw})
