"""Prints how the code of a job differs from its commit: unchanged for a pipe, coloured and sanitized for a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import click

from gpuqueue.text.sanitize import plain

#: Colours of lines by how they begin. The first one that fits counts.
_COLOURS = (("diff --git ", None), ("+++ ", None), ("--- ", None), ("+", "green"), ("-", "red"), ("@@ ", "cyan"))


def print_diff(text: bytes) -> None:
    """Print *text*. The files may contain control characters, which must not reach a terminal."""
    if not sys.stdout.isatty():
        click.echo(text, nl=False)
        return
    for line in shown_lines(text):
        click.echo(line)


def shown_lines(text: bytes) -> Iterator[str]:
    """Yield the lines of *text* for a terminal."""
    head, begin, diff = text.removesuffix(b"\n").partition(b"\ndiff --git ")
    for line in head.decode("utf-8", "replace").split("\n"):
        yield plain(line)
    if not begin:
        return
    for line in (begin[1:] + diff).decode("utf-8", "replace").split("\n"):
        found = next(((colour,) for start, colour in _COLOURS if line.startswith(start)), None)
        safe = plain(line.expandtabs())
        if found is None:
            yield safe
        else:
            yield click.style(safe, fg=found[0], bold=found[0] is None)
