"""Tests of the environment variables that cap a job's memory in each framework."""

from __future__ import annotations

import pytest

from gpuqueue.model.framework_memory import allocator_bytes
from gpuqueue.text.units import GIB, MIB
from workers.run.environment import cap_environment

TOTAL = 24 * GIB
#: (6 GiB - 600 MiB) / 24 GiB
SHARE = "0.225586"


def test_each_framework_gets_its_own_variable() -> None:
    """Each framework gets its own variable.

    Torch's variable is missing, because the version is unknown. The hook caps any version.
    """
    assert {
        "GPUQUEUE_TORCH_FRACTION": SHARE,
        "XLA_PYTHON_CLIENT_MEM_FRACTION": SHARE,
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",
        "CUPY_GPU_MEMORY_LIMIT": str(6 * GIB - 600 * MIB),
    } == cap_environment(6 * GIB, TOTAL, {})


def test_no_cap_is_nothing_at_all() -> None:
    """Without caps no variable is added to the submitter's environment."""
    assert {} == cap_environment(6 * GIB, TOTAL, {}, on=False, torch=(2, 13), mps=True)


@pytest.mark.parametrize(
    ("torch", "reported"), [(None, False), ((1, 13), False), ((2, 9), False), ((2, 10), True), ((2, 13), True)]
)
def test_the_variable_is_only_for_a_torch_that_knows_it(torch: tuple[int, int] | None, reported: bool) -> None:  # noqa: FBT001
    """Torch's variable is set only for a version that knows it. An older torch fails because of it."""
    caps = cap_environment(6 * GIB, TOTAL, {"PYTORCH_CUDA_ALLOC_CONF": ""}, torch=torch)

    assert reported is ("PYTORCH_ALLOC_CONF" in caps)
    assert SHARE == caps["GPUQUEUE_TORCH_FRACTION"]


OURS = f"per_process_memory_fraction:{SHARE}"


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({}, {"PYTORCH_ALLOC_CONF": OURS}),
        ({"PYTORCH_ALLOC_CONF": "a:1"}, {"PYTORCH_ALLOC_CONF": f"a:1,{OURS}"}),
        ({"PYTORCH_CUDA_ALLOC_CONF": "a:1,"}, {"PYTORCH_CUDA_ALLOC_CONF": f"a:1,{OURS}"}),
        (
            {"PYTORCH_ALLOC_CONF": "a:1", "PYTORCH_CUDA_ALLOC_CONF": "b:2"},
            {"PYTORCH_ALLOC_CONF": f"a:1,{OURS}", "PYTORCH_CUDA_ALLOC_CONF": f"b:2,{OURS}"},
        ),
        ({"PYTORCH_ALLOC_CONF": "per_process_memory_fraction:0.9"}, {}),
    ],
)
def test_the_submitters_own_allocator_settings_are_kept(env: dict[str, str], expected: dict[str, str]) -> None:
    """The submitter's allocator settings are kept, and the cap is appended in each variable that torch may read.

    A fraction of the submitter is left unchanged.
    """
    caps = cap_environment(6 * GIB, TOTAL, env, torch=(2, 10))

    assert expected == {name: value for name, value in caps.items() if name.startswith("PYTORCH")}
    assert bool(expected) is ("GPUQUEUE_TORCH_FRACTION" in caps)


@pytest.mark.parametrize(
    "name",
    [
        "XLA_PYTHON_CLIENT_MEM_FRACTION",
        "TF_FORCE_GPU_ALLOW_GROWTH",
        "CUPY_GPU_MEMORY_LIMIT",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
        "GPUQUEUE_TORCH_FRACTION",
    ],
)
def test_what_the_submitter_set_is_never_overridden(name: str) -> None:
    """A variable that the submitter set is never overridden."""
    assert name in cap_environment(6 * GIB, TOTAL, {}, mps=True)
    assert name not in cap_environment(6 * GIB, TOTAL, {name: "theirs"}, mps=True)


def test_jax_gets_one_variable() -> None:
    """JAX gets one variable only, because it refuses its old and its new name together."""
    assert "XLA_PYTHON_CLIENT_MEM_FRACTION" not in cap_environment(6 * GIB, TOTAL, {"XLA_CLIENT_MEM_FRACTION": ".5"})


def test_mps_gets_the_limit_of_each_device() -> None:
    """The MPS limit is the whole requested memory for each device. The driver's limit includes CUDA's own memory."""
    caps = cap_environment(6 * GIB, TOTAL, {}, devices=2, mps=True)

    assert "0=6144M,1=6144M" == caps["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"]


@pytest.mark.parametrize(
    ("mem", "left"), [(MIB, MIB // 2), (600 * MIB, 300 * MIB), (1200 * MIB, 600 * MIB), (2 * GIB, 2 * GIB - 600 * MIB)]
)
def test_a_small_job_keeps_at_least_half(mem: int, left: int) -> None:
    """A small job keeps at least half its memory. CUDA's share would leave it nothing."""
    assert left == allocator_bytes(mem)


def test_a_share_is_never_above_one_and_unknown_without_a_total() -> None:
    """The fraction is at most 1. Without a known total only the limit in bytes is set."""
    assert "1.000000" == cap_environment(99 * GIB, TOTAL, {})["XLA_PYTHON_CLIENT_MEM_FRACTION"]
    assert {"TF_FORCE_GPU_ALLOW_GROWTH", "CUPY_GPU_MEMORY_LIMIT"} == set(cap_environment(GIB, None, {}, torch=(2, 13)))
