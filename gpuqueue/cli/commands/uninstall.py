"""The ``uninstall`` command."""

from __future__ import annotations

from pathlib import Path

import click

from gpuqueue.cli.commands.install import confirm, refuse_unless_root, show
from gpuqueue.installation import plan
from gpuqueue.installation.site import RECORD, WORKERS_ACCOUNT, SystemSite
from gpuqueue.system.process import installed


@click.command()
@click.option("--purge", is_flag=True, help="Also remove state, history, logs, changed settings, account and group.")
@click.option("--cancel-jobs", is_flag=True, help="End the running jobs.")
@click.option("--dry-run", is_flag=True, help="Print what would be done, and do nothing.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
def uninstall(*, purge: bool, cancel_jobs: bool, dry_run: bool, yes: bool) -> None:
    """Stop the services and remove what `install` or `join` made, but not state, history and logs. Needs root.

    Prints what it will do, and asks. Refuses while jobs run. On a host that has joined, token and settings are removed
    even if they were changed, since they have passwords of the site.

    \b
    Examples:
      gpuqueue uninstall --dry-run
      gpuqueue uninstall
      gpuqueue uninstall --purge --cancel-jobs --yes
    """  # noqa: D301 - \b is click's mark for lines to keep
    record = plan.Record.load()
    if record is None:
        click.echo(f"nothing to do: there is no {RECORD}")
        return
    programs = Path(installed("gpuqueue-worker")).parent
    site = SystemSite(
        account=record.account,
        workers_account=record.workers_account or WORKERS_ACCOUNT,
        group=record.group,
        programs=programs,
        serves=not record.joined,
    )
    removed, kept = plan.removals(record, site, purge=purge)
    for step in removed:
        show("remove", step)
    for step in kept:
        show("keep", step)
    if not removed:
        click.echo("nothing to do: to remove state, logs and accounts, give --purge")
        return
    if dry_run:
        return
    refuse_unless_root("uninstall")
    plan.refuse_while_busy(site, cancel=cancel_jobs)
    confirm(yes=yes)
    plan.uninstall(record, site, removed, cancel=cancel_jobs)
    click.echo("done")
