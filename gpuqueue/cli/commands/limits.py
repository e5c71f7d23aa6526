"""The ``limits`` command."""

from __future__ import annotations

import click

from gpuqueue.cli.options.json_option import json_option, print_json
from gpuqueue.cli.output.render import Column, table_of, terminal_width
from gpuqueue.client import Client
from gpuqueue.model.limits import EVERYBODY, Bound, LimitsInUse
from gpuqueue.model.measures import PoolLimits
from gpuqueue.text.sanitize import plain
from gpuqueue.text.units import format_bytes, format_duration


@click.command()
@json_option
def limits(*, as_json: bool) -> None:
    """Show the limits of users, groups and pools, and how much of those of named users and groups is used.

    \b
    Examples:
      gpuqueue limits
      gpuqueue limits --json
    """  # noqa: D301 - \b is click's mark for lines to keep
    with Client() as client:
        found = client.devices.limits()
    if as_json:
        print_json(found)
    else:
        click.echo(_tables(found, terminal_width()))


def _tables(found: LimitsInUse, width: int | None = None) -> str:
    tables = [table_of(OF_USERS, found.bounds, width)] if found.bounds else []
    tables += [table_of(OF_POOLS, sorted(found.pools.items()), width)] if found.pools else []
    return (
        "\n\n".join(tables) or 'there are no limits: set limits or pool_limits, such as limits = "ada: running_jobs=4"'
    )


def _used(bound: Bound) -> str:
    return "-" if bound.used is None else bound.measure.shown(bound.used)


def _pool(line: tuple[str, PoolLimits], _width: int) -> str:
    return "any other" if line[0] == EVERYBODY else plain(line[0])


def _gpus(line: tuple[str, PoolLimits], _width: int) -> str:
    return "-" if line[1].max_gpus is None else str(line[1].max_gpus)


#: Columns of the table of users and groups, from left to right.
OF_USERS: tuple[Column[Bound], ...] = (
    Column(
        head="WHO",
        cell=lambda bound, _: "everybody else" if bound.whose == EVERYBODY else plain(bound.whose),
        least=8,
        narrows=0,
    ),
    Column(head="LIMIT", cell=lambda bound, _: str(bound.measure)),
    Column(head="USED", cell=lambda bound, _: _used(bound), right=True),
    Column(head="OF", cell=lambda bound, _: bound.measure.shown(bound.limit.most), right=True),
    Column(head="OVER THE LIMIT", cell=lambda bound, _: "is refused" if bound.limit.refuses else "waits", keep=0),
)
#: Columns of the table of pools, from left to right. A narrow terminal omits the defaults before the maxima.
OF_POOLS: tuple[Column[tuple[str, PoolLimits]], ...] = (
    Column(head="POOL", cell=_pool, least=4, narrows=0),
    Column(head="MEM", cell=lambda line, _: format_bytes(line[1].default_mem_bytes), right=True, keep=1),
    Column(head="MOST MEM", cell=lambda line, _: format_bytes(line[1].max_mem_bytes), right=True),
    Column(head="TIME", cell=lambda line, _: format_duration(line[1].default_time_s), right=True, keep=0),
    Column(head="MOST TIME", cell=lambda line, _: format_duration(line[1].max_time_s), right=True),
    Column(head="MOST GPUS", cell=_gpus, right=True),
)
