"""One line of output for a change to an array or to a part of it."""

from __future__ import annotations

import click

from gpuqueue.client.changes import Elsewhere
from gpuqueue.errors import Refused
from gpuqueue.model.array import Indexes
from gpuqueue.model.job import JobState
from gpuqueue.model.job_ref import JobName

#: Most index ranges that a line names.
RANGES_NAMED = 12


class Missed:
    """Collects the members of an array that a change skipped, and their states."""

    def __init__(self) -> None:
        self._found: list[tuple[Indexes, JobState | Elsewhere]] = []

    def __call__(self, indexes: Indexes, stands: JobState | Elsewhere) -> None:
        """Add members that the change skipped, and their state."""
        self._found.append((indexes, stands))

    def line(self, verb: str, word: str, state: JobState) -> str:
        """Return the line about the change.

        Raises:
            Refused: A part of an array was named, and the change skipped some of its members. The line about the others
                is printed before.

        """
        name = JobName.parse(word)
        if not self._found:
            return job_line(word, state)
        if name.part is None:  # skipped members of a whole array are no error
            return job_line(word, state) + (f", but {', '.join(self._reported(name))}" if verb == "hold" else "")
        not_these = {index for indexes, _ in self._found for index in indexes}
        done = job_line(_called(name.id, Indexes.of(index for index in name.part if index not in not_these)), state)
        reported = self._reported(name)
        if not reported:
            return done
        click.echo(done)
        raise Refused(f"{', '.join(reported)}: there is nothing to {verb}")

    def _reported(self, name: JobName) -> list[str]:
        """Return phrases about the skipped members, without those that a range may skip."""
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
    """Return the line about a changed job."""
    return f"job {name}: {state}"
