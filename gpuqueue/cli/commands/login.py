"""The commands ``login``, ``logout`` and ``whoami``."""

from __future__ import annotations

import sys

import click

from gpuqueue.cli.options.json_option import json_option, print_json
from gpuqueue.client import Client
from gpuqueue.client.login import account_of
from gpuqueue.console import print_message
from gpuqueue.errors import BadRequest, Refused, Unreachable
from gpuqueue.model.access_token import parts_of
from gpuqueue.settings import credentials
from gpuqueue.text.sanitize import plain

#: Most characters that are read as a token.
_MOST = 1000
#: How the caller was authenticated, in words.
_VIA = {
    "socket": "the kernel, over the service's socket",
    "token": "an access token",
    "session": "a browser that has signed in",
    "cron": "a time of a repeating job",
    "direct": "this process, without a service",
    "anonymous": "nothing",
}


@click.command()
@click.argument("url", metavar="URL")
def login(url: str) -> None:
    """Store an access token for the service at URL, which is https://HOST or https://HOST:PORT.

    The token is asked for, or read from standard input. It is never an argument, which other users could read. It is
    checked with the service, and stored in a file that only you can read. Make one with gpuqueue token create, on the
    machine of the service.

    \b
    Examples:
      gpuqueue login https://gpu.example.org
      ssh gpu gpuqueue token create | gpuqueue login https://gpu.example.org
    """  # noqa: D301 - \b is click's mark for lines to keep
    origin = credentials.origin_of(url)
    token = _token()
    try:
        account = account_of(url, token)
    except Unreachable as error:
        print_message("gpuqueue", f"{error}; the token is stored and was not checked")
        account = ""
    credentials.store(url, token)
    click.echo(f"logged in at {origin}{f' as {plain(account)}' if account else ''}")


def _token() -> str:
    """Return the token that is typed, or read from standard input. No message shows it."""
    typed = sys.stdin.isatty()
    text = str(click.prompt("Access token", hide_input=True, err=True)) if typed else sys.stdin.read(_MOST)
    if not text.strip():
        raise BadRequest("there is no access token on standard input: write it there, or run this in a terminal")
    if parts_of(text.strip()) is None:
        raise BadRequest("that is no access token: it begins with gq_ and has 55 characters")
    return text.strip()


@click.command()
@click.argument("url", metavar="URL")
def logout(url: str) -> None:
    """Delete the access token that login has stored for the service at URL.

    The token stays valid until it expires or is revoked.

    \b
    Examples:
      gpuqueue logout https://gpu.example.org
    """  # noqa: D301 - \b is click's mark for lines to keep
    origin = credentials.origin_of(url)
    parts = parts_of(credentials.token_for(url) or "")
    if not credentials.forget(url):
        raise Refused(f"you are not logged in at {origin}: there is nothing to delete")
    end = f". The token is still valid: gpuqueue token revoke {parts.id}, on its machine, ends it" if parts else ""
    click.echo(f"logged out at {origin}{end}")


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
        print_json(me)
        return
    click.echo(f"account  {plain(me.account) or '-'}{'' if me.uid is None else f' (uid {me.uid})'}")
    click.echo(f"proof    {_VIA.get(me.via, plain(me.via))}{f' ({me.token_id})' if me.token_id else ''}")
    click.echo(f"scopes   {', '.join(me.scopes) or '-'}")
    click.echo(f"admin    {'yes' if me.admin else 'no'}")
