"""``completion``."""

from __future__ import annotations

import click
from click.shell_completion import ShellComplete, get_completion_class

from gpuqueue.cli.completing import VARIABLE

SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print what makes a shell complete gpuqueue's commands, options, job ids, users and devices after TAB.

    \b
    Examples:
      eval "$(gpuqueue completion bash)"        in ~/.bashrc (bash 4.4 or newer)
      eval "$(gpuqueue completion zsh)"         in ~/.zshrc, behind compinit
      gpuqueue completion fish > ~/.config/fish/completions/gpuqueue.fish
    """  # noqa: D301 - \b is click's mark for lines to keep
    kind = get_completion_class(shell)
    assert kind is not None  # noqa: S101 - click has all of SHELLS
    root = ctx.find_root()
    asks = kind(root.command, {}, root.info_name or "gpuqueue", VARIABLE)
    click.echo(ShellComplete.source(asks))  # bash's own also starts a bash, to ask for its version
