"""How many of something: a whole number whose upper bound is so high that nobody meets it."""

from __future__ import annotations

import click


class Count(click.IntRange):
    """A whole number from *least* on; *most* keeps out what no store or database takes, and is not told in a help."""

    name = "n"

    def __init__(self, least: int = 1, most: int = 10**9) -> None:
        super().__init__(least, most)

    def _describe_range(self) -> str:
        """Return what click puts into a help: that of ``--limit`` said ``[default: 50; 1<=x<=1000000000]``."""
        return ""
