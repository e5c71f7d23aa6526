"""The device and placement options of ``submit``, ``run`` and ``edit``."""

from __future__ import annotations

import contextlib

import click

from gpuqueue.cli.options.fields import Option, field
from gpuqueue.cli.options.own_queue import how_to_start
from gpuqueue.client import Client
from gpuqueue.errors import GpuQueueError
from gpuqueue.model.device import DeviceFilter
from gpuqueue.model.job import Job, WaitReason


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
spread = _preference("spread", "Prefer the device with the most free memory.")
pack = _preference("pack", "Prefer the device with the least sufficient memory.")
least_busy = _preference("least-busy", "Prefer the device that its jobs use least.")
DEVICE_OPTION = field("device", f"{DEVICE} Default: gpu; cpu if the queue knows no GPU.")
DEVICE_TYPE_OPTION = field("device_type", f"{DEVICE_TYPE}.")
#: Options of ``submit`` and ``run``.
OPTIONS = (
    DEVICE_OPTION,
    DEVICE_TYPE_OPTION,
    click.option("--exclusive", is_flag=True, help="Run alone on each device. Without --mem: all of its memory."),
    spread,
    pack,
    least_busy,
)
#: Options of ``edit``.
CHANGES: tuple[Option, ...] = (
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


def warn_if_alone(client: Client, job: Job) -> None:
    """Warn if no device can run *job*. The job is already queued, so errors of the store are ignored."""
    if job.reason is not WaitReason.DEVICE:
        return
    where = f" in pool {job.spec.pool}" if job.spec.pool else ""
    is_own = client.settings.client_url is None
    serve_cpu = "Serve one with gpuqueue up --devices auto,cpu" if is_own else "Ask the administrator to serve one"
    missing = (
        f"no CPU is served{where}: the job waits. {serve_cpu}, or use --device any"
        if job.spec.device is DeviceFilter.CPU
        else f"no GPU is served{where}: the job waits for one. Start workers on a GPU host, or use --device any"
    )
    with contextlib.suppress(GpuQueueError):
        if not client.devices.are_known():
            remedy = how_to_start(client.settings)
            missing = f"no worker has announced a device: the job waits. {remedy[0].upper()}{remedy[1:]}"
    click.echo(f"gpuqueue: {missing}", err=True)
