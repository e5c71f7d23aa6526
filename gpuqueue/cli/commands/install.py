"""The ``install`` command."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from gpuqueue.console import print_message
from gpuqueue.errors import BadRequest, Refused
from gpuqueue.installation import plan
from gpuqueue.installation.files import State, Step
from gpuqueue.installation.services import has_systemd
from gpuqueue.installation.site import WORKERS_ACCOUNT, SystemSite
from gpuqueue.installation.steps import steps_of
from gpuqueue.installation.units import by_hand
from gpuqueue.system.logind import Logind
from gpuqueue.system.process import installed

#: What is done about a step, by its state.
VERBS = {State.THERE: "there", State.MISSING: "make", State.DIFFERS: "change"}


@click.command()
@click.option("--account", default="gpuqueue", show_default=True, help="Account of store, recorder and service.")
@click.option("--workers-account", default=WORKERS_ACCOUNT, show_default=True, help="Account of the workers.")
@click.option("--group", default="gpuqueue-users", show_default=True, help="Group whose members may run jobs.")
@click.option("--pam-service", metavar="NAME", help="PAM service that opens a session for each run; none: no session.")
@click.option("--dry-run", is_flag=True, help="Print what would be done, and do nothing.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option("--force", is_flag=True, help="Replace units that differ.")
def install(
    account: str,
    workers_account: str,
    group: str,
    pam_service: str | None,
    *,
    dry_run: bool,
    yes: bool,
    force: bool,
) -> None:
    """Set up this machine for a team: a service for everybody, and jobs that run as their submitters. Needs root.

    Prints what it will do, and asks. What is there is left alone: a second install changes nothing.

    \b
    Examples:
      gpuqueue install --dry-run
      gpuqueue install
      gpuqueue install --group lab --yes
    """  # noqa: D301 - \b is click's mark for lines to keep
    programs = Path(installed("gpuqueue-worker")).parent
    pam = plan.pam_service(pam_service)
    site = SystemSite(
        account=account,
        workers_account=workers_account,
        group=group,
        programs=programs,
        pam_service=pam,
        has_ticket_key=True,
    )
    site.check()
    if not dry_run:
        refuse_unless_root("install")
    plan.refuse_without_libraries()
    plan.refuse_unsafe(site.programs)
    plan.refuse_other_installation(site)
    plan.refuse_other_settings()
    states = planned(site, steps_of(site, force=force))
    if not show_all(states) or dry_run:
        return
    confirm(yes=yes)
    plan.install(site, states)
    report_done(site)


def planned(site: SystemSite, steps: Sequence[Step]) -> list[tuple[Step, State]]:
    """Return each step with its state, and the units that run at the end.

    Raises:
        Refused: something else is in the place of one.

    """
    states = plan.to_do(steps)
    if has_systemd():
        units = plan.running_units(site, states)
        states.append((units, units.state()))
    return states


def show_all(states: Sequence[tuple[Step, State]]) -> bool:
    """Print a line about each step. Return whether there is something to do."""
    for step, state in states:
        show(VERBS[state], step)
    is_done = all(state is State.THERE for _, state in states)
    if is_done:
        click.echo("nothing to do")
    return not is_done


def refuse_unless_root(command: str) -> None:
    """Check that this process is root's.

    Raises:
        Refused: another account runs it.

    """
    if os.geteuid() != 0:
        raise Refused(f"only root can {command} gpuqueue: use sudo, or look first with --dry-run")


def show(verb: str, step: Step) -> None:
    """Print a line about *step*."""
    click.echo(f"{verb:7} {step.what}")


def confirm(*, yes: bool) -> None:
    """Ask whether to go on, unless *yes*.

    Raises:
        BadRequest: there is no terminal to ask on.
        Refused: the answer is no.

    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise BadRequest("there is no terminal to ask on: give --yes, or look first with --dry-run")
    if not click.confirm("Go on?"):
        raise Refused("nothing was changed")


def report_done(site: SystemSite) -> None:
    """Print what is left to do."""
    click.echo("done")
    if not has_systemd():
        number = "five" if site.serves else "two"
        click.echo(f"systemd does not run here. After each boot, start the {number} processes as root with:")
        for line in by_hand(site):
            click.echo(f"  {line}")
    print_message("gpuqueue", f"let people run jobs with: usermod -a -G {site.group} NAME")
    trouble = None if site.pam_service else Logind().trouble_of_all()
    if trouble is not None:
        print_message("gpuqueue: warning", f"{trouble.seen}: {trouble.remedy}")
