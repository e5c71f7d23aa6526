"""A parameter type for counts: a whole number with a very large upper bound."""

from __future__ import annotations

from typing import Any

import click


class Count(click.IntRange):
    """A whole number from *least* to *most*; *most* rejects values that overflow a database, and help omits it."""

    name = "n"

    def __init__(self, least: int = 1, most: int = 10**9) -> None:
        super().__init__(least, most)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number. Unlike Python, refuse underscores and digits of other scripts: 10_7 is a member of 10."""
        if isinstance(value, str) and not (value.isascii() and value.strip().lstrip("+-").isdigit()):
            self.fail(f"{value!r} is not a whole number.", param, ctx)
        return super().convert(value, param, ctx)

    def _describe_range(self) -> str:
        """Return an empty range for the help, instead of click's ``1<=x<=1000000000``."""
        return ""
