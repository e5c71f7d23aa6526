"""The ``db`` command."""

from __future__ import annotations

import click

from gpuqueue.cli.output.machine import report
from gpuqueue.embedded.machine import prepare_history
from gpuqueue.errors import Refused
from gpuqueue.settings.settings import Settings


@click.group()
def db() -> None:
    """Maintain the history database.

    \b
    Examples:
      gpuqueue db upgrade
    """  # noqa: D301 - \b is click's mark for lines to keep


@db.command()
def upgrade() -> None:
    """Upgrade the tables of GPUQUEUE_DATABASE_URL to this version.

    \b
    Examples:
      gpuqueue db upgrade
      GPUQUEUE_DATABASE_URL=postgresql://db/gpuqueue gpuqueue db upgrade
    """  # noqa: D301 - \b is click's mark for lines to keep
    settings = Settings.load()
    if not settings.has_history:
        raise Refused("this host records no history (setting record): upgrade on the host of the service")
    report("history", "ready", f"tables at revision {prepare_history(settings.database_url)}")
