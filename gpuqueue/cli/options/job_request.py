"""The options that describe a job, of ``submit``, ``run``, ``edit``, ``retry`` and ``probe``; the call that submits."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from gpuqueue.cli.completion.candidates import (
    awaited,
    directories,
    environments,
    files,
    listed,
    models,
    one_of,
    placements,
    pools,
    tags,
)
from gpuqueue.cli.options import in_files
from gpuqueue.cli.options.add import Option, with_options
from gpuqueue.cli.options.own_queue import how_to_start
from gpuqueue.client import Client
from gpuqueue.console import print_message, sentence
from gpuqueue.errors import BadRequest, GpuQueueError
from gpuqueue.lazy.imports import later
from gpuqueue.model.dependencies import AT_ONCE, BEGINS
from gpuqueue.model.device import DeviceFilter
from gpuqueue.model.job import Job, WaitReason
from gpuqueue.model.job_request import JobRequest
from gpuqueue.model.job_spec import Priority
from gpuqueue.model.placement import Visible
from gpuqueue.model.retries import DEFAULT_ON, RetryOn
from gpuqueue.text.sanitize import plain

if TYPE_CHECKING:
    import shlex

    from click import shell_completion

    from gpuqueue.words import values
    from gpuqueue.words.why import start
else:
    shlex = later("shlex")
    start = later("gpuqueue.words.why.start")
    shell_completion = later("click.shell_completion")
    values = later("gpuqueue.words.values")


def targets(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[shell_completion.CompletionItem]:
    """Complete the names of the site's targets."""
    from gpuqueue.client import Client  # noqa: PLC0415 - only for shell completion

    found: set[str] = set()
    with contextlib.suppress(GpuQueueError), Client() as client:
        found = {name for each in client.jobs.senders() for name in each.targets} | set(client.settings.notify)
    return [shell_completion.CompletionItem(name) for name in sorted(found) if name.startswith(incomplete)]


#: Field of a request -> names of its option, and what click needs to know of it.
_FIELDS: Mapping[str, tuple[tuple[str, ...], Mapping[str, Any]]] = {
    "mem": (("-m", "--mem"), {"metavar": "SIZE"}),
    "gpus": (("-g", "--gpus"), {"metavar": "N", "type": int}),
    "on": (("--on",), {"metavar": "ENGINE"}),
    "nodes": (("--nodes",), {"metavar": "N", "type": int}),
    "device": (("--device",), {"multiple": True, "metavar": "WHICH", "shell_complete": placements}),
    "device_type": (("--device-type",), {"multiple": True, "metavar": "MODEL", "shell_complete": models}),
    "time_limit": (("-t", "--time", "time_limit"), {"metavar": "TIME"}),
    "cpus": (("--cpus",), {"metavar": "N"}),
    "cpu_mem": (("--cpu-mem",), {"metavar": "SIZE"}),
    "signal": (("--signal",), {"metavar": "SIG@TIME"}),
    "name": (("-n", "--name"), {}),
    "priority": (("-p", "--priority", "priority"), {"type": click.Choice([str(priority) for priority in Priority])}),
    "pool": (("--pool",), {"shell_complete": pools}),
    "after": (("--after",), {"multiple": True, "metavar": "ID[:ok|any|fail|corr]", "shell_complete": listed(awaited)}),
    "begin": (("--begin",), {"metavar": "TIME"}),
    "retries": (("--retries",), {"metavar": "N", "type": int}),
    "retry_on": (("--retry-on",), {"metavar": "ENDINGS", "shell_complete": listed(one_of(RetryOn))}),
    "mem_retries": (("--mem-retries",), {"metavar": "N", "type": int}),
    "at_once": (("--at-once",), {"metavar": "N"}),
    "on_end": (("--on-end",), {"multiple": True, "metavar": "WHAT", "shell_complete": targets}),
    "on_fail": (("--on-fail",), {"multiple": True, "metavar": "WHAT", "shell_complete": targets}),
}


def field(name: str, text: str, **more: Any) -> Option:
    """Return the option of a field with *text* as its help. *more* are further arguments of ``click.option``."""
    names, how = _FIELDS[name]
    return click.option(*names, help=text, **how, **more)


def _alone(ctx: click.Context, param: click.Parameter, chosen: bool) -> None:  # noqa: FBT001 - as click calls it
    """Store ``--exclusive`` or ``--shared`` as the parameter ``exclusive``.

    Raises:
        click.UsageError: Both flags are given.

    """
    before = ctx.params.setdefault("exclusive", None)
    if chosen and before is not None:
        raise click.UsageError("--exclusive and --shared contradict each other: use one of them", ctx)
    if chosen:
        ctx.params["exclusive"] = param.name == "alone"


def _prefer(ctx: click.Context, param: click.Parameter, chosen: bool) -> None:  # noqa: FBT001 - as click calls it
    """Store ``--spread``, ``--pack``, ``--least-busy`` or ``--no-preference`` as the parameter ``preference``.

    Raises:
        click.UsageError: Two of these flags are given.

    """
    before = ctx.params.setdefault("preference", None)
    if chosen and before is not None:
        other = "no-preference" if before == "none" else before
        raise click.UsageError(f"--{other} and {param.opts[0]} contradict each other: use one of them", ctx)
    if chosen:
        ctx.params["preference"] = (param.name or "").replace("_", "-")


def _preference(name: str, help_text: str) -> Option:
    return click.option(f"--{name}", is_flag=True, expose_value=False, callback=_prefer, help=help_text)


#: Help texts of options that ``submit`` and ``edit`` have.
DEVICE = "gpu, cpu, any; or devices by INDEX, HOST:INDEX or UUID (or its start), separated by commas."
DEVICE_TYPE = "Only devices with these words in their name: A100. Repeatable: any of these"
spread = _preference("spread", "Prefer the device with the largest share of its memory free.")
pack = _preference("pack", "Prefer the device with the least sufficient memory.")
least_busy = _preference("least-busy", "Prefer the device that its jobs use least.")
DEVICE_OPTION = field("device", f"{DEVICE} Default: gpu; cpu if the queue knows no GPU.")
DEVICE_TYPE_OPTION = field("device_type", f"{DEVICE_TYPE}.")
#: Options of ``submit`` and ``run``.
_DEVICE_OPTIONS = (
    DEVICE_OPTION,
    DEVICE_TYPE_OPTION,
    click.option("--exclusive", is_flag=True, help="Run alone on each device. Without --mem: all of its memory."),
    spread,
    pack,
    least_busy,
)
#: Options of ``edit``.
DEVICE_CHANGES: tuple[Option, ...] = (
    click.option(
        "--exclusive", "alone", is_flag=True, expose_value=False, callback=_alone, help="Run alone on each device."
    ),
    click.option(
        "--shared", is_flag=True, expose_value=False, callback=_alone, help="Share the devices with other jobs."
    ),
    spread,
    pack,
    least_busy,
    click.option(
        "--no-preference",
        "none",
        is_flag=True,
        expose_value=False,
        callback=_prefer,
        help="Use the site's placement.",
    ),
)


#: Options of ``submit`` and ``run``.
NOTIFICATION_OPTIONS: list[Callable[[Any], Any]] = [
    field("on_end", "Notify when the job ends: a target, a mail address or a URL. Repeatable."),
    field("on_fail", "As --on-end, but only if the job does not succeed."),
]


def warn_if_nobody_sends(client: Client, job: Job) -> None:
    """Warn if *job* has notifications that no recorder can send."""
    if not job.spec.notifications:
        return
    with contextlib.suppress(GpuQueueError):
        trouble = client.jobs.nobody_sends()
        if trouble is not None:
            print_message("gpuqueue", trouble)


#: Help texts of options that ``submit`` and ``edit`` have.
AFTER = (
    "Wait until this job has succeeded (ok, default), ended (any) or failed (fail); corr: each member of an array "
    "until its member of that array has succeeded. Repeatable, or use commas."
)
RETRY_ON = f"Endings after which to retry: {', '.join(map(str, RetryOn))}."
MEM_RETRIES = "Run again with more memory after a lack of device memory, at most N times."

#: Options of ``submit`` and ``run``.
WAIT_OPTIONS = (
    field("after", AFTER),
    field("begin", f"Earliest start: {BEGINS}."),
    click.option("--hold", is_flag=True, help="Submit the job as held: it waits for gpuqueue release."),
    click.option(
        "--dedupe", metavar="KEY", help="If your job with this key waits or runs, print its id and submit nothing."
    ),
    field("retries", "Retry after a failure, at most N times.", default=0),
    field("retry_on", f"{RETRY_ON} [default: {','.join(map(str, DEFAULT_ON))}]"),
    field("mem_retries", f"{MEM_RETRIES} Default: the site's, usually 2. 0: never."),
)


def warn_if_alone(client: Client, job: Job) -> None:
    """Warn if no device can run *job*. The job is already queued, so errors of the store are ignored."""
    if job.reason not in {WaitReason.DEVICE, WaitReason.NO_GPU}:
        return
    where = f" in pool {job.spec.pool}" if job.spec.pool else ""
    is_own = client.settings.client_url is None
    serve_cpu = "Serve one with gpuqueue up --devices auto,cpu" if is_own else "Ask the administrator to serve one"
    if job.spec.is_whole:
        print_message("gpuqueue", f"no host hands jobs to {job.spec.device} now: the job waits for one")
        return
    missing = (
        f"no CPU is served{where}: the job waits. {serve_cpu}, or use --device any"
        if job.spec.device is DeviceFilter.CPU
        else f"no GPU is served{where}: the job waits for one. Start workers on a GPU host, or use --device any"
    )
    with contextlib.suppress(GpuQueueError):
        devices = client.devices.list()
        lost = next((each for each in devices if each.lost_gpus), None)
        lent = "" if job.spec.placement.devices else start.lent_words(client.jobs.why(job.id))
        if lent:
            missing = f"no device that is served now can run job {job.id}: {lent}"
        elif not devices:
            remedy = how_to_start(client.settings)
            missing = f"no worker has announced a device: the job waits. {remedy[0].upper()}{remedy[1:]}"
        elif job.spec.placement.devices:
            missing = values.missing_devices(job, {each.device.uuid for each in devices}) or missing
        elif job.reason is WaitReason.NO_GPU and lost is not None:
            missing = f"{values.without_gpu(lost)}. With --device any the job runs on the CPU"
    click.echo(f"gpuqueue: {missing}", err=True)


def report_if_past(begin: str | None, job: Job) -> None:
    """Warn if the time of ``--begin`` is in the past, which may be a typing error."""
    if begin is not None and begin.strip() not in AT_ONCE and job.spec.waits.begin_at is None:
        print_message("gpuqueue", f"--begin {plain(begin)} is in the past: job {job.id} may start at once")


def report_found(job: Job) -> None:
    """Print that no job was queued, since *job* has the same dedupe key."""
    print_message("gpuqueue", f"job {job.id} has this dedupe key and is {job.state}: no new job was queued")


#: Least similarity of a suggested option to a mistyped one, from 0 to 1.
CLOSE = 0.75


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
            return super().parse_args(ctx, list(words))  # click empties the list
        except click.UsageError as error:
            reported = self.with_meant_option(error)
            if ctx.obj is None and ("No such option" in reported.message or "extra argument" in reported.message):
                line = self._with_dashes(ctx, words)
                advice = "What belongs to the script goes after --."
                if line is not None:
                    advice = f"A command goes after --: type '{line}'."
                raise click.UsageError(f"{sentence(reported.format_message())} {advice}", ctx) from None
            raise reported from None

    def with_meant_option(self, error: click.UsageError) -> click.UsageError:
        """Return *error* with the option that is meant: that for an option of Slurm, or else a close one."""
        if not isinstance(error, click.NoSuchOption):
            return error
        from gpuqueue.system.sbatch_lines import counterpart_of  # noqa: PLC0415 - only for a mistyped option

        known = counterpart_of(error.option_name)
        if known is None:
            return _with_close_ones(error)
        name, ours = known
        if ours.option and all(ours.option not in param.opts for param in self.params):
            return _with_close_ones(error)
        hint = f"Did you mean {ours.option!r}?" if ours.option else f"In place of Slurm's {name}: {ours.otherwise}."
        return click.UsageError(f"{sentence(error.message)} {hint}", error.ctx)

    def _with_dashes(self, ctx: click.Context, words: list[str]) -> str | None:
        """Return the typed line with ``--`` before a program that was typed in place of a script, else None."""
        parser = self.make_parser(ctx)
        parser.ignore_unknown_options = True
        try:
            values, more, _ = parser.parse_args(list(words))
        except click.UsageError:
            return None
        program = values.get("script")
        if not isinstance(program, str) or program[:1] in {"", "-"} or not _is_no_script(program):
            return None
        start = words.index(program)
        own, command = words[:start], words[start:]
        known = {option for param in self.params for option in param.opts}
        if words.count(program) > 1 or known.intersection(command[2:]) - {word for word in known if word[:2] == "--"}:
            return None  # whose the second one is, or a short option as -g, nobody knows
        if not any(word[:1] == "-" and word[:2] != "--" for word in command):  # a short option is the program's
            command, left = [program, *more], [program, *more]
            own = [word for word in words if not (left and word == left[0] and left.pop(0))]
        return shlex.join([*ctx.command_path.split(), *own, "--", *command])

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


#: Headings of the help of ``submit`` and ``run`` -> the parameters below them. All others come last.
GROUPS: Mapping[str, tuple[str, ...]] = {
    "What it needs": ("mem", "gpus", "time_limit", "cpus", "cpu_mem", "cap"),
    "Which device": ("device", "device_type", "exclusive", "spread", "pack", "least_busy", "pool", "visible"),
    "On another scheduler": ("on", "nodes"),
    "When it starts": ("priority", "after", "begin", "hold", "dedupe"),
    "If it fails or takes too long": (
        *("retries", "retry_on", "mem_retries", "requeue", "signal"),
        *("stop_on_nan", "stop_when_stalled"),
    ),
    "Messages": ("on_end", "on_fail"),
    "Arrays and sweeps": ("array", "sweep", "each_line", "at_once", "max_failures"),
    "Code and environment": (
        *("cwd", "env", "python", "environment", "container", "bind", "warm"),
        *("snapshot", "no_snapshot", "snapshot_allow", "keep", "git"),
    ),
    "Name and output": ("name", "tags", "pty", "separate_stderr", "output", "error"),
}


class Submitting(WithRest):
    """A command that submits a job. Files may give options that are not typed. Its help has the options in groups."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the words before the first ``--``, then once more with the options that files give."""
        left = super().parse_args(ctx, list(args))
        if ctx.resilient_parsing:
            return left
        options = in_files.not_typed(ctx, self.with_meant_option, note)
        if options.words:
            ctx.params.clear()
            try:
                left = super().parse_args(ctx, [*options.words, *args])
            except click.UsageError as error:
                name = error.param.opts[-1][2:] if isinstance(error, click.BadParameter) and error.param else ""
                place = options.places.get(name) or ", ".join(dict.fromkeys(options.places.values()))
                raise BadRequest(f"{place}: {error.format_message()}") from None
            ctx.params["given_in"] = options.places
            if "cwd" in options.places and ctx.params["script"] is not None:  # it is where it was typed
                ctx.params["script"] = os.path.abspath(ctx.params["script"])  # noqa: PTH100 - a str is wanted
        return left

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options below their headings."""
        rows = {
            param.name: row
            for param in self.get_params(ctx)
            if isinstance(param, click.Option) and (row := param.get_help_record(ctx)) is not None
        }
        placed = {name for names in GROUPS.values() for name in names}
        others = tuple(name for name in rows if name not in placed)
        for heading, names in {**GROUPS, "Other": others}.items():
            group = [rows[name] for name in names if name in rows]
            if group:
                with formatter.section(heading):
                    formatter.write_dl(group)


def _is_no_script(word: str) -> bool:
    """Return whether *word*, typed in place of a script, is a program: no file here, and no name of one."""
    import shutil  # noqa: PLC0415 - only for a mistyped command

    is_here = "/" in word or os.path.exists(word)  # noqa: PTH110 - Path.exists fails on a name that is too long
    return not is_here and ("." not in word or shutil.which(word) is not None)


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


_SCRIPT = click.argument("script", required=False, shell_complete=files)
_WHERE: tuple[Option, ...] = (
    click.option("-e", "--env", multiple=True, metavar="K=V", help="Environment variable for the job. Repeatable."),
    click.option(
        "-C",
        "--cwd",
        metavar="DIR",
        help="Working directory. Default: the current directory.",
        shell_complete=directories,
    ),
)
_SNAPSHOT: tuple[Option, ...] = (
    click.option(
        "--snapshot",
        metavar="DIR",
        help="Send the code in DIR along: the job runs in a copy of it. Default to another machine: the git work tree.",
        shell_complete=directories,
    ),
    click.option("--no-snapshot", is_flag=True, help="Do not send the code along."),
    click.option(
        "--snapshot-allow",
        metavar="PATTERN",
        multiple=True,
        help="Send files that look like secrets and match PATTERN. Repeatable.",
    ),
)
_ENVIRONMENT = click.option(
    "--environment",
    metavar="NAME",
    help="Python environment of the hosts, by its name in their settings.",
    shell_complete=environments,
)
_PYTHON: tuple[Option, ...] = (
    click.option(
        "--python",
        metavar="PATH",
        help="Interpreter of a .py script. Default: the active environment's.",
        shell_complete=files,
    ),
    _ENVIRONMENT,
)

_CONTAINER: tuple[Option, ...] = (
    click.option(
        "--container",
        metavar="IMAGE",
        help="Run in a container of this image, by the engine of the host. The working directory is bound.",
    ),
    click.option(
        "--bind",
        metavar="SRC[:DST[:ro]]",
        multiple=True,
        help="A file or directory of the host to bind in the container. Repeatable.",
    ),
)

_ANYWAY = click.option("--anyway", is_flag=True, help="Submit a script that is refused for its text.")

#: The options that describe a job.
_OPTIONS: tuple[Option, ...] = (
    _SCRIPT,
    field("mem", "Memory on each device: 6G, 6000M, 512MiB (binary); auto: what earlier runs needed."),
    field("gpus", "Number of devices, all on one host. With --on: on all nodes.", default=1, show_default=True),
    *_DEVICE_OPTIONS,
    field("on", "Hand the job to this engine as a whole: slurm."),
    field("nodes", "With --on: the number of machines. The command is started once on each."),
    field("time_limit", "Time limit: 90s, 15m, 2h, 1d, 1:30:00."),
    field("cpus", "At most this many processors of the host: 4, 0.5."),
    field("cpu_mem", "At most this much host memory: 32G."),
    field("signal", "Signal sent this long before the time limit: USR1@120, INT@2m."),
    field("name", "Name of the job. Default: the script's name."),
    *_WHERE,
    field("priority", "Jobs of higher priority start first.", default=str(Priority.NORMAL), show_default=True),
    field("pool", "Only devices of this pool.", default=""),
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
        "--output",
        metavar="FILE",
        help="Make FILE a link to the log: %j is the job, %A the array, %a the index, %N the host, %x the name, %u the "
        "user.",
    ),
    click.option("--error", metavar="FILE", help="The same for standard error, which then has a log of its own."),
    click.option(
        "--no-git", "git", is_flag=True, callback=_off, help="Do not record the git commit of the working directory."
    ),
    *_SNAPSHOT,
    click.option(
        "--keep",
        metavar="PATTERN",
        multiple=True,
        help="Keep files that match PATTERN, such as 'results/**', longer than the copy of the code. Repeatable.",
    ),
    click.option(
        "--visible",
        type=click.Choice([str(each) for each in Visible]),
        help="What CUDA_VISIBLE_DEVICES holds: index for a program that reads numbers. Default: the host's.",
    ),
    click.option("--no-cap", "cap", is_flag=True, callback=_not, help="Do not cap the job's memory at --mem."),
    click.option("--warm", is_flag=True, help="Run the script in a Python that has already imported torch."),
    *_PYTHON,
    *_CONTAINER,
    click.option(
        "--tag",
        "tags",
        multiple=True,
        metavar="WORD",
        help="Tag of the job. Repeatable.",
        shell_complete=tags,
    ),
    *WAIT_OPTIONS,
    click.option(
        "--stop-on-nan",
        is_flag=True,
        help="End the run once a metric that it reports is NaN, or a loss infinite. It is not retried.",
    ),
    click.option(
        "--stop-when-stalled",
        metavar="TIME",
        help="End the run after so long without output and without use of its devices: 30m.",
    ),
    *NOTIFICATION_OPTIONS,
    _ANYWAY,
)

#: The options of ``submit`` that make an array.
_ARRAY_OPTIONS = (
    click.option(
        "--array", metavar="INDEXES", help="Submit an array of jobs with these indexes: 0-99, 0-99%8 (8 at a time)."
    ),
    click.option(
        "--sweep",
        metavar="NAME=VALUES",
        multiple=True,
        help="Array over all combinations of values: lr=1e-3,1e-4 or seed=0..4; lr=@FILE: one a line. Repeatable.",
    ),
    click.option(
        "--each-line",
        metavar="FILE",
        help="Array with a member for each line of FILE: {line} in the arguments becomes the line.",
        shell_complete=files,
    ),
    field("at_once", "Maximum number of concurrent array members.", type=int),
    click.option(
        "--max-failures",
        type=int,
        metavar="N",
        help="Hold the rest of an array after N failed members without a success. Default: the site's. 0: never.",
    ),
)
#: The options of ``shell`` and ``notebook``, which decide the rest of their request.
_INTERACTIVE_OPTIONS = (
    field("mem", "Memory on each device: 6G, 6000M, 512MiB (binary)."),
    field("gpus", "Number of devices, all on one host.", default=1, show_default=True),
    *_DEVICE_OPTIONS,
    field("time_limit", "Time limit, which ends it.", default="8h", show_default=True),
    field("cpus", "At most this many processors of the host: 4, 0.5."),
    field("cpu_mem", "At most this much host memory: 32G."),
    field("name", "Name of the job. Default: the command's."),
    *_WHERE,
    field("priority", "Jobs of higher priority start first.", default=str(Priority.NORMAL), show_default=True),
    field("pool", "Only devices of this pool.", default=""),
    *_SNAPSHOT,
    _ENVIRONMENT,
)
#: The options of `probe`, which decides the rest of its request.
_PROBE_OPTIONS = (
    _SCRIPT,
    field("gpus", "Number of devices, all on one host.", default=1, show_default=True),
    DEVICE_OPTION,
    DEVICE_TYPE_OPTION,
    *_WHERE,
    field("priority", "Jobs of higher priority start first.", default=str(Priority.NORMAL), show_default=True),
    field("pool", "Only devices of this pool.", default=""),
    *_SNAPSHOT,
    *_PYTHON,
    _ANYWAY,
)
job_options = with_options(_OPTIONS)
interactive_options = with_options(_INTERACTIVE_OPTIONS)
array_options = with_options(_ARRAY_OPTIONS)
probe_options = with_options(_PROBE_OPTIONS)


def request_of(rest: tuple[str, ...] | None, options: dict[str, Any]) -> JobRequest:
    """Return the request that *options* and *rest*, the words after ``--``, describe."""
    script = options.pop("script")
    if script is None and not rest:
        raise BadRequest("no command: name a script (gpuqueue submit train.py --mem 6G), or put a command after --")
    command, args = (script, rest or ()) if script is not None else (rest or (), ())
    if options.pop("no_snapshot"):
        if options["snapshot"] is not None:
            raise BadRequest("--snapshot and --no-snapshot exclude each other: give one")
        options["snapshot"] = False
    return JobRequest(command, args, **options)


def submit_job(client: Client, rest: tuple[str, ...] | None, options: dict[str, Any]) -> Job:
    """Submit the job that *options* and *rest* describe, as :func:`request_of` reads them; return the job."""
    with naming_files(options):
        return client.jobs.submit_request(request_for(client, rest, options), found=report_found, note=note)


def request_for(client: Client, rest: tuple[str, ...] | None, options: dict[str, Any]) -> JobRequest:
    """Return the request of :func:`request_of`, without limits of a script for Slurm that no host here can enforce."""
    request = request_of(rest, options)
    places = dict(request.given_in or {})
    limits = {name: places.pop(name) for name in ("cpus", "cpu-mem") if name in places}
    if not limits:
        return request
    from gpuqueue.model.slurm_variables import MARK  # noqa: PLC0415 - only for limits that were not typed

    if not any(str(variable).startswith(f"{MARK}=") for variable in request.env or ()):
        return request
    hosts = client.devices.list()
    if not hosts or any(host.limits_jobs is not False for host in hosts):
        return request
    names = " and ".join(f"--{name} of {place}" for name, place in limits.items())
    note(f"no host here limits processors and host memory: {names} sets no limit")
    return replace(
        request,
        given_in=places,
        cpus=None if "cpus" in limits else request.cpus,
        cpu_mem=None if "cpu-mem" in limits else request.cpu_mem,
    )


@contextlib.contextmanager
def naming_files(options: Mapping[str, Any]) -> Iterator[None]:
    """Name the files that gave options where the request is refused: what is wrong may be there."""
    places = dict.fromkeys((options.get("given_in") or {}).values())
    try:
        yield
    except BadRequest as error:
        if not places:
            raise
        raise BadRequest(f"{error} (options are also in {', '.join(places)})") from error


def note(text: str) -> None:
    """Print a remark about a request."""
    print_message("gpuqueue", text)
