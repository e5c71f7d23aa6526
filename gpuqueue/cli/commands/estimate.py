"""The ``estimate`` command."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click

from gpuqueue.cli.completion.candidates import files
from gpuqueue.cli.options.job_request import WithRest
from gpuqueue.cli.options.json_option import json_option, print_json
from gpuqueue.cli.output import render
from gpuqueue.client import Client
from gpuqueue.errors import BadRequest, DryRunFailed, GpuQueueError
from gpuqueue.estimate.dry_run import LIMITS, Batch, DryRun, Estimate
from gpuqueue.estimate.past import Past, Whose
from gpuqueue.learning.advice import reason
from gpuqueue.learning.past_run import Proof
from gpuqueue.learning.rule import rounded_up
from gpuqueue.model.device import DeviceKind
from gpuqueue.model.framework_memory import ALLOWANCE
from gpuqueue.text.sanitize import plain
from gpuqueue.text.units import format_bytes, format_duration
from gpuqueue.words import values

#: Part of the memory -> its name in the table.
_PARTS = {
    "parameters": "parameters",
    "gradients": "gradients",
    "optimizer_states": "optimizer states",
    "buffers": "buffers",
    "sent": "data sent",
    "activations": "activations and the rest",
    "rounding": "rounding to blocks of 512 B",
}
_WHOSE = {
    Whose.OWN: "of this file by you",
    Whose.ANYBODY: "of this file by others",
    Whose.OWN_ELSEWHERE: "of a file of this name elsewhere, by you",
}
_ON = {DeviceKind.GPU: "", DeviceKind.SIMULATED: ", on simulated devices: the resident memory of its processes"}
_SHOWS = {
    Proof.PEAK: "",
    Proof.AT_LEAST: "at least ",
    Proof.PARTIAL: "at least ",
    Proof.CAPPED: "at most ",
    Proof.DIED: "more than ",
}
#: Most earlier runs that are shown.
SHOWN = 5


@click.command(cls=WithRest)
@click.argument("script", shell_complete=files)
@click.option("--history-only", is_flag=True, help="Use only the history: never run the script.")
@click.option("--no-history", is_flag=True, help="Do not use the history.")
@click.option("--dry-run", is_flag=True, help="Run the script for a few steps even if the history has an answer.")
@click.option(
    "--steps",
    metavar="N",
    type=click.IntRange(1, 1000),
    default=3,
    show_default=True,
    help="Optimizer steps of a dry run.",
)
@click.option("--timeout", metavar="TIME", default="10m", show_default=True, help="Time limit of a dry run.")
@click.option("--ram", metavar="SIZE", help="Host memory limit of a dry run. Default: 80 % of the available memory.")
@click.option("--batch-sizes", metavar="LIST", help="Additional dry runs with these batch sizes: 1,8,64.")
@click.option(
    "--batch-option",
    metavar="NAME",
    default="--batch-size",
    show_default=True,
    help="The script's option for the batch size.",
)
@click.option(
    "--python",
    metavar="PATH",
    help="Interpreter of the script. Default: the active environment's.",
    shell_complete=files,
)
@json_option
@click.pass_context
def estimate(
    ctx: click.Context,
    /,
    script: str,
    *,
    history_only: bool,
    no_history: bool,
    dry_run: bool,
    batch_sizes: str | None,
    as_json: bool,
    **asked: Any,
) -> None:
    """Estimate how much GPU memory a script needs, before you submit it.

    Uses earlier runs of the script. If there are none, the script runs unmodified for a few steps on this machine's
    CPU, and gpuqueue counts the memory that it would use on a GPU. Files that the script writes then are real.

    \b
    Examples:
      gpuqueue estimate train.py
      gpuqueue estimate train.py -- --batch-size 128
      gpuqueue estimate train.py --batch-sizes 1,8,64
    """  # noqa: D301 - \b is click's mark for lines to keep
    if history_only and (no_history or dry_run or batch_sizes):
        raise BadRequest("--history-only excludes --no-history, --dry-run and --batch-sizes: choose one")
    with Client() as client, _trace_shown():
        found = client.estimate(
            script,
            ctx.obj or (),
            history=not no_history,
            dry_run=False if history_only else dry_run or None,  # None: only without an answer from the history
            batch_sizes=_sizes(batch_sizes),
            **asked,
        )
    answered = not history_only or found.past is not None
    if as_json:
        print_json(found)
    elif answered:
        click.echo("\n".join(estimate_lines(found)))
    if not answered:
        raise GpuQueueError("; ".join(found.notes))


@contextmanager
def _trace_shown() -> Iterator[None]:
    """Print the last output of a failed script on stderr, before the error line."""
    try:
        yield
    except DryRunFailed as failed:
        for line in failed.trace.splitlines():
            click.echo(f"  {plain(line)}", err=True)
        raise


def _sizes(text: str | None) -> list[int]:
    try:
        return [int(word) for word in text.split(",")] if text is not None else []
    except ValueError:
        raise BadRequest(f"--batch-sizes {text!r}: write numbers with commas, such as 1,8,64") from None


def estimate_lines(found: Estimate) -> list[str]:
    """Return an estimate as the command prints it."""
    lines = [f"note: {plain(note)}" for note in found.notes]
    if found.past is not None:
        lines += _of_past(found.past)
    if found.dry_run is not None:
        lines += [*_gap(lines), *_of_dry_run(found, found.dry_run)]
    if found.batches:
        lines += ["", _of_batches(found.batches)]
    if found.dry_run is not None:
        lines += ["", *LIMITS]
    if found.mem_bytes is not None:
        lines += ["", f"ask for  --mem {format_bytes(found.mem_bytes)}"]
    return lines


def _gap(lines: Sequence[str]) -> list[str]:
    return [""] if lines else []


def _of_past(past: Past) -> list[str]:
    runs = past.runs[:SHOWN]
    rows = [
        (
            str(run.job_id),
            values.when(run.ended_at),
            _SHOWS[run.proof] + format_bytes(run.bytes),
            "same" if run.same_args else "other",
        )
        for run in runs
    ]
    more = f" and {len(past.runs) - len(runs)} more" if len(past.runs) > len(runs) else ""
    return [
        f"history: runs {_WHOSE[past.whose]}{_ON[past.kind]}",
        "",
        render.table(("JOB", "ENDED", "NEED", "ARGUMENTS"), rows, right=(0, 2)) + more,
        "",
        f"needs {_need(past)}: {reason(past.lesson)}",
    ]


def _need(past: Past) -> str:
    """Return the need. What ran out of memory has shown only that it needs more."""
    died_bytes = past.lesson.learned.died_bytes
    return format_bytes(past.need_bytes) if died_bytes is None else f"more than {format_bytes(died_bytes)}"


def _of_dry_run(found: Estimate, run: DryRun) -> list[str]:
    passes = f"{run.steps} steps" if run.steps else f"{run.forwards} passes of the model"
    early = {"finished": ", then it ended", "timed_out": ", then the time was over: later steps may need more"}
    types = f", parameters in {', '.join(run.dtypes)}" if run.dtypes else ""
    head = (
        f"dry run: {passes} of {plain(found.script)} on the CPU in {format_duration(run.took_s)}"
        f"{early.get(run.ended, '')} (torch {plain(run.torch)}{types})"
    )
    rows = [
        (
            _name(part.name, run),
            format_bytes(part.largest_bytes),
            format_bytes(part.at_peak_bytes),
            _ratio(part.name, run),
        )
        for part in run.parts
    ]
    rows += [
        ("peak counted", "", format_bytes(run.peak_bytes), ""),
        (f"{ALLOWANCE:.0%}".replace("%", " %") + " for what it cannot see", "", format_bytes(run.allowance_bytes), ""),
        ("CUDA context and kernels", "", format_bytes(run.cuda_bytes), _measured_on(run)),
        ("needs", "", format_bytes(run.need_bytes), ""),
    ]
    return [
        head,
        "",
        render.table(("PART", "LARGEST", "AT PEAK", ""), rows, right=(1, 2)),
        *_formula(run),
    ]


def _name(part: str, run: DryRun) -> str:
    optimizers = f" ({', '.join(map(plain, run.optimizers))})" if part == "optimizer_states" and run.optimizers else ""
    return _PARTS.get(part, part) + optimizers


def _measured_on(run: DryRun) -> str:
    return "not measured" if run.cuda_measured_on is None else f"measured on {plain(run.cuda_measured_on)}"


def _ratio(part: str, run: DryRun) -> str:
    parameters = run.largest("parameters")
    if part not in {"gradients", "optimizer_states"} or not parameters or not run.steps:
        return ""
    return f"{_number(run.largest(part) / parameters)} x parameters"


def _formula(run: DryRun) -> list[str]:
    """Return the sum behind the needed bytes, with the sizes at the peak, so that its terms add up."""
    parameters = run.at_peak("parameters")
    if not parameters or not run.steps:
        return []
    fixed = f"{_number(run.fixed_bytes / parameters)} x {format_bytes(parameters)} parameters"
    rest = f"{format_bytes(run.variable_bytes)} activations, data and buffers"
    context, need = format_bytes(run.cuda_bytes), format_bytes(run.need_bytes)
    return [
        "",
        f"formula: ({fixed} + {rest}) x {1 + ALLOWANCE:.1f} + {context} CUDA context and kernels = {need}",
        "At the peak: gradients and optimizer states count as parameters; activations and data grow with the batch.",
    ]


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _of_batches(batches: Sequence[Batch]) -> str:
    rows = [
        (
            str(each.size),
            format_bytes(each.dry_run.largest("activations")),
            format_bytes(each.dry_run.peak_bytes),
            format_bytes(each.dry_run.need_bytes),
            format_bytes(rounded_up(each.dry_run.need_bytes)),
        )
        for each in batches
    ]
    return render.table(("BATCH", "ACTIVATIONS", "PEAK", "NEEDS", "--mem"), rows, right=range(5))
