"""``limits``."""

from __future__ import annotations

import json
from collections.abc import Mapping

import click

from gpuqueue.cli import render
from gpuqueue.cli.json_option import json_option
from gpuqueue.client.looking import Looking
from gpuqueue.limits import EVERYBODY, Bound, LimitsInUse, PoolLimits
from gpuqueue.units import format_bytes, format_duration
from gpuqueue.words import plain


@click.command()
@json_option
def limits(*, as_json: bool) -> None:
    """Tell what users, groups and pools may have at a time here, and what is used of it.

    \b
    Examples:
      gpuqueue limits
      gpuqueue limits --json
    """  # noqa: D301 - \b is click's mark for lines to keep
    with Looking() as client:
        found = client.limits()
    click.echo(json.dumps(limits_to_plain(found), indent=2) if as_json else _tables(found))


def limits_to_plain(found: LimitsInUse) -> dict[str, object]:
    """Return what ``limits --json`` shows."""
    return {
        "limits": [_bound_plain(bound) for bound in found.bounds],
        "pools": [_pool_plain(name, pool) for name, pool in sorted(found.pools.items())],
    }


def _bound_plain(bound: Bound) -> dict[str, object]:
    return {
        "whose": bound.whose,
        "measure": str(bound.measure),
        "used": bound.used,
        "most": bound.limit.most,
        "refuses": bound.limit.refuses,
    }


def _pool_plain(name: str, pool: PoolLimits) -> dict[str, object]:
    return {
        "pool": name,
        "default_mem_bytes": pool.default_mem_bytes,
        "max_mem_bytes": pool.max_mem_bytes,
        "default_time_s": pool.default_time_s,
        "max_time_s": pool.max_time_s,
        "max_gpus": pool.max_gpus,
    }


def _tables(found: LimitsInUse) -> str:
    tables = [_of_users(found.bounds)] if found.bounds else []
    tables += [_of_pools(found.pools)] if found.pools else []
    return (
        "\n\n".join(tables)
        or 'nothing is limited here: limits and pool_limits do that, such as limits = "ada: running_jobs=4"'
    )


def _of_users(bounds: tuple[Bound, ...]) -> str:
    rows = [
        (
            "everybody else" if bound.whose == EVERYBODY else plain(bound.whose),
            str(bound.measure),
            "-" if bound.used is None else bound.measure.shown(bound.used),
            bound.measure.shown(bound.limit.most),
            "is refused" if bound.limit.refuses else "waits",
        )
        for bound in bounds
    ]
    return render.table(("WHO", "LIMIT", "USED", "OF", "WHAT IS BEYOND"), rows, right=(2, 3))


def _of_pools(pools: Mapping[str, PoolLimits]) -> str:
    rows = [
        (
            "any other" if name == EVERYBODY else plain(name),
            format_bytes(pool.default_mem_bytes),
            format_bytes(pool.max_mem_bytes),
            format_duration(pool.default_time_s),
            format_duration(pool.max_time_s),
            "-" if pool.max_gpus is None else str(pool.max_gpus),
        )
        for name, pool in sorted(pools.items())
    ]
    head = ("POOL", "MEM", "AT MOST", "TIME", "AT MOST", "GPUS AT MOST")
    return render.table(head, rows, right=(1, 2, 3, 4, 5))
