"""The ``notify`` command: lists notification targets and sends test messages."""

from __future__ import annotations

import contextlib
import sys
import time

import click

from gpuqueue.cli.options.job_request import targets
from gpuqueue.cli.options.json_option import json_option, print_json
from gpuqueue.cli.output.render import Column, table_of, terminal_width
from gpuqueue.client import Client
from gpuqueue.console import print_message, sentence
from gpuqueue.errors import BadRequest, GpuQueueError, install_extra
from gpuqueue.model.notification import Notification, masked
from gpuqueue.queue.senders import Sender
from gpuqueue.text.sanitize import plain

#: Columns of the table of targets, from left to right; a line is a target and its sender.
COLUMNS: tuple[Column[tuple[str, Sender]], ...] = (
    Column(head="TARGET", cell=lambda line, _: plain(line[0]), least=8, narrows=1),
    Column(head="HOST", cell=lambda line, _: plain(line[1].host), least=8, narrows=0),
    Column(head="SENDS", cell=lambda line, _: "yes" if line[1].schemes else "no"),
)


@click.command()
@click.option("--test", "to", metavar="WHAT", help="Send a test message to this target now.", shell_complete=targets)
@json_option
def notify(to: str | None, *, as_json: bool) -> None:
    """List the notification targets of --on-end, or send a test message to one.

    A test message uses the settings of this machine. Messages about jobs are sent by the recorder's machine.

    \b
    Examples:
      gpuqueue notify
      gpuqueue notify --test team
      gpuqueue notify --test ntfy://ntfy.sh/my-topic
    """  # noqa: D301 - \b is click's mark for lines to keep
    if to is not None:
        if as_json:
            raise BadRequest("--test and --json exclude each other: choose one")
        sys.exit(_test(Notification(to)))
    with Client() as client:
        senders = client.jobs.senders()
        here, own = client.settings.host, client.settings.notify
    reported = {name for each in senders if each.host == here for name in each.targets}
    unsent = tuple(sorted(own.keys() - reported))
    known = [*senders, *([Sender(host=here, targets=unsent, schemes=(), urls=False)] if unsent else [])]
    if as_json:
        print_json(known)
    elif lines := [(name, each) for each in known for name in each.targets]:
        click.echo(table_of(COLUMNS, lines, terminal_width()))
    else:
        click.echo("no targets: name some in the settings where the recorder runs (setting notify)")
    if senders and not any(each.schemes for each in senders):
        why = f"Apprise is not installed on {senders[0].host}: there, {install_extra('notify')}"
        print_message("gpuqueue", why)


def _refuse_if_others_know(client: Client, target: str) -> None:
    """Refuse a *target* that a recorder knows and the settings here do not; the list of targets shows it.

    Raises:
        BadRequest: A recorder knows the target. The message names its host.

    """
    hosts: list[str] = []
    with contextlib.suppress(GpuQueueError):  # a test message needs no store
        hosts = [each.host for each in client.jobs.senders() if target in each.targets]
    if hosts:
        raise BadRequest(
            f"the recorder on {hosts[0]} knows the target {target!r}, but this shell's settings, which the test uses, "
            "do not: set notify in the config file, which both read, or run this where it is set; jobs may use the name"
        )


def _test(notification: Notification) -> int:
    """Send a test message and return the exit code."""
    from gpuqueue.notify import sending  # noqa: PLC0415 - only for a test message
    from gpuqueue.notify.message import Message  # noqa: PLC0415 - as above
    from gpuqueue.notify.targets import networks_of, url_of  # noqa: PLC0415 - as above

    with Client() as client:
        settings = client.settings
        if notification.target is not None and notification.target not in settings.notify:
            _refuse_if_others_know(client, notification.target)
    url = url_of(notification, settings)
    body = f"If you can read this, {notification.shown} can be notified of the ends of jobs.\n\ngpuqueue notify --test"
    message = Message(title=f"a test from gpuqueue on {settings.host}", body=body, good=True)
    began_s = time.monotonic()
    trouble = sending.send(url, message, networks=networks_of(notification, settings))
    where = notification.shown if notification.target is None else f"{notification.shown} ({masked(url)})"
    if trouble == sending.NO_SCHEME:
        raise BadRequest(f"nothing can be sent to {where}: {trouble}")
    if trouble is not None:
        next_step = "" if "pip install" in trouble else " Does this machine reach it, and is the URL right?"
        return print_message("gpuqueue", f"nothing was sent to {where}: {sentence(trouble)}{next_step}", 1)
    click.echo(f"sent to {where} in {time.monotonic() - began_s:.1f} s")
    return 0
