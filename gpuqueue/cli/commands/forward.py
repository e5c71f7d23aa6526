"""The ``forward`` command."""

from __future__ import annotations

from typing import Any

import click

from gpuqueue.cli.options.job_id import one_job_argument
from gpuqueue.console import print_message
from gpuqueue.errors import GpuQueueError

LOOPBACK = "127.0.0.1"


class PortsType(click.ParamType):  # type: ignore[type-arg]  # generic only in the newest click
    """A port of a job, ``6006``, or one of this machine before it, ``8080:6006``."""

    name = "PORT"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        """Return the port here and that of the job; a malformed one is a usage error."""
        here, colon, there = str(value).rpartition(":")
        words = (here, there) if colon else (there, there)
        if not all(word.isascii() and word.isdigit() and 0 < int(word[:9]) < 2**16 for word in words):
            self.fail(f"{str(value)[:40]} is no port: give 6006, or with another one here 8080:6006", param, ctx)
        return int(words[0]), int(words[1])


@click.command()
@one_job_argument("running")
@click.argument("ports", metavar="[LOCAL:]PORT", type=PortsType())
@click.option("--address", metavar="ADDRESS", default=LOOPBACK, show_default=True, help="Where to listen here.")
def forward(job_id: str, ports: tuple[int, int], address: str) -> None:
    """Reach a port of a running job from this machine, until the job or this command ends.

    A connection to the port here goes to 127.0.0.1 of the job's host, through the service if there is one. Only your
    own jobs are reached, and only a port at which a process of the job listens.

    \b
    Examples:
      gpuqueue forward 12 6006
      gpuqueue forward 12 8080:6006
    """  # noqa: D301 - \b is click's mark for lines to keep
    from gpuqueue.client import Client  # noqa: PLC0415 - lazy import for startup time
    from gpuqueue.client.patience import ABSENCES  # noqa: PLC0415 - as above

    local_port, port = ports

    def away(error: GpuQueueError) -> None:
        print_message("gpuqueue", f"{error}: connections here are closed until that changes")

    def report(error: GpuQueueError) -> None:
        if not isinstance(error, ABSENCES):  # the wait for the end of the job reports those, each once
            away(error)

    with (
        Client() as client,
        client.jobs.forward(job_id, port, address=address, local_port=local_port, report=report) as opened,
    ):
        where = f"[{opened.address}]" if ":" in opened.address else opened.address
        click.echo(f"{where}:{opened.port} leads to port {port} of job {job_id} (Ctrl-C ends it)")
        if opened.address not in {LOOPBACK, "::1"}:
            print_message("gpuqueue", "every machine that reaches this address can use it as you")
        _, job = next(client.jobs.ends([job_id], away=away))
    print_message("gpuqueue", f"job {job_id} has ended ({job.state})")
