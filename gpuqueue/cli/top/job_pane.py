"""The pane about one job: its content, and the widget that shows it."""

from __future__ import annotations

from enum import Enum

import click
from textual.widgets import Static

from gpuqueue.cli.output import job_story, live_run
from gpuqueue.cli.output.log_end import LOG_BYTES, log_lines
from gpuqueue.cli.output.why_text import why_text
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
    DETAILS = "details"


def reported(client: Client, job_id: int, about: About, width: int | None = None) -> str:
    """Return the text of the pane, wrapped to *width* columns, or the error message if there is none."""
    try:
        if about is About.WHY:
            return click.unstyle(why_text(client.jobs.why(job_id), width))
        if about is About.DETAILS:
            record = client.jobs.show(job_id)
            return click.unstyle(job_story.story(record, live_run.read(client, record.job), width))
        return "\n".join(log_lines(_log_end(client, job_id))) or "nothing was written yet"
    except GpuQueueError as error:
        return plain(str(error))


class JobPane(Static):
    """Shows the log, the wait or the details of a job, from the end of a log or the beginning of another text."""

    def __init__(self) -> None:
        super().__init__("", id="pane", markup=False)
        self.about: About | None = None
        #: Job and content, the lines of the content, and how many lines it is scrolled from its initial position.
        self._of: tuple[int, About] | None = None
        self._reported: list[str] = []
        self._scrolled = 0

    def toggle(self, about: About | None) -> None:
        """Open the pane with the content *about*; close it for None, or if it shows that already."""
        self.about = None if self.about is about else about
        self.display = self.about is not None
        self._of = None

    def wanted(self, job_id: int) -> tuple[int, About] | None:
        """Return what to read for the job under the cursor; None if the pane is closed, or its log was scrolled."""
        if self.about is None:
            return None
        if (job_id, self.about) != self._of:
            self._of, self._scrolled = (job_id, self.about), 0
        return None if self._scrolled and self.about is About.LOG else self._of

    def write(self, text: str, of: tuple[int, About]) -> None:
        """Show *text*, unless the pane shows something else by now."""
        if of == self._of:
            self._reported = text.split("\n")
            self.draw()

    def page(self, by: int) -> None:
        """Scroll by the height less one line: -1 towards the beginning of the text, 1 towards its end."""
        step = by * max(1, self.content_size.height - 1)
        self._scrolled = max(0, self._scrolled + (-step if self.about is About.LOG else step))
        self.draw()

    def on_resize(self) -> None:
        """Fill the new height."""
        self.draw()

    def draw(self) -> None:
        """Draw the text at the scroll position."""
        rows, count = max(1, self.content_size.height), len(self._reported)
        most = max(0, count - rows)
        self._scrolled = min(self._scrolled, most)
        first = most - self._scrolled if self.about is About.LOG else self._scrolled
        self.update("\n".join(self._reported[first : first + rows]))
        self.border_title = f"{first + 1} to {first + rows} of {count} lines, PgUp PgDn" if most else ""


def _log_end(client: Client, job_id: int) -> bytes:
    """Return the end of the newest run's log.

    Raises:
        Refused: there is no log, or it cannot be read from here.

    """
    newest = client.jobs.newest(job_id)
    client.logs.turn(client.logs.tail(), newest)  # raises if there is none
    return client.logs.end(newest, LOG_BYTES)
