"""Output about the services of this machine, and a signal handler that acts like Ctrl-C."""

from __future__ import annotations

import contextlib

import click

from gpuqueue.text.sanitize import plain


def interrupt(*_: object) -> None:
    """Handle a signal like Ctrl-C."""
    raise KeyboardInterrupt


def report(what: str, how: str, where: str) -> None:
    """Print a line about a service. A closed pipe (`up | head`) does not stop the command."""
    with contextlib.suppress(BrokenPipeError):
        click.echo(f"{what:8} {how:12} {plain(where)}")
