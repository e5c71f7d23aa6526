"""The request of a job, from the resources of a rule."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from snakemake_executor_plugin_gpuqueue.request import OPTIONS, SET_HERE, key_of, request_of

from gpuqueue import GpuQueueError, JobRequest


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"gpuqueue_mem": "6G"}, {"gpus": 1, "device": None, "mem": "6G"}),
        ({"gpu": 2, "gpu_model": "A100"}, {"gpus": 2, "device_type": "A100", "mem": None}),
        ({"gpuqueue_exclusive": True}, {"gpus": 1, "exclusive": True}),
        ({"gpuqueue_mem": "6G", "mem_mb": 1000}, {"mem": "6G", "cpu_mem": None}),
        ({"gpuqueue_mem": "6G", "gpuqueue_cpu_mem": "32G", "gpuqueue_cpus": 4}, {"cpu_mem": "32G", "cpus": 4}),
        ({"mem_mb": 1000, "runtime": 90}, {"device": "cpu", "mem": 10**9, "time_limit": 5400}),
        ({"gpu": 0, "gpuqueue_mem": "6G", "mem_mb": 1000}, {"device": "cpu", "mem": "6G"}),
        ({}, {"device": "cpu", "mem": None, "tags": ("snakemake",)}),
    ],
)
def test_the_resources_of_a_rule_become_options(given: dict[str, Any], expected: dict[str, Any]) -> None:
    """Without a GPU and its memory it runs on the CPU. The default memory of Snakemake limits no job on a GPU."""
    request = request_of("true", "train", given)

    assert expected == {name: getattr(request, name) for name in expected}


def test_options_about_the_command_are_not_taken() -> None:
    """A new option of submit is a resource at once."""
    assert {*JobRequest.__annotations__} - {"_"} == OPTIONS | SET_HERE
    with pytest.raises(GpuQueueError, match="gpuqueue_hold"):
        request_of("true", "train", {"gpuqueue_hold": True})


def test_the_key_is_that_of_the_directory_and_the_targets() -> None:
    """It fits into a dedupe key."""
    key = key_of(Path("/a"), ["train:lr=1"])

    assert key == key_of(Path("/a"), ["train:lr=1"])
    assert 3 == len({key, key_of(Path("/b"), ["train:lr=1"]), key_of(Path("/a"), ["train:lr=2"])})
    assert len(key) < 64
