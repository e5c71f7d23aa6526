"""The commands that change jobs: ``cancel``, ``hold``, ``release``, ``extend``, ``move``, ``tag`` and ``note``."""

from __future__ import annotations

import sys
from typing import Any

import click

from gpuqueue.cli.completion.candidates import live_ids
from gpuqueue.cli.options.job_id import one_job_argument
from gpuqueue.cli.options.job_selection import Selection, act_on, chosen, ids, on_each
from gpuqueue.cli.options.once import Once
from gpuqueue.client import Client
from gpuqueue.client.changes import Change, Elsewhere
from gpuqueue.client.selection import StateFilter, Which
from gpuqueue.errors import BadRequest, Refused
from gpuqueue.model.array import Indexes
from gpuqueue.model.job import JobState
from gpuqueue.model.job_ref import JobName
from gpuqueue.text.sanitize import plain
from gpuqueue.text.units import format_duration

job_id_argument = click.argument("job_id", metavar="ID", shell_complete=live_ids())
#: Most index ranges that a line names.
RANGES_NAMED = 12


@click.command(cls=Once)
@chosen(with_state=True)
def cancel(**words: Any) -> None:
    """Cancel jobs (12), ranges of jobs (14-19), arrays (17), or members of arrays (17_2, 17_5-9).

    A waiting job ends at once. All processes of a running job get TERM, then KILL. With filter options the command
    lists the matching jobs and asks for confirmation.

    \b
    Examples:
      gpuqueue cancel 12 14-19
      gpuqueue cancel 17_5-9
      gpuqueue cancel --name 'sweep*' --state waiting
      gpuqueue cancel --all --yes
    """  # noqa: D301 - \b is click's mark for lines to keep
    act_on("cancel", Selection(**words), cancelled)


def cancelled(client: Client, name: str) -> str:
    """Cancel the job *name* and return what became of it."""
    change = client.jobs.cancel(name)
    return f"job {name} was cancelled already" if change.already else change_line("cancel", name, change)


@click.command(cls=Once)
@chosen("queued")
def hold(**words: Any) -> None:
    """Keep waiting jobs, arrays or members of arrays from starting.

    \b
    Examples:
      gpuqueue hold 12 14-19
      gpuqueue hold --name 'sweep*'
    """  # noqa: D301 - \b is click's mark for lines to keep
    act_on("hold", Selection(state=None, **words), _hold, state=StateFilter.QUEUED)


def _hold(client: Client, name: str) -> str:
    return change_line("hold", name, client.jobs.hold(name))


@click.command(cls=Once)
@chosen("held")
def release(**words: Any) -> None:
    """Let held jobs, arrays or members of arrays start, at their old place in the order.

    \b
    Examples:
      gpuqueue release 12 14-19
      gpuqueue release --all
    """  # noqa: D301 - \b is click's mark for lines to keep
    act_on("release", Selection(state=None, **words), _release, state=StateFilter.HELD)


def _release(client: Client, name: str) -> str:
    change = client.jobs.release(name)
    if change.already:
        return change_line("release", name, change) + " (it was not held)"
    was = f"; it was held: {plain(change.because)}" if change.because else ""
    return change_line("release", name, change) + was


@click.command()
@one_job_argument()
@click.argument("time", metavar="TIME")
def extend(job_id: str, time: str) -> None:
    """Add TIME to the time limit of a job that waits or runs. A run goes on without a break.

    An owner may add as much as the site permits (setting extend), an administrator any time.

    \b
    Examples:
      gpuqueue extend 12 2h
    """  # noqa: D301 - \b is click's mark for lines to keep
    with Client() as client:
        job = client.jobs.extend(job_id, time)
        click.echo(f"{job_line(str(job.id), job.state)}, at most {format_duration(job.spec.time_limit_s or 0)} now")


@click.command()
@ids("queued", "held")
@click.option("--front", is_flag=True, help="Move before all your other waiting jobs.")
@click.option("--undo", is_flag=True, help="Move back to the place by arrival.")
def move(ids: tuple[str, ...], *, front: bool, undo: bool) -> None:
    """Move waiting jobs before all your other jobs, in the order in which you name them.

    The order between users and the priority of the job do not change.

    \b
    Examples:
      gpuqueue move 17 --front
      gpuqueue move 19 17-18 --front
      gpuqueue move 17 --undo
    """  # noqa: D301 - \b is click's mark for lines to keep
    if not ids or front == undo:
        raise BadRequest("name the jobs, and the direction: gpuqueue move 17 --front, or --undo")
    with Client() as client:

        def act(client: Client, name: str) -> str:
            place = "before all others of its user" if front else "back at its place by arrival"
            return f"{job_line(name, client.jobs.move(name, front=front))}, {place}"

        sys.exit(on_each(client, ids, act, last_first=True))


@click.command()
@job_id_argument
@click.argument("words", metavar="WORD…", nargs=-1, required=True)
@click.option("-r", "--remove", is_flag=True, help="Remove the tags.")
def tag(job_id: str, words: tuple[str, ...], *, remove: bool) -> None:
    """Add tags to a job in any state. gpuqueue history --tag WORD finds it.

    ID may be a range of ids (12-19), an array (17) or a member of one (17_2).

    \b
    Examples:
      gpuqueue tag 12 baseline paper
      gpuqueue tag 12-19 ablation
      gpuqueue tag 12 paper --remove
    """  # noqa: D301 - \b is click's mark for lines to keep

    def act(client: Client, name: str) -> str:
        before = client.jobs.get(name).tags
        client.jobs.tag(name, *words, remove=remove)
        return f"job {name}: {_changed(words, before, remove=remove)}"

    with Client() as client:
        sys.exit(on_each(client, [job_id], act, which=Which.ANY))


def _changed(words: tuple[str, ...], before: tuple[str, ...], *, remove: bool) -> str:
    """Return in words which tags changed and which did not; *before* are the job's earlier tags."""
    new = [word for word in words if (word in before) is remove]
    old = [word for word in words if word not in new]
    reported = [f"{'no longer tagged' if remove else 'tagged'} {' '.join(new)}"] if new else []
    return ", ".join([*reported, *([f"{'never' if remove else 'already'} tagged {' '.join(old)}"] if old else [])])


@click.command()
@job_id_argument
@click.argument("text", metavar="TEXT")
def note(job_id: str, text: str) -> None:
    """Write a note on a job in any state. A new note replaces the old one.

    An empty text removes the note. ID may be a range of ids (12-19), an array (17) or a member of one (17_2).

    \b
    Examples:
      gpuqueue note 12 "diverges after epoch 3: learning rate too high"
      gpuqueue note 12 ""
    """  # noqa: D301 - \b is click's mark for lines to keep

    def act(client: Client, name: str) -> str:
        client.jobs.note(name, text)
        return f"job {name}: {'noted' if text else 'nothing noted'}"

    with Client() as client:
        sys.exit(on_each(client, [job_id], act, which=Which.ANY))


def change_line(verb: str, word: str, change: Change) -> str:
    """Return the line about a change to the job, the array or the part of an array that *word* names.

    Raises:
        Refused: A part of an array was named, and the change skipped some of its members. The line about the others is
            printed before.

    """
    name = JobName.parse(word)
    if not change.missed:
        return job_line(word, change.state)
    # A range may skip members.
    reported = [
        f"{_called(name.id, indexes)} {_are(state, len(indexes))}"
        for state, indexes in change.missed
        if state is not Elsewhere.PASSED_OVER
    ]
    if name.part is None:  # skipped members of a whole array are no error
        return job_line(word, change.state) + (f", but {', '.join(reported)}" if verb == "hold" else "")
    not_these = {index for _, indexes in change.missed for index in indexes}
    others = Indexes.of(index for index in name.part if index not in not_these)
    done = job_line(_called(name.id, others), change.state)
    if not reported:
        return done
    click.echo(done)
    raise Refused(f"{', '.join(reported)}: there is nothing to {verb}")


def _called(array_id: int, indexes: Indexes) -> str:
    first = Indexes(indexes.ranges[:RANGES_NAMED])
    more = len(indexes) - len(first)
    return f"{JobName(array_id, first)}" + (f" and {more} more" if more else "")


def _are(state: JobState | Elsewhere, number: int) -> str:
    if number == 1:
        return f"is {state}"
    return "are no members" if state is Elsewhere.NO_MEMBER else f"are {state}"


def job_line(name: str, state: object) -> str:
    """Return the line about a changed job."""
    return f"job {name}: {state}"
