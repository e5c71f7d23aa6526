"""The parameters of an agent's tools follow from the Python API: types, texts and defaults."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import datetime

from gpuqueue.cli.agents.limits import AgentLimits
from gpuqueue.cli.agents.parameters import parameters_of
from gpuqueue.cli.agents.tools import tools
from gpuqueue.model.job_request import JobRequest


def test_types_texts_and_defaults_come_from_the_function() -> None:
    """A value of a class has no form in JSON, and is left out beside its other forms."""

    def call(
        self: object,
        script: str,
        when: str | datetime | None = None,
        *,
        steps: int = 3,
        env: Mapping[str, str] | Sequence[str] = (),
        own: os.PathLike[str] | None = None,
    ) -> None: ...

    call.__doc__ = """Do it.

    Args:
        script: The ``path``
            of it.
        steps: How many.

    """

    assert {
        "type": "object",
        "properties": {
            "script": {"type": "string", "description": "The `path` of it."},
            "when": {"type": "string"},
            "steps": {"type": "integer", "description": "How many.", "default": 3, "maximum": 9},
            "env": {
                "anyOf": [
                    {"type": "object", "additionalProperties": {"type": "string"}},
                    {"type": "array", "items": {"type": "string"}},
                ]
            },
        },
        "required": ["script"],
        "additionalProperties": False,
    } == parameters_of(call, steps={"maximum": 9})


def test_an_agent_can_give_every_value_of_a_request_but_those_for_people() -> None:
    """A new option of submit is a parameter of the tool at once."""
    schema = tools(AgentLimits(tag="agent"))["submit"].parameters

    missing = {*JobRequest.__annotations__} - {*schema["properties"]}
    assert {"_", "anyway", "given_in", "pty", "snapshot_allow"} == missing
    assert ["command"] == schema["required"]
