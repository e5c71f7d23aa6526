"""The option ``--json`` of all commands, and what it prints: the values of the HTTP API.

Its help names a documentation page and no file, since an installed gpuqueue does not contain docs/.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from gpuqueue.lazy.imports import later

if TYPE_CHECKING:
    from gpuqueue.codec import wire
else:
    wire = later("gpuqueue.codec.wire")

json_option = click.option("--json", "as_json", is_flag=True, help='Print JSON ("JSON and CSV" in the documentation).')


def print_json(value: object, **more: object) -> None:
    """Print *value* as the API sends it. *more* are fields that it has beside its own."""
    plain = wire.to_plain(value)
    click.echo(json.dumps({**plain, **wire.to_plain(more)} if more else plain, indent=2))
