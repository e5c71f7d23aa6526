"""Tables of docs/internals/performance.md without aims: claims by queue length, commands, shares."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks.measure.figure import Figure, Report
from benchmarks.measure.table import amount, times
from benchmarks.page.memory import REPORTED, how_counted
from gpuqueue.cli.main import COMMANDS

NOTHING = "Not measured in this run."
CASES = ("best", "typical", "smallest", "nothing", "reserved", "worst", "rewritten")
#: What a process does meanwhile -> the start of its figures' names.
PROCESSES = {
    "worker, nothing to do": "worker.idle",
    "worker, four jobs run": "worker.busy",
    "worker, trivial jobs one after the other": "worker.stream",
    "recorder, host process and store together, nothing to do": "others.idle",
    "all that is up with one device, but for the store, nothing to do": "up.1",
    "all that is up with eight devices, but for the store, nothing to do": "up.8",
}
SAMPLERS = {
    "sampler of one device, no job": "sampler.0-runs.idle",
    "sampler, one job, one sample a second": "sampler.1-runs.settled",
    "sampler, one job, ten samples a second": "sampler.1-runs.young",
    "sampler, eight jobs, one sample a second": "sampler.8-runs.settled",
    "sampler, eight jobs, ten samples a second": "sampler.8-runs.young",
}


def claims(report: Report) -> str:
    """Return the table of the server's time for a claim, and of ``gpuqueue queue``, by the number of waiting jobs."""
    head = ("waiting", *(f"{case}: p50, p99" for case in CASES), "`gpuqueue queue`, whole process", "a page of 1 000")
    return table(head, _claim_lines(report))


def _claim_lines(report: Report) -> Iterator[Sequence[str]]:
    for group, output in (("claim", ""), ("claim-libc", ", the C library's allocator")):
        for size in sorted(
            {int(each.name.split(".")[1]) for each in report.figures if each.name.startswith(f"{group}.")}
        ):
            cases = [
                ", ".join(reported(report.get(f"{group}.{size}.{case}.{share}")) for share in ("p50", "p99"))
                for case in CASES
            ]
            reads = [f"queue.{size}.process", f"queue.{size}.page"] if group == "claim" else ["", ""]
            yield f"{size:_}".replace("_", " ") + output, *cases, *(reported(report.get(each)) for each in reads)


def commands(report: Report) -> str:
    """Return the table of the whole process and the import of each command."""
    return table(("command", "whole process", "import of its module alone"), _command_lines(report))


def _command_lines(report: Report) -> Iterator[Sequence[str]]:
    for name, (module, *_) in COMMANDS.items():
        whole, only_help = report.get(f"command.{name}.process"), report.get(f"command.{name}.help")
        imported = reported(report.get(f"import.{module}"))
        if whole is not None:
            yield f"`{name}`", reported(whole), imported
        elif only_help is not None:
            yield f"`{name} --help`", reported(only_help), imported


def shares(report: Report) -> str:
    """Return the table of the memory and CPU shares of workers and samplers."""
    all_shown = table(("", "memory", "of one core"), _share_lines(report))
    return all_shown if all_shown == NOTHING else f"{all_shown}\n\n{REPORTED[how_counted(report)]}"


def _share_lines(report: Report) -> Iterator[Sequence[str]]:
    for output, name in PROCESSES.items():
        found = [report.get(f"{name}.{what}") for what in ("memory", "cpu")]
        if any(found):
            yield output, *map(reported, found)
    for output, name in SAMPLERS.items():
        if (share := report.get(name)) is not None:
            yield output, "-", reported(share)


def reported(figure: Figure | None) -> str:
    """Return a figure, with its ratio to the floor in brackets, if it has one."""
    if figure is None:
        return "-"
    if figure.unit == "copies":
        return f"{figure.value:.0f}"
    ratio = f" ({times(figure.ratio)})" if figure.floor else ""
    return amount(figure.value, figure.unit) + ratio


def table(head: Sequence[str], lines: Iterator[Sequence[str]]) -> str:
    """Return a table as Markdown, or a sentence if there are no lines."""
    rows = [cells(line) for line in lines]
    return "\n".join([cells(head), cells(["---"] * len(head)), *rows]) if rows else NOTHING


def cells(some: Sequence[str]) -> str:
    """Return a line of a table."""
    return "| " + " | ".join(some) + " |"
