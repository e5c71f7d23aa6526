"""The option ``--json`` of all commands, and what it prints: the values of the HTTP API.

Its help names a documentation page and no file, since an installed gpuqueue does not contain docs/.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from gpuqueue.lazy.imports import later

if TYPE_CHECKING:
    from gpuqueue.codec import wire
else:
    wire = later("gpuqueue.codec.wire")

json_option = click.option("--json", "as_json", is_flag=True, help='Print JSON ("JSON and CSV" in the documentation).')


def print_json(value: object, **more: object) -> None:
    """Print *value*, or each of a list, as the API sends it: without secrets. *more* are fields beside its own."""
    plain = wire.to_plain([_shown(each) for each in value] if isinstance(value, (list, tuple)) else _shown(value))
    beside = wire.to_plain({name: _shown(each) for name, each in more.items()})
    click.echo(json.dumps({**plain, **beside} if beside else plain, indent=2))


def _shown(value: Any) -> object:
    shown: object = value.without_secrets() if hasattr(value, "without_secrets") else value
    return shown
