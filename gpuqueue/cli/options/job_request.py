"""The options of ``submit`` and ``run`` that describe a job, and the call that submits it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from gpuqueue.cli.completion.candidates import directories, files, pools, tags
from gpuqueue.cli.options import placement
from gpuqueue.cli.options.dependencies import WAIT_OPTIONS, report_found
from gpuqueue.cli.options.notification import NOTIFICATION_OPTIONS
from gpuqueue.client import Client
from gpuqueue.console import sentence
from gpuqueue.errors import BadRequest
from gpuqueue.lazy.imports import later
from gpuqueue.model.job import Job, Level
from gpuqueue.model.job_request import JobRequest

if TYPE_CHECKING:
    from click import shell_completion
else:
    shell_completion = later("click.shell_completion")

#: Least similarity of a suggested option to a mistyped one, from 0 to 1.
CLOSE = 0.75


F = TypeVar("F", bound=Callable[..., Any])


class WithRest(click.Command):
    """A command that passes all words after ``--`` to the job."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the words before the first ``--``, and store those after it in ``ctx.obj``."""
        words = list(args)
        ctx.obj = None
        if "--" in words:
            cut = words.index("--")
            words, ctx.obj = words[:cut], tuple(words[cut + 1 :])
        try:
            return super().parse_args(ctx, words)
        except click.UsageError as error:
            reported = _with_close_ones(error)
            if ctx.obj is None and ("No such option" in reported.message or "extra argument" in reported.message):
                raise click.UsageError(
                    f"{sentence(reported.format_message())} What belongs to the script goes after --.", ctx
                ) from None
            raise reported from None

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[shell_completion.CompletionItem]:
        """Complete files after ``--``, where the job's arguments are."""
        if ctx.obj is None:
            return super().shell_complete(ctx, incomplete)
        return [shell_completion.CompletionItem(incomplete, type="file")]

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the options and arguments; none for completion after ``--``."""
        return [] if ctx.resilient_parsing and ctx.obj is not None else super().get_params(ctx)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Show the ``--`` in the usage line."""
        return [*super().collect_usage_pieces(ctx), "[-- ARGS…]"]


def _with_close_ones(error: click.UsageError) -> click.UsageError:
    """Return *error* with only close suggestions, since most unknown options are meant for the script."""
    if not isinstance(error, click.NoSuchOption) or not error.possibilities:
        return error
    from difflib import get_close_matches  # noqa: PLC0415 - only for a mistyped option

    close = get_close_matches(error.option_name, error.possibilities, cutoff=CLOSE)
    return click.NoSuchOption(error.option_name, possibilities=close, ctx=error.ctx)


def _not(_ctx: click.Context, _param: click.Parameter, given: bool) -> bool:  # noqa: FBT001 - as click calls it
    """Return the value of a field that a flag such as ``--no-cap`` turns off."""
    return not given


def _off(_ctx: click.Context, _param: click.Parameter, given: bool) -> bool | None:  # noqa: FBT001 - as click calls it
    """Return the value of a field with a default of the site that a flag such as ``--no-git`` turns off."""
    return False if given else None


#: The options that describe a job, in the order of the help.
_OPTIONS: tuple[Callable[[Any], Any], ...] = (
    click.argument("script", required=False, shell_complete=files),
    click.option("-m", "--mem", metavar="SIZE", help="Memory on each device: 6G, 6000M, 512MiB (binary)."),
    click.option(
        "-g", "--gpus", metavar="N", type=int, default=1, show_default=True, help="Number of devices, all on one host."
    ),
    *placement.OPTIONS,
    click.option("-t", "--time", "time_limit", metavar="TIME", help="Time limit: 90s, 15m, 2h, 1d, 1:30:00."),
    click.option("--signal", metavar="SIG@TIME", help="Signal sent this long before the time limit: USR1@120, INT@2m."),
    click.option("-n", "--name", help="Name of the job. Default: the script's name."),
    click.option("-e", "--env", multiple=True, metavar="K=V", help="Environment variable for the job. Repeatable."),
    click.option(
        "-C",
        "--cwd",
        metavar="DIR",
        help="Working directory. Default: the current directory.",
        shell_complete=directories,
    ),
    click.option(
        "-p",
        "--priority",
        "level",
        type=click.Choice([str(level) for level in Level]),
        default=str(Level.NORMAL),
        show_default=True,
        help="Jobs of higher priority start first.",
    ),
    click.option("--pool", default="", help="Only devices of this pool.", shell_complete=pools),
    click.option(
        "--no-requeue",
        "requeue",
        is_flag=True,
        callback=_not,
        help="Never run the job again, even if its worker is lost.",
    ),
    click.option("--pty", is_flag=True, help="Run the job on a terminal; with run, attach yours to it."),
    click.option("--separate-stderr", is_flag=True, help="Write standard error to a separate file."),
    click.option(
        "--no-git", "git", is_flag=True, callback=_off, help="Do not record the git commit of the working directory."
    ),
    click.option("--no-cap", "cap", is_flag=True, callback=_not, help="Do not cap the job's memory at --mem."),
    click.option("--warm", is_flag=True, help="Start a script in a warm interpreter, with torch imported."),
    click.option(
        "--python",
        metavar="PATH",
        help="Interpreter of a .py script. Default: the active environment's.",
        shell_complete=files,
    ),
    click.option(
        "--tag",
        "tags",
        multiple=True,
        metavar="WORD",
        help="Tag of the job. Repeatable.",
        shell_complete=tags,
    ),
    *WAIT_OPTIONS,
    *NOTIFICATION_OPTIONS,
)


def job_options(command: F) -> F:
    """Add the options that describe a job."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def submit_job(client: Client, rest: tuple[str, ...] | None, options: dict[str, Any]) -> Job:
    """Submit the job that *options* and *rest*, the words after ``--``, describe; return the job."""
    script = options.pop("script")
    if script is None and not rest:
        raise BadRequest(
            "what shall it run? Name a script (gpuqueue submit train.py --mem 6G), or put a command after --"
        )
    command, args = (script, rest or ()) if script is not None else (rest or (), ())
    return client.jobs.submit_request(JobRequest(command, args, **options), found=report_found)
