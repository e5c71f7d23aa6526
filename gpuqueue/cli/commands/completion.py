"""The ``completion`` command."""

from __future__ import annotations

import click

from gpuqueue.cli.completion.candidates import VARIABLE
from gpuqueue.cli.completion.shells import KINDS


@click.command()
@click.argument("shell", type=click.Choice(tuple(KINDS)))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the script that lets a shell complete commands, options, job ids, users and devices.

    \b
    Examples:
      eval "$(gpuqueue completion bash)"        in ~/.bashrc (bash 4.4 or newer)
      eval "$(gpuqueue completion zsh)"         in ~/.zshrc, after compinit
      gpuqueue completion fish > ~/.config/fish/completions/gpuqueue.fish
    """  # noqa: D301 - \b is click's mark for lines to keep
    root = ctx.find_root()
    asks = KINDS[shell](root.command, {}, root.info_name or "gpuqueue", VARIABLE)
    click.echo(asks.source_template % asks.source_vars())  # click's own source() starts a bash process
