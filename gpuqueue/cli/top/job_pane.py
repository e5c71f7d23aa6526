"""What the pane under the jobs tells of one of them."""

from __future__ import annotations

from enum import Enum

import click

from gpuqueue.cli.output import live_run, render
from gpuqueue.cli.output.log_end import LOG_BYTES, log_lines
from gpuqueue.cli.why.story import story
from gpuqueue.client import Client
from gpuqueue.errors import GpuQueueError
from gpuqueue.system.logs import last_bytes
from gpuqueue.text.sanitize import plain


class About(str, Enum):
    """What may be told of a job."""

    #: The end of what it writes.
    LOG = "log"
    #: Why it waits, as ``gpuqueue why`` does.
    WHY = "why"
    #: All of it, as ``gpuqueue show`` does.
    STORY = "story"


def told(client: Client, job_id: int, about: About, width: int | None = None) -> str:
    """Return the lines that tell *about* a job, in a pane so *wide*; if nobody can, why not."""
    try:
        if about is About.WHY:
            return click.unstyle(story(client.why(job_id), width))
        if about is About.STORY:
            record = client.show(job_id)
            return click.unstyle(render.story(record, live_run.look(client, record.job), width))
        return "\n".join(log_lines(last_bytes(client.log_path(job_id), LOG_BYTES))) or "nothing was written yet"
    except GpuQueueError as error:
        return plain(str(error))
