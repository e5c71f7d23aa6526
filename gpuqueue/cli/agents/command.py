"""The ``mcp`` command."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from gpuqueue.cli.options.count import Count
from gpuqueue.console import print_message
from gpuqueue.errors import BadRequest, GpuQueueError, install_extra
from gpuqueue.model.validation import duration_or_none, size_or_none
from gpuqueue.text.sanitize import name_of


@click.command()
@click.option("--read-only", is_flag=True, help="Offer no tool that submits or cancels.")
@click.option(
    "--agent", metavar="NAME", default="agent", show_default=True, help="Tag of the jobs that this agent submits."
)
@click.option("--max-jobs", metavar="N", type=Count(), help="Most jobs of this tag that wait or run.")
@click.option("--max-mem", metavar="SIZE", help="Most memory of a job, on all its devices together.")
@click.option("--max-time", metavar="TIME", help="Longest time limit of a job, and the default.")
@click.option("--cancel-any", is_flag=True, help="Let the agent cancel all that you may cancel, not just its jobs.")
@click.option("--skill", is_flag=True, help="Print a skill file for agents, and exit.")
def mcp(
    agent: str,
    max_jobs: int | None,
    max_mem: str | None,
    max_time: str | None,
    *,
    read_only: bool,
    cancel_any: bool,
    skill: bool,
) -> None:
    """Serve an agent: tools of the Model Context Protocol on standard input and output.

    The agent acts as you. The limits bind what it submits here; they are counted by its tag.

    \b
    Examples:
      claude mcp add gpuqueue -- gpuqueue mcp --max-jobs 4 --max-time 2h
      gpuqueue mcp --read-only
      gpuqueue mcp --skill
    """  # noqa: D301 - \b is click's mark for lines to keep
    text = Path(__file__).with_name("SKILL.md").read_text(encoding="utf-8")
    if skill:
        click.echo(text, nl=False)
        return
    try:
        from gpuqueue.cli.agents import server  # noqa: PLC0415 - needs the extra, and is slow to import
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("gpuqueue"):
            raise
        raise GpuQueueError(f"gpuqueue mcp needs more libraries: {install_extra('mcp')}") from error
    from gpuqueue.cli.agents.limits import AgentLimits  # noqa: PLC0415 - as above

    max_mem_bytes, max_time_s = size_or_none("--max-mem", max_mem), duration_or_none("--max-time", max_time)
    for option, value in (("--max-mem", max_mem_bytes), ("--max-time", max_time_s)):
        if value is not None and value <= 0:
            raise BadRequest(f"{option} must be above 0")
    if sys.stdin.isatty():
        print_message("gpuqueue", "an agent is expected at standard input. Ctrl-D ends")
    limits = AgentLimits(
        tag=name_of("--agent", agent),
        max_jobs=max_jobs,
        max_mem_bytes=max_mem_bytes,
        max_time_s=max_time_s,
        cancels_any=cancel_any,
        read_only=read_only,
    )
    server.serve(limits, text.rpartition("---\n")[2].strip())
