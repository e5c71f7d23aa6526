"""``gpuqueue``: the command for people."""

from __future__ import annotations

import sys
from importlib import import_module

import click

from gpuqueue import __version__
from gpuqueue.command import run as run_command

#: Command -> (module, purpose). A command's module is imported only when it is used: imports are what one waits for.
COMMANDS = {
    "submit": ("gpuqueue.cli.submit", "Put a job into the queue; prints its id."),
    "run": ("gpuqueue.cli.submit", "Submit a job, show its output, return its exit code."),
    "queue": ("gpuqueue.cli.jobs", "List the jobs that have not ended."),
    "show": ("gpuqueue.cli.jobs", "Tell all about one job."),
    "why": ("gpuqueue.cli.why", "Tell why a job waits, and when it may start."),
    "logs": ("gpuqueue.cli.jobs", "Print a job's output."),
    "wait": ("gpuqueue.cli.jobs", "Wait until jobs have ended."),
    "cancel": ("gpuqueue.cli.jobs", "End jobs and all their processes."),
    "hold": ("gpuqueue.cli.jobs", "Keep waiting jobs from being started."),
    "release": ("gpuqueue.cli.jobs", "Let held jobs be started again."),
    "edit": ("gpuqueue.cli.edit", "Change what a waiting job asks for."),
    "history": ("gpuqueue.cli.history", "Who ran what, where, how long, with how much memory."),
    "estimate": ("gpuqueue.cli.estimate", "Tell how much memory a script will need, before it runs."),
    "stats": ("gpuqueue.cli.stats", "GPU-hours, asked against used, waits, failures; by user, device, host or day."),
    "top": ("gpuqueue.cli.top", "Devices and jobs, live, on the whole screen."),
    "simulate": ("gpuqueue.cli.simulate", "Replay a trace of jobs on any devices, and compare policies."),
    "gpus": ("gpuqueue.cli.machine", "List the devices and what is promised on them."),
    "limits": ("gpuqueue.cli.limits", "What users, groups and pools may have, and what is used of it."),
    "drain": ("gpuqueue.cli.drain", "Let devices take no new job; what runs goes on."),
    "resume": ("gpuqueue.cli.drain", "Let drained devices take jobs again."),
    "up": ("gpuqueue.cli.machine", "Start all that this machine needs."),
    "status": ("gpuqueue.cli.machine", "Tell what runs here."),
    "down": ("gpuqueue.cli.machine", "Let the running jobs end, then stop all of it."),
    "doctor": ("gpuqueue.cli.doctor", "Tell what is wrong on this site, and what to do about it."),
    "db": ("gpuqueue.cli.machine", "Look after the history's tables."),
}


class Commands(click.Group):
    """A group that knows its commands' names and purposes without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the names in the order in which a job travels."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - as above
        """Import and return one command."""
        if cmd_name not in COMMANDS:
            return None
        found = getattr(import_module(COMMANDS[cmd_name][0]), cmd_name)
        return found if isinstance(found, click.Command) else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - as above
        """Write the list of commands without importing one of them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, purpose) for name, (_, purpose) in COMMANDS.items()])


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
    """  # noqa: D301 - \b is click's mark for lines to keep


def main() -> None:
    """Run the command line; whatever goes wrong becomes one line on stderr and a documented exit code."""
    sys.exit(run_command(commands, "gpuqueue"))


if __name__ == "__main__":
    main()
