"""The content of the pane about one job."""

from __future__ import annotations

from enum import Enum

import click

from gpuqueue.cli.output import live_run, render
from gpuqueue.cli.output.log_end import LOG_BYTES, log_lines
from gpuqueue.cli.why.story import story
from gpuqueue.client import Client
from gpuqueue.errors import GpuQueueError
from gpuqueue.text.sanitize import plain


class About(str, Enum):
    """Content of the pane."""

    #: The end of the job's log.
    LOG = "log"
    #: Why the job waits, as in ``gpuqueue why``.
    WHY = "why"
    #: All details, as in ``gpuqueue show``.
    STORY = "story"


def reported(client: Client, job_id: int, about: About, width: int | None = None) -> str:
    """Return the text of the pane, wrapped to *width* columns, or the error message if there is none."""
    try:
        if about is About.WHY:
            return click.unstyle(story(client.jobs.why(job_id), width))
        if about is About.STORY:
            record = client.jobs.show(job_id)
            return click.unstyle(render.story(record, live_run.read(client, record.job), width))
        return "\n".join(log_lines(_log_end(client, job_id))) or "nothing was written yet"
    except GpuQueueError as error:
        return plain(str(error))


def _log_end(client: Client, job_id: int) -> bytes:
    """Return the end of the newest run's log.

    Raises:
        Refused: there is no log, or it cannot be read from here.

    """
    newest = client.jobs.newest(job_id)
    client.logs.turn(client.logs.tail(), newest)  # raises if there is none
    return client.logs.end(newest, LOG_BYTES)
