"""What a change did to an array or to a part of it, in one line."""

from __future__ import annotations

import click

from gpuqueue.client.changing import Elsewhere
from gpuqueue.errors import Refused
from gpuqueue.model.array import Indexes
from gpuqueue.model.job import JobState
from gpuqueue.model.job_ref import JobName

#: Of a part of an array so many ranges are named in a line: it once took thousands of characters.
RANGES_NAMED = 12


class Missed:
    """Which members of an array a change of mind did not reach, and where they stand."""

    def __init__(self) -> None:
        self._found: list[tuple[Indexes, JobState | Elsewhere]] = []

    def __call__(self, indexes: Indexes, stands: JobState | Elsewhere) -> None:
        """Add members that the change did not reach, and the state that they are in."""
        self._found.append((indexes, stands))

    def line(self, verb: str, word: str, state: JobState) -> str:
        """Return what to say of what was done; what was named and could not be done is told as what went wrong.

        Raises:
            Refused: of a part, something could not be done; what was is said by then.

        """
        name = JobName.parse(word)
        if not self._found:
            return job_line(word, state)
        if name.part is None:  # all of it means what is there
            return job_line(word, state) + (f", but {', '.join(self._told(name))}" if verb == "hold" else "")
        not_these = {index for indexes, _ in self._found for index in indexes}
        done = job_line(_called(name.id, Indexes.of(index for index in name.part if index not in not_these)), state)
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


def job_line(name: str, state: object) -> str:
    """Return the line about a job that was changed."""
    return f"job {name}: {state}"
