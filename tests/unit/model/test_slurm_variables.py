"""Tests of the variables of Slurm in a job whose script is one for ``sbatch``."""

from __future__ import annotations

import json

import pytest

from gpuqueue.model.slurm_variables import MARK, slurm_variables

RUN = {"GPUQUEUE_JOB_ID": "7", "GPUQUEUE_ATTEMPT": "1", MARK: "{}"}


def variables(**env: str) -> dict[str, str]:
    return slurm_variables({**RUN, **env}, directory="/work", host="nodeA")


def test_a_job_that_does_not_ask_for_them_has_none() -> None:
    assert slurm_variables({"GPUQUEUE_JOB_ID": "7"}, directory="/work", host="nodeA") == {}


def test_they_are_those_of_one_task_on_one_host() -> None:
    found = variables()

    assert (found["SLURM_JOB_ID"], found["SLURM_SUBMIT_DIR"], found["SLURM_JOB_NODELIST"]) == ("7", "/work", "nodeA")
    assert (found["SLURM_NTASKS"], found["SLURM_PROCID"]) == ("1", "0")
    assert not {"SLURM_ARRAY_TASK_ID", "SLURM_RESTART_COUNT"} & found.keys()


def test_a_member_has_its_index_and_a_second_run_its_count() -> None:
    found = variables(GPUQUEUE_ARRAY_INDEX="3", GPUQUEUE_ARRAY_JOB_ID="4", GPUQUEUE_ATTEMPT="2")

    assert (found["SLURM_ARRAY_TASK_ID"], found["SLURM_ARRAY_JOB_ID"], found["SLURM_RESTART_COUNT"]) == ("3", "4", "1")


def test_the_lines_of_the_script_add_theirs_and_replace_none_of_the_run() -> None:
    lines = {"SLURM_CPUS_PER_TASK": "4", "SLURM_JOB_ID": "99", "LD_PRELOAD": "/evil.so", "SLURM_X": 3}

    found = variables(**{MARK: json.dumps(lines)})

    assert (found["SLURM_CPUS_PER_TASK"], found["SLURM_JOB_ID"]) == ("4", "7")
    assert not {"LD_PRELOAD", "SLURM_X"} & found.keys()


def test_only_the_lines_know_the_directory_of_the_submit() -> None:
    """With ``--chdir`` the job runs elsewhere."""
    assert variables(**{MARK: '{"SLURM_SUBMIT_DIR": "/home/ann"}'})["SLURM_SUBMIT_DIR"] == "/home/ann"


@pytest.mark.parametrize(("devices", "count"), [("", None), ("GPU-a", "1"), ("0,1,2", "3")])
def test_the_number_of_gpus_is_that_of_the_devices(devices: str, count: str | None) -> None:
    assert variables(CUDA_VISIBLE_DEVICES=devices).get("SLURM_GPUS_ON_NODE") == count


@pytest.mark.parametrize("mark", ["", "[", "[]", "3", "null", "[" * 100_000])
def test_a_mark_that_cannot_be_read_decides_nothing(mark: str) -> None:
    assert variables(**{MARK: mark})["SLURM_JOB_ID"] == "7"
