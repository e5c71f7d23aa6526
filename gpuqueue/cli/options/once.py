"""Commands that take each of their values once: of two users to look for, the last one would win in silence."""

from __future__ import annotations

from collections import Counter

import click


class Once(click.Command):
    """A command that refuses an option that takes one value and is said again.

    For commands that choose among jobs. Where one asks for a job a later ``--mem`` may well stand for an alias's.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse *args* as click does.

        Raises:
            click.UsageError: an option that takes one value is there more than once.

        """
        typed = list(args)
        rest = super().parse_args(ctx, args)
        if ctx.resilient_parsing:  # a shell that completes
            return rest
        for param, number in Counter(self.make_parser(ctx).parse_args(typed)[2]).items():
            if number > 1 and isinstance(param, click.Option) and not (param.multiple or param.is_flag):
                name = max(param.opts, key=len)
                times = "twice" if number == 2 else f"{number} times"  # noqa: PLR2004 - as one says it
                raise click.UsageError(f"{name} takes one value and is there {times}: ask once for each", ctx)
        return rest
