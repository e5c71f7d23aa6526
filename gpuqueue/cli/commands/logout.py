"""The ``logout`` command."""

from __future__ import annotations

import click

from gpuqueue.errors import Refused
from gpuqueue.model.access_token import parts_of
from gpuqueue.settings import credentials


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
