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
    "submit": ("gpuqueue.cli.commands.submit", "Submit a job and print its id."),
    "run": ("gpuqueue.cli.commands.run", "Submit a job, show its output, return its exit code."),
    "shell": ("gpuqueue.cli.commands.shell", "Start a shell on a device, at this terminal."),
    "notebook": ("gpuqueue.cli.commands.notebook", "Start Jupyter on a device, and print its address."),
    "attach": ("gpuqueue.cli.follow.attach", "Show a job's output, return its exit code."),
    "exec": ("gpuqueue.cli.commands.exec", "Run a second command in a running job."),
    "queue": ("gpuqueue.cli.commands.queue", "List the jobs that have not ended."),
    "show": ("gpuqueue.cli.commands.show", "Show the request, the runs and the log of a job."),
    "why": ("gpuqueue.cli.commands.why", "Explain why a job waits, and when it may start."),
    "logs": ("gpuqueue.cli.commands.logs", "Print a job's output."),
    "fetch": ("gpuqueue.cli.commands.fetch", "Fetch files that a job made."),
    "wait": ("gpuqueue.cli.commands.wait", "Wait until jobs have ended."),
    "forward": ("gpuqueue.cli.commands.forward", "Reach a port of a running job from this machine."),
    "cancel": ("gpuqueue.cli.commands.change", "Cancel jobs and end all their processes."),
    "hold": ("gpuqueue.cli.commands.change", "Keep waiting jobs from starting."),
    "release": ("gpuqueue.cli.commands.change", "Let held jobs start."),
    "edit": ("gpuqueue.cli.commands.edit", "Change the request of a waiting job."),
    "extend": ("gpuqueue.cli.commands.change", "Give a job more time."),
    "move": ("gpuqueue.cli.commands.change", "Move waiting jobs to the front of your own jobs."),
    "tag": ("gpuqueue.cli.commands.change", "Tag jobs, to find them later."),
    "note": ("gpuqueue.cli.commands.change", "Write a note on a job."),
    "retry": ("gpuqueue.cli.commands.retry", "Submit ended jobs again."),
    "snapshots": ("gpuqueue.cli.commands.snapshots", "List and delete the code that you have sent."),
    "notify": ("gpuqueue.cli.commands.notify", "List the notification targets, or send a test message."),
    "history": ("gpuqueue.cli.commands.history", "List past and present jobs: user, device, duration, memory."),
    "estimate": ("gpuqueue.cli.commands.estimate", "Estimate how much GPU memory a script needs."),
    "cron": ("gpuqueue.cli.commands.cron", "Submit a job again and again, at set times."),
    "probe": ("gpuqueue.cli.commands.probe", "Run a script for a short time, and say what to ask for."),
    "stats": (
        "gpuqueue.cli.commands.stats",
        "Show GPU-hours, requested and used memory, waits and failures.",
    ),
    "top": ("gpuqueue.cli.commands.top", "Show devices and jobs live, full screen."),
    "simulate": ("gpuqueue.cli.commands.simulate", "Replay a trace of jobs on any devices, and compare policies."),
    "gpus": ("gpuqueue.cli.commands.gpus", "List the devices and their memory."),
    "limits": ("gpuqueue.cli.commands.limits", "Show the limits of users, groups and pools, and their use."),
    "drain": ("gpuqueue.cli.commands.drain", "Stop devices from taking new jobs; running jobs continue."),
    "resume": ("gpuqueue.cli.commands.drain", "Let drained devices take jobs again."),
    "reserve": ("gpuqueue.cli.commands.reserve", "Reserve devices for users, from a time until another."),
    "lost": ("gpuqueue.cli.commands.lost", "Declare a silent host lost, and queue its jobs again."),
    "login": ("gpuqueue.cli.commands.login", "Store an access token for a service on another machine."),
    "logout": ("gpuqueue.cli.commands.login", "Delete the stored access token of a service."),
    "whoami": ("gpuqueue.cli.commands.login", "Show the account that gpuqueue takes you for."),
    "web": ("gpuqueue.cli.commands.web", "Open the web page, signed in as you."),
    "mcp": ("gpuqueue.cli.agents.command", "Serve an agent: tools of the Model Context Protocol."),
    "token": ("gpuqueue.cli.commands.token", "Make, list and revoke access tokens."),
    "audit": ("gpuqueue.cli.commands.audit", "Show who changed what."),
    "up": ("gpuqueue.cli.commands.up", "Start the services of this machine."),
    "status": ("gpuqueue.cli.commands.status", "Show the services of this machine."),
    "down": ("gpuqueue.cli.commands.down", "Wait for the running jobs, then stop the services."),
    "serve": ("gpuqueue.cli.commands.serve", "Run the HTTP service."),
    "install": ("gpuqueue.cli.commands.install", "Set up this machine for a team, as root."),
    "join": ("gpuqueue.cli.commands.join", "Add this machine to the hosts of a service, as root."),
    "uninstall": ("gpuqueue.cli.commands.uninstall", "Remove what install or join has made."),
    "doctor": ("gpuqueue.cli.commands.doctor", "Find problems on this site, and suggest fixes."),
    "burst": ("gpuqueue.cli.commands.burst", "Borrow GPUs from a cluster for some hours."),
    "db": ("gpuqueue.cli.commands.db", "Maintain the history database."),
    "completion": ("gpuqueue.cli.commands.completion", "Print the completion script of a shell."),
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
    **dict.fromkeys(("crontab", "scrontab"), "cron"),
}
#: Number of new objects before the garbage collector runs. Only long-running commands, such as ``top``, reach it.
COLLECT_AT = 100_000
#: Number of digits of a commit that are shown.
SHOWN = 12
#: Headings of the list of commands, in the order of the help. Commands without a heading come last.
SECTIONS: Mapping[str, tuple[str, ...]] = {
    "Jobs": (
        *("submit", "run", "shell", "notebook", "attach", "exec", "forward", "queue", "show", "why", "logs", "fetch"),
        "wait",
        "cron",
    ),
    "Change jobs": ("cancel", "hold", "release", "edit", "extend", "move", "retry", "tag", "note"),
    "Planning": ("estimate", "probe", "simulate"),
    "History": ("history", "stats", "notify", "snapshots"),
    "Devices": ("top", "gpus", "limits", "drain", "resume", "reserve", "lost", "burst"),
    "Access": ("web", "login", "logout", "whoami", "token", "mcp", "audit"),
    "This machine": ("up", "status", "down", "serve", "install", "join", "uninstall", "doctor", "db", "completion"),
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
            found = super().resolve_command(ctx, args)
            _check_dashes(ctx, found[1], found[2])
            return found
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


def _check_dashes(ctx: click.Context, command: click.Command | None, words: list[str]) -> None:
    """Check that no long option has a single dash: click would read ``-mem 6G`` as ``-m em 6G``.

    Raises:
        click.UsageError: A word is a long option of *command* without its second dash.

    """
    names = {name for param in command.params for name in param.opts} if command is not None else set()
    for word in words:
        if word == "--":
            return
        option = word.partition("=")[0]
        if len(option) > 2 and option[1] != "-" and f"-{option}" in names:  # noqa: PLR2004 - a dash and one letter
            raise click.UsageError(f"No such option {option!r}. Did you mean -{option}?", ctx)


def _print_version(ctx: click.Context, _: click.Parameter, value: object) -> None:
    """Print the version, and the commit of the code if it is known."""
    if not value or ctx.resilient_parsing:
        return
    from gpuqueue.system.git_checkout import commit_of_code  # noqa: PLC0415 - only for this option

    commit = commit_of_code()
    click.echo(f"gpuqueue, version {__version__}{f' (commit {commit[:SHOWN]})' if commit else ''}")
    ctx.exit()


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the version and exit.",
)
def commands() -> None:
    """Share GPUs by free memory: submit jobs, and see who ran what.

    \b
    Start here:
      gpuqueue up                                  once on each machine
      gpuqueue submit train.py --mem 6G            prints a job id
      gpuqueue submit train.py --mem 6G -- --lr 1e-3
      gpuqueue logs -f ID
      gpuqueue history

    \b
    gpuqueue COMMAND --help shows examples.
    Exit codes: 0 success, 1 failure, 2 usage error, 3 no such job, 4 a service
    does not answer, 5 refused, 6 doctor warnings, 7 detached from a running job,
    124 timeout, 130 interrupted; run, attach and wait return the job's exit code,
    or 128 + n if signal n killed the job.
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
