"""The entry point of the ``gpuqueue`` command and the list of its subcommands."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING

import click

from gpuqueue import __version__
from gpuqueue.console import run as run_command

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

#: Command -> (module, purpose). A command's module is imported only when it is used, for a fast start.
COMMANDS = {
    "submit": ("gpuqueue.cli.commands.submit", "Put a job into the queue; prints its id."),
    "run": ("gpuqueue.cli.commands.run", "Submit a job, show its output, return its exit code."),
    "attach": ("gpuqueue.cli.follow.attach", "Show a job's output, return its exit code."),
    "queue": ("gpuqueue.cli.commands.queue", "List the jobs that have not ended."),
    "show": ("gpuqueue.cli.commands.show", "Tell all about one job."),
    "why": ("gpuqueue.cli.commands.why", "Tell why a job waits, and when it may start."),
    "logs": ("gpuqueue.cli.commands.logs", "Print a job's output."),
    "wait": ("gpuqueue.cli.commands.wait", "Wait until jobs have ended."),
    "cancel": ("gpuqueue.cli.commands.cancel", "End jobs and all their processes."),
    "hold": ("gpuqueue.cli.commands.hold", "Keep waiting jobs from being started."),
    "release": ("gpuqueue.cli.commands.release", "Let held jobs be started again."),
    "edit": ("gpuqueue.cli.commands.edit", "Change what a waiting job asks for."),
    "move": ("gpuqueue.cli.commands.move", "Let waiting jobs go before your others."),
    "tag": ("gpuqueue.cli.commands.tag", "Give jobs words to find them by."),
    "note": ("gpuqueue.cli.commands.note", "Write down what there is to say of a job."),
    "retry": ("gpuqueue.cli.commands.retry", "Submit again what ended jobs asked for."),
    "notify": ("gpuqueue.cli.commands.notify", "Tell who can be told of the ends of jobs, and try it."),
    "history": ("gpuqueue.cli.commands.history", "Who ran what, where, how long, with how much memory."),
    "estimate": ("gpuqueue.cli.commands.estimate", "Tell how much memory a script will need, before it runs."),
    "stats": (
        "gpuqueue.cli.commands.stats",
        "GPU-hours, asked against used, waits, failures; by user, device, host or day.",
    ),
    "top": ("gpuqueue.cli.commands.top", "Devices and jobs, live, on the whole screen."),
    "simulate": ("gpuqueue.cli.commands.simulate", "Replay a trace of jobs on any devices, and compare policies."),
    "gpus": ("gpuqueue.cli.commands.gpus", "List the devices and what is promised on them."),
    "limits": ("gpuqueue.cli.commands.limits", "What users, groups and pools may have, and what is used of it."),
    "drain": ("gpuqueue.cli.commands.drain", "Let devices take no new job; what runs goes on."),
    "resume": ("gpuqueue.cli.commands.resume", "Let drained devices take jobs again."),
    "up": ("gpuqueue.cli.commands.up", "Start all that this machine needs."),
    "status": ("gpuqueue.cli.commands.status", "Tell what runs here."),
    "down": ("gpuqueue.cli.commands.down", "Let the running jobs end, then stop all of it."),
    "doctor": ("gpuqueue.cli.commands.doctor", "Tell what is wrong on this site, and what to do about it."),
    "db": ("gpuqueue.cli.commands.db", "Look after the history's tables."),
    "completion": ("gpuqueue.cli.commands.completion", "Print what makes a shell complete these words."),
}

#: Command name from Slurm, pueue or a shell -> the command with the same purpose here.
CALLED_ELSEWHERE = {
    **dict.fromkeys(("ls", "ps", "list", "squeue"), "queue"),
    **dict.fromkeys(("kill", "rm", "remove", "scancel"), "cancel"),
    **dict.fromkeys(("sbatch", "add"), "submit"),
    **dict.fromkeys(("sinfo", "nvidia-smi"), "gpus"),
    "srun": "run",
    "sacct": "history",
    "pause": "hold",
    "restart": "retry",
    "follow": "attach",
}
#: Number of new objects before the garbage collector runs. Only long-running commands, such as ``top``, reach it.
COLLECT_AT = 100_000
#: Headings of the list of commands, in the order of the help. Commands without a heading come last.
SECTIONS: Mapping[str, tuple[str, ...]] = {
    "Jobs": ("submit", "run", "attach", "queue", "show", "why", "logs", "wait"),
    "Change of mind": ("cancel", "hold", "release", "edit", "move", "retry", "tag", "note"),
    "What to ask for": ("estimate", "simulate"),
    "What has happened": ("history", "stats", "notify"),
    "Devices": ("top", "gpus", "limits", "drain", "resume"),
    "This machine": ("up", "status", "down", "doctor", "db", "completion"),
}


class Commands(click.Group):
    """A command group that lists its commands without importing their modules."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the command names, in the order of ``COMMANDS``."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - as above
        """Import and return one command."""
        if cmd_name not in COMMANDS:
            return None
        found = getattr(import_module(COMMANDS[cmd_name][0]), cmd_name)
        return found if isinstance(found, click.Command) else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that *args* begin with.

        Raises:
            click.UsageError: There is no such command. The message suggests similar names.

        """
        name = args[0]
        if name in COMMANDS or name.startswith("-") or ctx.resilient_parsing:
            return super().resolve_command(ctx, args)
        if name == "help":
            if len(args) > 1:
                return self.resolve_command(ctx, [args[1], "--help"])
            click.echo(ctx.get_help())
            ctx.exit()
        from difflib import get_close_matches  # noqa: PLC0415 - only for a mistyped name

        elsewhere = CALLED_ELSEWHERE.get(name)
        meant = elsewhere or " or ".join(get_close_matches(name, COMMANDS, n=2))
        raise click.UsageError(f"No such command {name!r}." + (f" Did you mean {meant}?" if meant else ""), ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - as above
        """Write the list of commands by section, without importing their modules."""
        placed = {name for names in SECTIONS.values() for name in names}
        more = tuple(name for name in COMMANDS if name not in placed)
        width = max(map(len, COMMANDS))
        for heading, names in {**SECTIONS, "More": more}.items():
            known = [(f"{name:{width}}", COMMANDS[name][1]) for name in names if name in COMMANDS]
            if known:
                with formatter.section(heading):
                    formatter.write_dl(known)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the options and the commands that begin with *incomplete*, without importing their modules."""
        from click.shell_completion import CompletionItem  # noqa: PLC0415 - only for shell completion

        names = [CompletionItem(name, help=COMMANDS[name][1]) for name in COMMANDS if name.startswith(incomplete)]
        return names + click.Command.shell_complete(self, ctx, incomplete)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="gpuqueue")
def commands() -> None:
    """Share GPUs by free memory: submit jobs, and ask later who ran what.

    \b
    Start here:
      gpuqueue up                                  once on each machine
      gpuqueue submit train.py --mem 6G            prints a job id
      gpuqueue submit train.py --mem 6G -- --lr 1e-3
      gpuqueue logs -f ID
      gpuqueue history

    \b
    gpuqueue COMMAND --help has examples of each.
    Exit codes: 0 done, 1 failed, 2 wrong use, 3 no such job, 4 a service does not
    answer, 5 refused, 6 doctor warns, 7 left a job that runs on, 124 out of time,
    130 interrupted; run, attach and wait return the job's own, or 128 + n if
    signal n killed it.
    """  # noqa: D301 - \b is click's mark for lines to keep


def main() -> None:
    """Run the command line; an error becomes one line on stderr and a documented exit code."""
    if "_GPUQUEUE_COMPLETE" in os.environ:
        from gpuqueue.cli.completion.candidates import complete  # noqa: PLC0415 - only for shell completion

        sys.exit(complete(commands, "gpuqueue"))
    # Most objects of a command live until it exits. Garbage collection took a tenth of the run time and freed little.
    gc.set_threshold(COLLECT_AT)
    code = run_command(commands, "gpuqueue")
    gc.freeze()
    sys.exit(code)


if __name__ == "__main__":
    main()
