"""The argument ID of the commands for one job."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from gpuqueue.cli.completion.candidates import live_ids
from gpuqueue.errors import BadRequest
from gpuqueue.model.job_ref import meant, one_job

F = TypeVar("F", bound=Callable[..., Any])


class JobNameType(click.ParamType):  # type: ignore[type-arg]  # generic only in the newest click
    """The name of a job, ``17``, or of a member, ``17_2``; with *several* also ``17_5-9`` and ``12-19``."""

    name = "ID"

    def __init__(self, *, several: bool = False) -> None:
        self._parse = meant if several else one_job

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the normalized name; a malformed one is a usage error."""
        try:
            return str(self._parse(str(value)))
        except BadRequest as error:
            self.fail(str(error), param, ctx)


def one_job_argument(*states: str) -> Callable[[F], F]:
    """Return the argument for one job; completion offers live jobs in *states*, or all live jobs."""
    return click.argument("job_id", metavar="ID", type=JobNameType(), shell_complete=live_ids(*states))


job_id = one_job_argument()
