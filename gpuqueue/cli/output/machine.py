"""Lines about the services of this machine, and Ctrl-C while they change."""

from __future__ import annotations

import contextlib

import click

from gpuqueue.text.sanitize import plain


def interrupt(*_: object) -> None:
    """Handle a signal like Ctrl-C."""
    raise KeyboardInterrupt


def tell(what: str, how: str, where: str) -> None:
    """Say in a line what was done. Where nobody reads on (`up | head`), what is to be done is done all the same."""
    with contextlib.suppress(BrokenPipeError):
        click.echo(f"{what:8} {how:12} {plain(where)}")
