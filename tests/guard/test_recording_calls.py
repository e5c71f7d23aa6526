"""Tests that bound the function calls that recording a job costs in Python, independent of the machine's load."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest
from factories import make_spec
from guard.bounds import Bound
from outbox import Outbox

from gpuqueue.codec.request import encode_spec
from gpuqueue.model.array import Array, Member
from gpuqueue.model.event import Act
from gpuqueue.model.job import JobState
from gpuqueue.model.run import Ending

pytestmark = pytest.mark.parametrize("backend", ["sqlite"], indirect=True)
JOBS = 50
ENVIRONMENT = {f"VARIABLE_{number}": "a value of a usual length" for number in range(40)}
#: Function calls, C functions included, for a job's whole life in one batch, for each further job of that batch.
#: Measured on Python 3.11: 637, of these 64 for the environment, which has a table of its own. It was 1114 when each
#: value of the request, and of each row, was checked by itself.
WHOLE_LIFE = Bound(320, 690)
#: The same when the job's four steps are in four batches: its row is then changed three times. Measured: 711, and 1136
#: before.
STEP_BY_STEP = Bound(360, 770)
#: Calls for the claim that turns a member of an array into its own job. Measured: 233, of which 30 find the program for
#: learned memory. It was 1154 when the array, which has the same environment, was read again for each member.
MEMBER = Bound(100, 250)


def test_a_job_takes_as_many_calls_as_agreed(outbox: Outbox) -> None:
    """A job whose whole life is in one batch, as short jobs have it, takes no more calls than agreed."""
    WHOLE_LIFE.hold(each_takes(outbox, lives, outbox.record), "calls for a job's life in one batch")


def test_a_step_takes_as_many_calls_as_agreed(outbox: Outbox) -> None:
    """A job whose four steps are in four batches, as long jobs have it, takes no more calls than agreed."""

    def step_by_step() -> None:
        reported = outbox.reported
        for act in (Act.SUBMIT, Act.CLAIM, Act.STARTED, Act.FINISH):
            outbox.reported = [event for event in reported if event.act is act]
            outbox.record()

    STEP_BY_STEP.hold(each_takes(outbox, lives, step_by_step), "calls for a job's life in four batches")


def test_a_member_takes_as_many_calls_as_agreed(outbox: Outbox) -> None:
    """The claim of an array member takes no more calls than agreed: the shared request is read once."""
    outbox.submit(1, make_spec(env=ENVIRONMENT, argv=("train", "{index}"), array=Array.parse("0-999")))
    outbox.record()

    def claims(outbox: Outbox, first: int, jobs: int) -> None:
        for index in range(first, first + jobs):
            where = {"of": "1", "index": str(index), "left": ""}
            outbox.claim(Member(1, index).id, **where)

    MEMBER.hold(each_takes(outbox, claims, outbox.record), "calls for a claim of a member")


def lives(outbox: Outbox, first: int, jobs: int) -> None:
    """Put the lives of *jobs* successful jobs, from the id *first* on, into the outbox."""
    payload = encode_spec(make_spec(env=ENVIRONMENT))
    for job_id in range(first, first + jobs):
        outbox.report(job_id, Act.SUBMIT, JobState.QUEUED, attempt=0, spec=payload)
        outbox.claim(job_id)
        outbox.started(job_id)
        outbox.finish(job_id, Ending.from_status(0), JobState.SUCCEEDED)


def each_takes(outbox: Outbox, report: Callable[[Outbox, int, int], None], record: Callable[[], None]) -> float:
    """Return the calls that each further job in a batch takes.

    The calls of the batch itself do not count.
    """
    found = []
    first = 10
    for jobs in (1, JOBS, 2 * JOBS):  # the first batch fills the caches
        report(outbox, first, jobs)
        found.append(calls(record))
        first += jobs
    return (found[2] - found[1]) / JOBS


def calls(act: Callable[[], None]) -> int:
    """Return the number of functions, of Python and of C, that are called while *act* runs."""
    made = 0

    def note(_frame: object, kind: str, _of: object) -> None:
        nonlocal made
        made += kind in {"call", "c_call"}

    sys.setprofile(note)
    try:
        act()
    finally:
        sys.setprofile(None)
    return made
