"""The ``web`` command."""

from __future__ import annotations

import os
import sys

import click

from gpuqueue.cli.output.page_link import print_link, sign_in_link
from gpuqueue.settings.settings import Settings

#: Where desktops say that a browser can be opened.
_SCREENS = ("DISPLAY", "WAYLAND_DISPLAY")
#: A page that leads to the link. The link is not an argument of the browser: other users could read it there.
_REDIRECT = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="referrer" content="no-referrer">
<meta http-equiv="refresh" content="0; url={link}"><title>gpuqueue</title></head>
<body><p><a href="{link}">Open gpuqueue</a></p></body></html>
"""


@click.command()
@click.option("--no-open", is_flag=True, help="Print the link, and open no browser.")
def web(*, no_open: bool) -> None:
    """Open the web page of the service, signed in as you.

    The link signs one browser in, once, within a minute. On a machine without a screen it is only printed: open it
    where your browser reaches the service.

    \b
    Examples:
      gpuqueue web
      gpuqueue web --no-open
    """  # noqa: D301 - \b is click's mark for lines to keep
    link, valid_s = sign_in_link(Settings.load())
    print_link(link, valid_s)
    if not no_open and sys.stdout.isatty() and any(os.environ.get(each) for each in _SCREENS):
        _open(link)


def _open(link: str) -> None:
    """Open *link* in the user's browser, by a file that only the user can read. The file stays for the browser."""
    import html  # noqa: PLC0415 - lazy import for startup time
    import tempfile  # noqa: PLC0415 - as above
    from pathlib import Path  # noqa: PLC0415 - as above

    fd, name = tempfile.mkstemp(prefix="gpuqueue-web-", suffix=".html")  # 0600
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        file.write(_REDIRECT.format(link=html.escape(link)))
    click.launch(Path(name).as_uri())
