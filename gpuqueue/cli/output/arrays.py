"""Arrays on the command line: the options of ``submit``, job names, output and exit codes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from gpuqueue.cli.output.exit_code import code_of
from gpuqueue.console import INTERRUPTED, say
from gpuqueue.errors import BadRequest
from gpuqueue.model.job import Job, JobState
from gpuqueue.model.job_ref import JobName, meant
from gpuqueue.text.sanitize import plain, short

if TYPE_CHECKING:
    from gpuqueue.client import Client
    from gpuqueue.model.run import Record

F = TypeVar("F", bound=Callable[..., Any])

#: Longest text of indexes in a list, in columns.
SHOWN = 40

_OPTIONS = (
    click.option(
        "--array", metavar="INDEXES", help="Submit an array of jobs with these indexes: 0-99, 0-99%8 (8 at a time)."
    ),
    click.option(
        "--sweep",
        metavar="NAME=VALUES",
        multiple=True,
        help="Array over all combinations of values: --sweep lr=1e-3,1e-4 --sweep seed=0..4.",
    ),
    click.option("--at-once", type=int, metavar="N", help="Maximum number of concurrent array members."),
)


def array_options(command: F) -> F:
    """Add the options that make an array."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def report_unknown(job: Job) -> None:
    """Warn about unknown names in braces in the command of an array, which may be typing errors."""
    array = job.spec.array
    unknown = [] if array is None else array.unknown(job.spec.argv)
    if array is not None and unknown:
        names = ", ".join(f"{{{axis.name}}}" for axis in array.axes) or "no sweep"
        left = ", ".join(short(f"{{{name}}}", SHOWN) for name in unknown)
        say("gpuqueue", f"{left} stays as it is: this array has {{index}} and {names}. Meant so? Then all is well")


class JobNameType(click.ParamType):  # type: ignore[type-arg]  # generic only in the newest click
    """The name of a job, ``17``, or of a member, ``17_2``; with *several* also ``17_5-9`` and ``12-19``."""

    name = "ID"

    def __init__(self, *, several: bool = False) -> None:
        self._several = several

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the normalized name; a malformed one is a usage error."""
        try:
            name = meant(str(value)) if self._several else JobName.parse(str(value))
        except BadRequest as error:
            self.fail(str(error), param, ctx)
        if isinstance(name, JobName) and name.part is not None and name.member is None and not self._several:
            self.fail(f"{name} is several jobs: name one, or all of {name.id}", param, ctx)
        return str(name)


def labels(job: Job) -> list[tuple[str, JobState]]:
    """Return the labels and states that a list shows for *job*.

    An array has one pair for its waiting members and one for its held members. It has none once all its members have
    begun, since a list shows these as jobs.
    """
    if job.tally is None or job.spec.array is None:
        return [(job.label, job.state)]
    most = f"%{job.spec.array.at_once}" if job.spec.array.at_once else ""
    rows = ((str(job.tally.left), JobState.QUEUED), (str(job.tally.held), JobState.HELD))
    return [(f"{job.id}_[{short(text, SHOWN)}{most}]", state) for text, state in rows if text]


def story(job: Job) -> list[str]:
    """Return the lines of ``show`` about an array, or about the array of a member."""
    if job.member is not None:
        own_id = f", job {job.id}" if job.attempt else ""  # a member has an id of its own once a device takes it
        return [f"  member     {job.member.index} of array {job.member.array_id}{own_id}"]
    array, here = job.spec.array, job.tally
    if array is None:
        return []
    most = f", at most {array.at_once} at once" if array.at_once else ""
    lines = [f"  members    {len(array)} ({short(str(array.indexes), SHOWN)}){most}"]
    lines += [f"  sweep      {plain(str(axis))}" for axis in array.axes]
    if here is not None:
        ended = sum(here.ended.values())
        taken = len(array) - ended - len(here.left) - len(here.held)
        words = [(len(here.left), "wait"), (len(here.held), "held"), (taken, "begun and not ended")]
        words += [(count, state) for state, count in here.ended.items()]
        lines.append("  so far     " + (", ".join(f"{count} {word}" for count, word in words if count)))
    return lines


def worst_code(client: Client, record: Record) -> int:
    """Return the exit code of an ended job; for an array, the highest of its members.

    Raises:
        HistoryUnreachable: The job failed, and the history has not recorded its ending yet.

    """
    if record.job.spec.array is None or record.job.state is JobState.SUCCEEDED:
        return code_of(record)
    bad = [state for state in JobState if state.is_end and state is not JobState.SUCCEEDED]
    found = client.history.search(array=record.job.id, states=bad, limit=len(record.job.spec.array))
    # The history does not record members that were cancelled before they began. The array's state shows that some were.
    never_began = [INTERRUPTED] if record.job.state is JobState.CANCELLED else []
    return max([*never_began, *map(code_of, found)], default=1) or 1


def first_bad_code(
    client: Client,
    words: Iterable[Sequence[str]],
    ended: Mapping[int | str, Job],
    records: Mapping[str, Record],
) -> int:
    """Return the exit code of the first of *words* with a job that has not succeeded, or 0.

    Each element of *words* is the list of jobs that one argument names. Its exit code is the highest of its jobs.
    *records* are already known. The history is queried for other jobs only if they did not succeed.

    Raises:
        HistoryUnreachable: A job failed, and the history has not recorded its ending yet.

    """
    for names in words:
        bad = [name for name in names if name in ended and ended[name].state is not JobState.SUCCEEDED]
        if bad:
            return max(worst_code(client, records.get(name) or client.jobs.recorded(ended[name])) for name in bad) or 1
    return 0
