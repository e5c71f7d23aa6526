"""Changes of mind about several jobs at once: ``cancel``, ``hold``, ``release``."""

from __future__ import annotations

from typing import Any

import click

from gpuqueue.cli.acting import Selection, act_on, chosen
from gpuqueue.client import Client
from gpuqueue.client.choosing import Stand


@click.command()
@chosen(stands=True)
def cancel(**words: Any) -> None:
    """End jobs (12), all from one to another (14-19), arrays (17), or parts of them (17_2, 17_5-9).

    A waiting one ends at once, a running one with all its processes (TERM, then KILL). With a filter it shows what it
    found, and asks.

    \b
    Examples:
      gpuqueue cancel 12 14-19
      gpuqueue cancel 17_5-9
      gpuqueue cancel --name 'sweep*' --state waiting
      gpuqueue cancel --all --yes
    """  # noqa: D301 - \b is click's mark for lines to keep
    act_on("cancel", Selection(**words), lambda client, each: _line(each, client.cancel(each)))


@click.command()
@chosen("queued")
def hold(**words: Any) -> None:
    """Keep waiting jobs, arrays or parts of them from being started.

    \b
    Examples:
      gpuqueue hold 12 14-19
      gpuqueue hold --name 'sweep*'
    """  # noqa: D301 - \b is click's mark for lines to keep
    act_on("hold", Selection(stand=None, **words), _hold, stand=Stand.QUEUED)


@click.command()
@chosen("held")
def release(**words: Any) -> None:
    """Let held jobs, arrays or parts of them be started again, at their old place in the order.

    \b
    Examples:
      gpuqueue release 12 14-19
      gpuqueue release --all
    """  # noqa: D301 - \b is click's mark for lines to keep
    act_on("release", Selection(stand=None, **words), _release, stand=Stand.HELD)


def _hold(client: Client, name: str) -> str:
    return _line(name, client.hold(name))


def _release(client: Client, name: str) -> str:
    return _line(name, client.release(name))


def _line(name: str, state: object) -> str:
    return f"job {name}: {state}"
