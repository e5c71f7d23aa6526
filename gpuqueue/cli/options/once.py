"""Commands that reject a repeated option; click would silently use the last value."""

from __future__ import annotations

from collections import Counter

import click


class Once(click.Command):
    """A command that rejects a repeated option which takes one value.

    It is for commands that select jobs. ``submit`` accepts repeated options, so that ``--mem`` can override an alias.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse *args*.

        Raises:
            click.UsageError: An option that takes one value is repeated.

        """
        typed = list(args)
        rest = super().parse_args(ctx, args)
        if ctx.resilient_parsing:  # shell completion
            return rest
        for param, number in Counter(self.make_parser(ctx).parse_args(typed)[2]).items():
            if number > 1 and isinstance(param, click.Option) and not (param.multiple or param.is_flag):
                name = max(param.opts, key=len)
                times = "twice" if number == 2 else f"{number} times"  # noqa: PLR2004 - English has a word for it
                raise click.UsageError(
                    f"{name} takes one value and is given {times}: run the command once for each", ctx
                )
        return rest
