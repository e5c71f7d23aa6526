"""``submit`` and ``run``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from gpuqueue.cli import placement_options
from gpuqueue.cli.arrays import array_options, tell_unknown
from gpuqueue.cli.completing import directories, files, pools, tags
from gpuqueue.cli.notice_options import NOTICE_OPTIONS, warn_if_nobody_sends
from gpuqueue.cli.placement_options import warn_if_alone
from gpuqueue.cli.wait_options import WAIT_OPTIONS, tell_found, tell_if_past
from gpuqueue.client.submitting import Submitting
from gpuqueue.command import sentence
from gpuqueue.errors import BadRequest
from gpuqueue.job import Job, Level
from gpuqueue.later import later
from gpuqueue.window import Window

if TYPE_CHECKING:
    from click import shell_completion
else:
    shell_completion = later("click.shell_completion")

#: How much a mistyped option is like the one that was meant, from 0 to 1.
CLOSE = 0.75
F = TypeVar("F", bound=Callable[..., Any])


class WithRest(click.Command):
    """A command whose words after ``--`` are the job's, whatever they look like."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Keep what stands behind the first ``--`` away from our own options."""
        words = list(args)
        ctx.obj = None
        if "--" in words:
            cut = words.index("--")
            words, ctx.obj = words[:cut], tuple(words[cut + 1 :])
        try:
            return super().parse_args(ctx, words)
        except click.UsageError as error:
            told = _with_close_ones(error)
            if ctx.obj is None and ("No such option" in told.message or "extra argument" in told.message):
                raise click.UsageError(
                    f"{sentence(told.format_message())} What belongs to the script goes after --.", ctx
                ) from None
            raise told from None

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[shell_completion.CompletionItem]:
        """Complete files behind ``--``: what stands there is the job's."""
        if ctx.obj is None:
            return super().shell_complete(ctx, incomplete)
        return [shell_completion.CompletionItem(incomplete, type="file")]

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the options and arguments; behind ``--`` there are none left to complete."""
        return [] if ctx.resilient_parsing and ctx.obj is not None else super().get_params(ctx)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Show the ``--`` in the usage line."""
        return [*super().collect_usage_pieces(ctx), "[-- ARGS…]"]


def _with_close_ones(error: click.UsageError) -> click.UsageError:
    """Return *error* with a guess only at an option that is nearly what was typed: most are meant for the script."""
    if not isinstance(error, click.NoSuchOption) or not error.possibilities:
        return error
    from difflib import get_close_matches  # noqa: PLC0415 - only where an option is mistaken

    close = get_close_matches(error.option_name, error.possibilities, cutoff=CLOSE)
    return click.NoSuchOption(error.option_name, possibilities=close, ctx=error.ctx)


#: What describes a job, in the order of the help.
_OPTIONS: tuple[Callable[[Any], Any], ...] = (
    click.argument("script", required=False, shell_complete=files),
    click.option("-m", "--mem", metavar="SIZE", help="Memory on each device: 6G, 6000M, 512MiB (binary)."),
    click.option("-g", "--gpus", metavar="N", type=int, default=1, show_default=True, help="Devices, all on one host."),
    *placement_options.OPTIONS,
    click.option("-t", "--time", "time_limit", metavar="TIME", help="Time limit: 90s, 15m, 2h, 1d, 1:30:00."),
    click.option("--signal", metavar="SIG@TIME", help="Sent that long before the time limit: USR1@120, INT@2m."),
    click.option("-n", "--name", help="What to call the job; the script's name by default."),
    click.option("-e", "--env", multiple=True, metavar="K=V", help="A variable for the job; may be repeated."),
    click.option(
        "-C",
        "--cwd",
        metavar="DIR",
        help="Where it runs; the current directory by default.",
        shell_complete=directories,
    ),
    click.option(
        "-p",
        "--priority",
        type=click.Choice([str(level) for level in Level]),
        default=str(Level.NORMAL),
        show_default=True,
        help="Higher goes first.",
    ),
    click.option("--pool", default="", help="Only devices of this pool.", shell_complete=pools),
    click.option("--no-requeue", is_flag=True, help="Never run it twice, not even when its worker vanished."),
    click.option("--pty", is_flag=True, help="Give it a terminal; with run you type on it."),
    click.option("--separate-stderr", is_flag=True, help="Standard error goes into a file of its own."),
    click.option("--no-git", is_flag=True, help="Do not note which commit its directory has checked out."),
    click.option("--no-cap", is_flag=True, help="Do not hold it to --mem: it may take more."),
    click.option("--warm", is_flag=True, help="Start a script sooner: in an interpreter with torch imported."),
    click.option(
        "--python",
        metavar="PATH",
        help="Interpreter of a .py script; the active environment's by default.",
        shell_complete=files,
    ),
    click.option(
        "--tag",
        "tags",
        multiple=True,
        metavar="WORD",
        help="A word to find it by; may be repeated.",
        shell_complete=tags,
    ),
    *WAIT_OPTIONS,
    *NOTICE_OPTIONS,
)


def job_options(command: F) -> F:
    """Add the options that describe a job."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def _submit(client: Submitting, rest: tuple[str, ...] | None, options: dict[str, Any]) -> Job:
    script = options.pop("script")
    if script is None and not rest:
        raise BadRequest(
            "what shall it run? Name a script (gpuqueue submit train.py --mem 6G), or put a command after --"
        )
    env = {}
    for pair in options.pop("env"):
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise BadRequest(f"--env {pair!r}: write it like --env KEY=VALUE")
        env[key] = value
    level, no_requeue = Level[options.pop("priority").upper()], options.pop("no_requeue")
    no_cap = options.pop("no_cap")
    options["git"] = False if options.pop("no_git") else None
    options["device"] = options.pop("device") or None
    options["device_type"] = options.pop("device_type") or None
    what: dict[str, Any] = (
        {"command": script, "args": rest or ()} if script is not None else {"command": list(rest or ())}
    )
    if options["retries"] is None:
        options["retries"] = 0
    if options["name"] == "":
        raise BadRequest("--name is empty: say what to call the job, or leave it out")
    return client.submit(
        **what, env=env, level=level, requeue=not no_requeue, cap=not no_cap, found=tell_found, **options
    )


@click.command(cls=WithRest)
@job_options
@array_options
@click.pass_context
def submit(ctx: click.Context, /, **options: Any) -> None:
    """Put a job into the queue and print its id.

    A .py SCRIPT runs with the Python of your active environment; what stands after -- goes to the script.
    Without a SCRIPT, what stands after -- is the command. Your environment and working directory go along.

    \b
    Examples:
      gpuqueue submit train.py --mem 6G
      gpuqueue submit train.py --mem 6G --time 2h -- --lr 1e-3
      gpuqueue submit --mem 20G --gpus 2 -- torchrun --nproc-per-node 2 train.py
      gpuqueue submit train.py --mem 6G --sweep lr=1e-3,1e-4 -- --lr {lr}
    """  # noqa: D301 - \b is click's mark for lines to keep
    begin = options["begin"]
    with Submitting() as client:
        job = _submit(client, ctx.obj, options)
        try:
            click.echo(job.id)
            sys.stdout.flush()
        except OSError:
            click.echo(f"gpuqueue: job {job.id} is queued, but its id could not be printed", err=True)
            raise
        tell_unknown(job)
        tell_if_past(begin, job)
        warn_if_alone(client, job)
        warn_if_nobody_sends(client, job)


def _one_job_only(ctx: click.Context, param: click.Parameter, value: object) -> None:
    if value:
        option = param.opts[0]
        words = f"{option} makes many jobs, and run attends one: gpuqueue submit {option} …, then gpuqueue wait"
        raise click.UsageError(words, ctx)


@click.command(cls=WithRest)
@job_options
@click.option("--array", hidden=True, expose_value=False, callback=_one_job_only)
@click.option("--sweep", hidden=True, expose_value=False, callback=_one_job_only)
@click.pass_context
def run(ctx: click.Context, /, **options: Any) -> None:
    """Submit a job, show its output while it runs, and return its exit code.

    Ctrl-C asks: cancel the job, leave it running, or go on. A second Ctrl-C cancels it. What it writes goes to
    standard output, what gpuqueue says to standard error: while it waits, why it does.

    With --pty you sit at the job's own terminal while it runs: keys go there, Ctrl-C too. Enter ~ . leaves it running.

    \b
    Examples:
      gpuqueue run train.py --mem 6G -- --epochs 3
      gpuqueue run --mem 1G -- nvidia-smi
      gpuqueue run --pty --mem 6G -- python -i train.py
    """  # noqa: D301 - \b is click's mark for lines to keep
    if options["pty"] and sys.stdin.isatty() and sys.stdout.isatty():
        options["pty"] = Window.ours(typed=True)
    from gpuqueue.cli.attend import Attendance  # noqa: PLC0415 - to submit a job takes less than to attend one
    from gpuqueue.cli.ctrl_c import CtrlC  # noqa: PLC0415 - as above
    from gpuqueue.cli.unread import tell_unread  # noqa: PLC0415 - as above
    from gpuqueue.client import Client  # noqa: PLC0415 - as above

    begin = options["begin"]
    with Client() as client, CtrlC() as ctrl_c:  # from here on a Ctrl-C must not leave a job of which nobody knows
        job = _submit(client, ctx.obj, options)
        click.echo(f"gpuqueue: job {job.id} queued", err=True)
        tell_unread()
        tell_if_past(begin, job)
        warn_if_alone(client, job)
        warn_if_nobody_sends(client, job)
        sys.exit(Attendance(client, job.id, ctrl_c, ours=True).to_the_end())
