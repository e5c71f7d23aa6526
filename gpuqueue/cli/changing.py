"""Changes of mind about several jobs at once: ``cancel``, ``hold``, ``release``, ``move``."""

from __future__ import annotations

import sys
from typing import Any

import click

from gpuqueue.array import Indexes
from gpuqueue.cli.acting import Selection, act_on, chosen, ids, on_each
from gpuqueue.cli.once import Once
from gpuqueue.client.changing import Changing, Elsewhere
from gpuqueue.client.choosing import Stand
from gpuqueue.errors import BadRequest, Refused
from gpuqueue.job import JobState
from gpuqueue.jobname import JobName

#: Of a part of an array so many ranges are named in a line: it once took thousands of characters.
RANGES_NAMED = 12


@click.command(cls=Once)
@chosen(stands=True)
def cancel(**words: Any) -> None:
    """End jobs (12), all from one to another (14-19), arrays (17), or parts of them (17_2, 17_5-9).

    A waiting one ends at once, a running one with all its processes (TERM, then KILL). With a filter it shows what it
    found, and asks.

    \b
    Examples:
      gpuqueue cancel 12 14-19
      gpuqueue cancel 17_5-9
      gpuqueue cancel --name 'sweep*' --state waiting
      gpuqueue cancel --all --yes
    """  # noqa: D301 - \b is click's mark for lines to keep
    act_on("cancel", Selection(**words), _cancel)


@click.command(cls=Once)
@chosen("queued")
def hold(**words: Any) -> None:
    """Keep waiting jobs, arrays or parts of them from being started.

    \b
    Examples:
      gpuqueue hold 12 14-19
      gpuqueue hold --name 'sweep*'
    """  # noqa: D301 - \b is click's mark for lines to keep
    act_on("hold", Selection(stand=None, **words), _hold, stand=Stand.QUEUED)


@click.command(cls=Once)
@chosen("held")
def release(**words: Any) -> None:
    """Let held jobs, arrays or parts of them be started again, at their old place in the order.

    \b
    Examples:
      gpuqueue release 12 14-19
      gpuqueue release --all
    """  # noqa: D301 - \b is click's mark for lines to keep
    act_on("release", Selection(stand=None, **words), _release, stand=Stand.HELD)


@click.command()
@ids("queued", "held")
@click.option("--front", is_flag=True, help="Before all your other jobs that wait.")
@click.option("--undo", is_flag=True, help="Back to the place by arrival.")
def move(ids: tuple[str, ...], *, front: bool, undo: bool) -> None:
    """Let waiting jobs go before all others of your own, in the order in which you name them.

    Among users it changes nothing: who has used less goes first, as ever; and a job stays on its level.

    \b
    Examples:
      gpuqueue move 17 --front
      gpuqueue move 19 17-18 --front
      gpuqueue move 17 --undo
    """  # noqa: D301 - \b is click's mark for lines to keep
    if not ids or front == undo:
        raise BadRequest("say which jobs, and where to: gpuqueue move 17 --front, or --undo")
    with Changing() as client:

        def act(client: Changing, name: str) -> str:
            place = "before all others of its user" if front else "back at its place by arrival"
            return f"{_line(name, client.move(name, front=front))}, {place}"

        sys.exit(on_each(client, ids, act, last_first=True))


def _cancel(client: Changing, name: str) -> str:
    missed, before = _Missed(), [False]
    state = client.cancel(name, missed=missed, already=lambda: before.append(True))
    return f"job {name} was cancelled already" if before[-1] else missed.line("cancel", name, state)


def _hold(client: Changing, name: str) -> str:
    missed = _Missed()
    return missed.line("hold", name, client.hold(name, missed=missed))


def _release(client: Changing, name: str) -> str:
    missed, notes = _Missed(), [""]
    state = client.release(name, missed=missed, not_held=lambda: notes.append(" (it was not held)"))
    return missed.line("release", name, state) + notes[-1]


class _Missed:
    """Which members of an array a change of mind did not reach, and where they stand."""

    def __init__(self) -> None:
        self._found: list[tuple[Indexes, JobState | Elsewhere]] = []

    def __call__(self, indexes: Indexes, stands: JobState | Elsewhere) -> None:
        self._found.append((indexes, stands))

    def line(self, verb: str, word: str, state: JobState) -> str:
        """Return what to say of what was done; what was named and could not be done is told as what went wrong.

        Raises:
            Refused: of a part, something could not be done; what was is said by then.

        """
        name = JobName.parse(word)
        if not self._found:
            return _line(word, state)
        if name.part is None:  # all of it means what is there
            return _line(word, state) + (f", but {', '.join(self._told(name))}" if verb == "hold" else "")
        not_these = {index for indexes, _ in self._found for index in indexes}
        done = _line(_called(name.id, Indexes.of(index for index in name.part if index not in not_these)), state)
        told = self._told(name)
        if not told:
            return done
        click.echo(done)
        raise Refused(f"{', '.join(told)}: there is nothing to {verb}")

    def _told(self, name: JobName) -> list[str]:
        """Return what to tell of the members that were not reached, but for what a range may pass over."""
        return [
            f"{_called(name.id, indexes)} {_are(stands, len(indexes))}"
            for indexes, stands in self._found
            if stands is not Elsewhere.PASSED_OVER
        ]


def _called(array_id: int, indexes: Indexes) -> str:
    first = Indexes(indexes.ranges[:RANGES_NAMED])
    more = len(indexes) - len(first)
    return f"{JobName(array_id, first)}" + (f" and {more} more" if more else "")


def _are(stands: JobState | Elsewhere, number: int) -> str:
    if number == 1:
        return f"is {stands}"
    return "are no members" if stands is Elsewhere.NO_MEMBER else f"are {stands}"


def _line(name: str, state: object) -> str:
    return f"job {name}: {state}"
