"""The link that opens the web page and signs its browser in."""

from __future__ import annotations

from dataclasses import replace

import click

from gpuqueue.client import Client
from gpuqueue.console import print_message
from gpuqueue.embedded.page import PageService
from gpuqueue.errors import Refused
from gpuqueue.settings.settings import Settings
from gpuqueue.text.sanitize import plain


def print_link(link: str, valid_s: float) -> None:
    """Print *link*, which works for *valid_s* seconds. It is sanitized, because it comes from a service."""
    print_message("gpuqueue", f"this link signs one browser in, once, within {valid_s:g} s")
    click.echo(plain(link))


def sign_in_link(settings: Settings) -> tuple[str, float]:
    """Return a new link, and for how many seconds it works.

    Raises:
        Refused: no service runs, or it does not know its address for browsers.

    """
    page = PageService(settings)
    if settings.client_url is None and page.running() is not None:
        settings = replace(settings, url=page.url)
    with Client(settings) as client:
        made = client.access.sign_in_code()
    own = settings.client_url or ""
    base = own if own.startswith(("http://", "https://")) else made.url
    if base is None:
        raise Refused(
            "the service does not know its address for browsers: start it with --listen HOST:PORT, or set web_url there"
        )
    return f"{base.rstrip('/')}/#sign-in={made.code}", made.valid_s
