"""The ``status`` command."""

from __future__ import annotations

import sys

import click

from gpuqueue.cli.options.json_option import json_option, print_json
from gpuqueue.cli.options.own_queue import refuse_beside_service
from gpuqueue.cli.output.devices import device_rows
from gpuqueue.cli.output.machine import report
from gpuqueue.embedded.machine import Machine, MachineStatus
from gpuqueue.errors import Unreachable
from gpuqueue.model.event import BEHIND_S
from gpuqueue.queue.absence import start_of
from gpuqueue.settings.settings import Settings
from gpuqueue.text.units import format_duration
from gpuqueue.words import values


@click.command()
@json_option
def status(*, as_json: bool) -> None:
    """Show the services and devices. Exit code 4 if the store does not answer.

    \b
    Examples:
      gpuqueue status
      gpuqueue status --json | jq .waiting
    """  # noqa: D301 - \b is click's mark for lines to keep
    settings = Settings.load()
    refuse_beside_service(settings, "status")
    machine = Machine(settings)
    found = machine.status()
    if as_json:
        print_json(found)
    else:
        if found.copy_of is not None:
            report("state", "copy", f"of {found.copy_of}")
        report("store", "answers" if found.store_answers else "silent", found.store)
        trouble = found.store_trouble
        if trouble is not None and (trouble.is_recent or not found.store_answers):
            report("", trouble.state.value, trouble.text)
        report(
            "workers" if settings.workers_account is None else "recorder",
            "up" if found.host_pid else "down",
            f"pid {found.host_pid}" if found.host_pid else f"start: {start_of(settings)}",
        )
        if found.store_answers:
            report("jobs", f"{found.active} active", f"{found.waiting} waiting")
        if found.history_trouble is not None:
            report("history", "away", found.history_trouble)
        if found.store_answers and (found.history_trouble is None or found.unrecorded):
            report("history", *_how_far(found))
        if found.store_answers and found.reserved_idle_device_s:
            idle = f"{values.hours(found.reserved_idle_device_s)} h"
            report("reserved", idle, "of idle devices so far, for jobs that had waited too long")
        if found.devices:
            click.echo(device_rows(found.devices, settings, machine.queue.jobs.called))
    sys.exit(0 if found.store_answers else Unreachable.exit_code)


def _how_far(found: MachineStatus) -> tuple[str, str]:
    """Return the state of the history and how far it is behind the queue, in words."""
    late_s = found.unrecorded_s
    if late_s is None or late_s <= BEHIND_S:
        return "recorded", ""
    waits = f"{found.unrecorded} events wait for the history database, the oldest for {format_duration(late_s)}"
    return "behind", f"{waits}: see gpuqueue doctor"
