"""The options for the fields of a request that several commands have, each declared once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import click

from gpuqueue.cli.completion.candidates import awaited, listed, models, one_of, placements, pools
from gpuqueue.model.job_spec import Priority
from gpuqueue.model.retries import RetryOn

if TYPE_CHECKING:
    from typing import TypeVar

    F = TypeVar("F", bound=Callable[..., Any])

Option = Callable[[Any], Any]

#: Field of a request -> names of its option, and what click needs to know of it.
_FIELDS: Mapping[str, tuple[tuple[str, ...], Mapping[str, Any]]] = {
    "mem": (("-m", "--mem"), {"metavar": "SIZE"}),
    "gpus": (("-g", "--gpus"), {"metavar": "N", "type": int}),
    "device": (("--device",), {"multiple": True, "metavar": "WHICH", "shell_complete": placements}),
    "device_type": (("--device-type",), {"multiple": True, "metavar": "MODEL", "shell_complete": models}),
    "time_limit": (("-t", "--time", "time_limit"), {"metavar": "TIME"}),
    "cpus": (("--cpus",), {"metavar": "N"}),
    "cpu_mem": (("--cpu-mem",), {"metavar": "SIZE"}),
    "signal": (("--signal",), {"metavar": "SIG@TIME"}),
    "name": (("-n", "--name"), {}),
    "priority": (("-p", "--priority", "priority"), {"type": click.Choice([str(priority) for priority in Priority])}),
    "pool": (("--pool",), {"shell_complete": pools}),
    "after": (("--after",), {"multiple": True, "metavar": "ID[:ok|any|fail]", "shell_complete": listed(awaited)}),
    "begin": (("--begin",), {"metavar": "TIME"}),
    "retries": (("--retries",), {"metavar": "N", "type": int}),
    "retry_on": (("--retry-on",), {"metavar": "ENDINGS", "shell_complete": listed(one_of(RetryOn))}),
    "mem_retries": (("--mem-retries",), {"metavar": "N", "type": int}),
    "at_once": (("--at-once",), {"metavar": "N"}),
}


def field(name: str, text: str, **more: Any) -> Option:
    """Return the option of a field with *text* as its help. *more* are further arguments of ``click.option``."""
    names, how = _FIELDS[name]
    return click.option(*names, help=text, **how, **more)


def with_options(options: Iterable[Option]) -> Callable[[F], F]:
    """Return a decorator that adds *options* to a command, in the order of the help."""

    def add(command: F) -> F:
        for option in reversed([*options]):
            command = option(command)
        return command

    return add
