"""The variables that a submitter adds to those of the shell."""

from __future__ import annotations

from typing import Any

import pytest

from gpuqueue.errors import BadRequest
from gpuqueue.system.environment import LEFT_OUT, OF_DEVICES, given_variables


@pytest.mark.parametrize(
    ("given", "instead"),
    [
        ("CUDA_VISIBLE_DEVICES=1", "use --device 1 instead"),
        ("CUDA_VISIBLE_DEVICES=0,1", "use --device 0,1 --gpus 2 instead"),
        ("CUDA_VISIBLE_DEVICES=GPU-8f1c", "use --device GPU-8f1c instead"),
        ("CUDA_VISIBLE_DEVICES=", "use --device cpu instead"),
        ("CUDA_VISIBLE_DEVICES=-1", "use --device cpu instead"),
        ("NVIDIA_VISIBLE_DEVICES=all", "use --device INDEX instead"),
        ("NVIDIA_VISIBLE_DEVICES=void", "use --device cpu instead"),
        ("CUDA_DEVICE_ORDER=FASTEST_FIRST", "leave it out"),
    ],
)
def test_nobody_gives_the_variables_of_devices(given: str, instead: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They were taken and dropped, and the job ran on another device than its submitter thought."""
    name, _, value = given.partition("=")
    for typed in ([given], ["A=1", given], {name: value}):
        with pytest.raises(BadRequest, match=f"^--env {name}=.*{instead}$"):
            given_variables(typed)
    monkeypatch.setenv(name, value)
    with pytest.raises(BadRequest, match=instead):
        given_variables([given])


@pytest.mark.parametrize("env", [None, {}, {"A": "1"}, ["A=1", "B=2"], [], ()])
def test_other_variables_are_given(env: Any) -> None:
    """A mapping, texts or nothing."""
    variables = given_variables(env)

    assert set() == {*OF_DEVICES} - LEFT_OUT
    assert {name: value for name, value in (("A", "1"), ("B", "2")) if name in variables} == variables


def test_a_program_may_pass_its_whole_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that submits jobs does so, and what it sees itself is not for them."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-1")

    assert {"A": "1"} == given_variables({"CUDA_VISIBLE_DEVICES": "GPU-1", "A": "1"})
    with pytest.raises(BadRequest, match="use --device 2 instead"):
        given_variables({"CUDA_VISIBLE_DEVICES": "2", "A": "1"})
