"""One line of output for a change to an array or to a part of it."""

from __future__ import annotations

import click

from gpuqueue.client.changes import Change, Elsewhere
from gpuqueue.errors import Refused
from gpuqueue.model.array import Indexes
from gpuqueue.model.job import JobState
from gpuqueue.model.job_ref import JobName

#: Most index ranges that a line names.
RANGES_NAMED = 12


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
