"""The ``login`` command."""

from __future__ import annotations

import sys

import click

from gpuqueue.client.login import account_of
from gpuqueue.console import print_message
from gpuqueue.errors import BadRequest, Unreachable
from gpuqueue.model.access_token import parts_of
from gpuqueue.settings import credentials
from gpuqueue.text.sanitize import plain

#: Most characters that are read as a token.
_MOST = 1000


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
