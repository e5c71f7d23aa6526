"""The ``simulate`` command."""

from __future__ import annotations

import math
import os
import re
import signal
import sys
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from gpuqueue.cli.completion.candidates import files
from gpuqueue.cli.options.count import Count
from gpuqueue.cli.options.json_option import json_option, print_json
from gpuqueue.cli.plots import image_file
from gpuqueue.client import Client
from gpuqueue.errors import BadRequest
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.lazy.imports import later
from gpuqueue.model.shares import Shares
from gpuqueue.settings.settings import Settings
from gpuqueue.simulator import shapes, trace
from gpuqueue.simulator.site import Site
from gpuqueue.simulator.trace import Trace
from gpuqueue.text.sanitize import brief, short

if TYPE_CHECKING:
    from gpuqueue.cli.output import simulation_table
    from gpuqueue.simulator import comparison, own
    from gpuqueue.simulator.comparison import Comparison, Served
else:  # the replay needs the queue and a store
    own = later("gpuqueue.simulator.own")
    simulation_table = later("gpuqueue.cli.output.simulation_table")
    comparison = later("gpuqueue.simulator.comparison")

#: How an error names a setting from the environment. Here the value may come from an option.
_NAMED = re.compile(r"(\w+) \(environment \w+\)")


@click.command()
@click.argument("file", required=False, metavar="[TRACE.csv]", shell_complete=files)
@click.option(
    "--devices", metavar="LIST", help="Devices of the site: 4x24G,2x80G; with a slash between hosts: 4x24G/2x80G."
)
@click.option("--headroom", metavar="SIZE", help="Headroom on each device.")
@click.option("--slots", metavar="N", help="Maximum number of jobs on one device.")
@click.option("--reserve-after", metavar="TIME", help="Reserve devices for a job after this wait, or none.")
@click.option("--reservations", metavar="N", help="Maximum number of reservations per host.")
@click.option("--reserve-budget", metavar="PART", help="Part of device time idle because reserved: 3 %, or none.")
@click.option("--age-after", metavar="TIME", help="Raise the priority of a job after this wait, or none.")
@click.option("--half-life", metavar="TIME", help="Half-life of usage.")
@click.option("--placement", metavar="WORD", help="Placement of a job on one device: spread, pack or least-busy.")
@click.option("--shares", metavar="LIST", help="Shares of users and groups: ann=2,@vision=3.")
@click.option("--limits", metavar="LIST", help='Limits; jobs beyond them wait: "*: running_gpus=2".')
@click.option("--groups", metavar="LIST", help="Members of the groups. Default: the trace's column group.")
@click.option("--seed", type=Count(0), default=0, show_default=True, help="Seed of the random numbers.")
@click.option("--slowdown", is_flag=True, flag_value="on", help="Let runs on a shared device slow each other.")
@click.option(
    "--compare",
    type=click.Choice(["placement"]),
    help="Compare the placements, with --slowdown. Without TRACE.csv: by this site's own history.",
)
@click.option(
    "--jobs",
    "most_jobs",
    type=Count(most=trace.MOST_JOBS),
    metavar="N",
    help="With --compare: replay the newest N jobs. Default: 500, within about a minute.",
)
@json_option
@image_file.picture_option("charts of waits and memory use")
@click.option("--example", is_flag=True, help="Print a small example trace.")
@click.option(
    "--make", "count", type=click.IntRange(1, trace.MOST_JOBS), metavar="N", help="Print a generated trace of N jobs."
)
@click.option(
    "--shape",
    type=click.Choice([*shapes.SHAPES]),
    metavar="WORD",
    help=f"With --make: a trace that loads --devices, of this shape: {', '.join(shapes.SHAPES)}.",
)
def simulate(
    *,
    file: str | None,
    devices: str | None,
    seed: int,
    as_json: bool,
    plot: str | None,
    example: bool,
    count: int | None,
    shape: str | None,
    **knobs: Any,
) -> None:
    """Replay a trace of jobs on imaginary devices, and compare policies.

    TRACE.csv is your own file, with at least the columns arrival_s, user, mem and duration_s (see --example), or the
    output of gpuqueue history --csv. - reads standard input. Omitted options use the settings of this account. A replay
    makes 100 to 400 jobs a second where two cores are free, and less than half where they are busy; several hosts and
    reservations take longest.

    \b
    Examples:
      gpuqueue simulate --example > trace.csv
      gpuqueue simulate trace.csv --devices 4x24G,2x80G
      gpuqueue simulate trace.csv --devices 4x24G --plot waits.png
      gpuqueue simulate trace.csv --devices 4x24G --slowdown
      gpuqueue simulate --make 1000 --shape gangs --devices 8x80G > trace.csv
      gpuqueue simulate --compare placement
    """  # noqa: D301 - \b is click's mark for lines to keep
    slows, compare, most_jobs = knobs.pop("slowdown") is not None, knobs.pop("compare"), knobs.pop("most_jobs")
    if shape is not None and count is None:
        raise BadRequest("--shape says what --make prints: add --make 1000")
    if example or count is not None:
        if file is not None or (example and count is not None):
            raise BadRequest("--example and --make print a trace and take none: choose one")
        _check_printing(count, shape)
        _print_trace(count, seed, shape, _site(devices, _settings(knobs, "")) if shape and devices else None)
        return
    how = _How(seed=seed, as_json=as_json, plot=plot, slows=slows, most_jobs=most_jobs)
    if compare is None:
        _compare_policies(file, devices, knobs, how)
    else:
        _compare_placements(file, devices, knobs, how)


@dataclass(frozen=True, kw_only=True, slots=True)
class _How:
    """The options that are no settings of a site."""

    seed: int
    as_json: bool
    plot: str | None
    slows: bool
    most_jobs: int | None


def _compare_policies(file: str | None, devices: str | None, knobs: dict[str, str | None], how: _How) -> None:
    """Print the figures of each policy."""
    if how.most_jobs is not None:
        raise BadRequest("--jobs is for --compare: a replay without it takes the whole trace")
    if file is None:
        raise BadRequest("name a trace: gpuqueue simulate trace.csv --devices 4x24G (--example prints a trace)")
    if devices is None:
        raise BadRequest(f"name the devices: gpuqueue simulate {short(file, 60)} --devices 4x24G")
    if how.as_json and how.plot is not None:
        raise BadRequest("--json and --plot exclude each other: choose one")
    jobs = _read(file)
    settings = _settings(knobs, jobs.groups)
    site = _site(devices, settings)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C, so that the temporary store is stopped
    reported = comparison.compare(jobs.requests, site, own.knobs_of(settings), seed=how.seed, slows=how.slows)
    for line in simulation_table.left_out(jobs, reported.too_large, reported.over_limit):
        click.echo(line, err=True)
    if how.plot is not None:
        _plot(reported, devices, how.plot)
    if how.as_json:
        _print_json(reported, jobs)
    else:
        click.echo(simulation_table.text(reported, devices))


def _compare_placements(file: str | None, devices: str | None, knobs: dict[str, str | None], how: _How) -> None:
    """Print how the jobs of the history were served, and then a line for each placement as soon as it is known."""
    from gpuqueue.cli.follow.updated_line import ReplayLine  # noqa: PLC0415 - only for --compare

    if how.plot is not None or knobs["placement"] is not None:
        raise BadRequest("--compare excludes --plot and --placement: it prints one table of all placements")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C, so that the temporary store is stopped
    most, served = how.most_jobs or own.USUAL_JOBS, None
    if file is None:
        with Client() as client:
            history = own.own_history(client, most)
        jobs, settings, served = history.trace, _settings(knobs, ""), comparison.Served.of(history.served)
        site = _site(devices, settings) if devices is not None else history.site
    elif devices is None:
        raise BadRequest(f"name the devices: gpuqueue simulate {short(file, 60)} --compare placement --devices 4x24G")
    else:
        whole = _read(file)
        jobs, settings = whole.newest(most), _settings(knobs, whole.groups)
        site = _site(devices, settings)
    order = own.knobs_of(settings)
    fitting, *left_out = comparison.fit(jobs.requests, site, order)
    for words in simulation_table.left_out(jobs, *map(comparison.LeftOut.of, left_out)):
        click.echo(words, err=True)
    if not how.as_json:
        click.echo(simulation_table.placements_heading(fitting, devices or own.in_words(site), served))
    line, most_s = ReplayLine(), math.inf if how.most_jobs else own.MOST_S
    compared: dict[str, Served] = {}
    for placement, figures in comparison.compare_placements(
        fitting, site, order, seed=how.seed, seen=line.seen, most_s=most_s
    ):
        line.clear()
        compared[str(placement)] = figures
        if not how.as_json:
            click.echo(simulation_table.placement_line(str(placement), figures))
    if how.as_json:
        print_json({"served": served, "placements": compared, "devices": len(site.cards)})
    else:
        click.echo(simulation_table.placements_legend(compared, str(order.placement)))


def _site(devices: str, settings: Settings) -> Site:
    return Site.parse(devices, slots=settings.slots, headroom_bytes=settings.headroom_bytes)


def _check_printing(count: int | None, shape: str | None) -> None:
    """Refuse options that have no effect on a printed trace.

    Raises:
        BadRequest: there is one.

    """
    used = {"example"} if count is None else {"count", "seed"}
    if shape is not None:
        used |= {"shape", "devices", "headroom", "slots"}
    context = click.get_current_context()
    for option in context.command.params:
        name = str(option.name)
        if name not in used and context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            what = "--example" if count is None else "--make" if shape is None else "--make with --shape"
            raise BadRequest(f"{option.opts[0]} has no effect on the trace that {what} prints: leave it out")


def _print_trace(count: int | None, seed: int, shape: str | None, site: Site | None) -> None:
    """Print a generated trace of *count* jobs, or the example if that is None. A *shape* needs a *site*."""
    if count is None:
        click.echo(shapes.EXAMPLE, nl=False)
        return
    if shape is None:
        jobs = shapes.made(count, seed)
    elif site is None:
        raise BadRequest("name the devices that the trace is made for: --devices 4x24G")
    else:
        jobs = shapes.shaped(shapes.SHAPES[shape], site, count, seed=seed)
    click.echo("\n".join(trace.write(jobs)))


def _plot(reported: Comparison, devices: str, path: str) -> None:
    from gpuqueue.cli.plots import simulation  # noqa: PLC0415 - only for --plot

    title = f"{reported.outcomes[0].all.jobs} jobs on {short(devices, 40)}"
    image_file.write(path, simulation.overview(reported, title))


def _settings(knobs: dict[str, str | None], groups: str) -> Settings:
    """Return the settings of this account, overridden by the options.

    *groups* are the groups of the trace. They apply if neither an option nor a setting defines groups.

    Raises:
        BadRequest: A value is invalid.

    """
    given = {f"GPUQUEUE_{name.upper()}": value for name, value in knobs.items() if value is not None}
    # Errors of the settings and of the trace must not be reported as errors of options.
    if not Settings.load(os.environ).groups and Shares.parse("", groups).members:
        given.setdefault("GPUQUEUE_GROUPS", groups)
    try:
        return Settings.load({**os.environ, **given})
    except BadRequest as error:
        raise BadRequest(_naming_file(knobs, str(error))) from None


def _naming_file(knobs: dict[str, str | None], fault: str) -> str:
    """Return the error *fault* with options in place of the settings that they set."""
    settings, colon, words = fault.partition(": ")
    named = [name for name in _NAMED.findall(settings) if knobs.get(name) is not None]
    return " and ".join(f"--{name.replace('_', '-')}" for name in named) + colon + words if named else fault


def _read(file: str) -> Trace:
    if file == "-":
        return trace.read(sys.stdin, "the standard input")
    try:
        with open(file, encoding="utf-8", newline="") as lines:  # noqa: PTH123 - the error names the file as the user typed it
            return trace.read(lines, short(file, 60))
    except OSError as error:
        remedy = "name a trace that is there; gpuqueue simulate --example prints one"
        raise BadRequest(f"cannot read {brief(file)}: {error.strerror}: {remedy}") from error


def _print_json(reported: Comparison, jobs: Trace) -> None:
    """Print the figures of *reported*, and what was left out of *jobs*."""
    print_json(
        {
            "outcomes": reported.outcomes,
            "slows": reported.slows,
            "too_large": reported.too_large,
            "over_limit": reported.over_limit,
            "never_ran": jobs.never_ran,
            "on_cpu": jobs.on_cpu,
            "devices": len(reported.site.cards),
            "reserved_idle_device_s": reported.reserved_idle_device_s,
            "took_s": reported.took_s,
        }
    )
