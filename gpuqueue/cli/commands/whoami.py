"""The ``whoami`` command."""

from __future__ import annotations

import json

import click

from gpuqueue.cli.options.json_option import json_option
from gpuqueue.client import Client
from gpuqueue.codec.access import me_to_plain
from gpuqueue.text.sanitize import plain

#: How the caller was authenticated, in words.
_VIA = {
    "socket": "the kernel, over the service's socket",
    "token": "an access token",
    "session": "a browser that has signed in",
    "direct": "this process, without a service",
    "anonymous": "nothing",
}


@click.command()
@json_option
def whoami(*, as_json: bool) -> None:
    """Show the account that gpuqueue takes you for, and what proves it.

    \b
    Examples:
      gpuqueue whoami
      gpuqueue whoami --json
    """  # noqa: D301 - \b is click's mark for lines to keep
    with Client() as client:
        me = client.access.whoami()
    if as_json:
        click.echo(json.dumps(me_to_plain(me), indent=2))
        return
    click.echo(f"account  {plain(me.account) or '-'}{'' if me.uid is None else f' (uid {me.uid})'}")
    click.echo(f"proof    {_VIA.get(me.via, plain(me.via))}{f' ({me.token_id})' if me.token_id else ''}")
    click.echo(f"scopes   {', '.join(me.scopes) or '-'}")
    click.echo(f"admin    {'yes' if me.admin else 'no'}")
