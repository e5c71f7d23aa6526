"""The members of an array: who is where, in which order, and which part of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

import pytest
from factories import make_spec

from gpuqueue.errors import Refused
from gpuqueue.model.array import Array, Indexes, Tally
from gpuqueue.model.job import Job, JobState
from gpuqueue.model.job_spec import Priority
from gpuqueue.model.page import MemberRow, MemberSort, MemberTable, QueueRow, RecordedMember
from gpuqueue.model.sweep import Axis
from gpuqueue.service.web.members import MAX_METRICS, MOST_SORTED, Measured, MemberQuery, Members

AT = datetime(2026, 11, 26, tzinfo=timezone.utc)
SWEEP = Array.sweep((Axis("lr", "1e-3,1e-4,0.1"), Axis("opt", "sgd,adam")))


def array_job(array: Array, state: JobState = JobState.RUNNING, **tally: str) -> Job:
    """Return the job of an array, with the indexes that are left and held, and how many ended in two ways."""
    come = Tally(
        left=Indexes.parse(tally.get("left", "")),
        held=Indexes.parse(tally.get("held", "")),
        ended={each: int(tally.get(each, "0")) for each in ("succeeded", "cancelled")},
    )
    spec = make_spec(array=array)
    return Job(id=10, spec=spec, state=state, submitted_at=AT, tally=come)


def live(index: int) -> QueueRow:
    """Return the row of a member that runs."""
    return QueueRow(
        id=11 + index, label=f"10_{index}", name="a", user="ada", uid=1, state=JobState.RUNNING,
        priority=Priority.NORMAL, asked_priority=Priority.NORMAL, mem_bytes=1, gpus=1, submitted_at=AT, host="nodeA",
        used_bytes=7,
    )  # fmt: skip


def recorded(index: int, state: JobState, **figures: Any) -> RecordedMember:
    """Return what the history has of a member."""
    return RecordedMember(index=index, state=state, **figures)


def rows(job: Job, known: Mapping[int, RecordedMember] | None = None, **query: Any) -> list[MemberRow]:
    """Return the part of the members of *job* that the query asks for; member 1 runs."""
    asked: list[tuple[int, int]] = []

    def read(first: int, last: int) -> Mapping[int, RecordedMember]:
        asked.append((first, last))
        return {each: member for each, member in (known or {}).items() if first <= each <= last}

    found = table(job, read, **query).rows
    assert len(asked) <= 1, "one query, however many members"
    return list(found)


def table(
    job: Job, read: Callable[[int, int], Mapping[int, RecordedMember]], measured: Measured | None = None, **query: Any
) -> MemberTable:
    """Return the table that the query asks for; member 1 runs."""
    members = Members(job=job, live={1: live(1)}, recorded=read, measured=measured)
    return members.table(MemberQuery(**query), AT)


def nobody(_first: int, _last: int) -> Mapping[int, RecordedMember]:
    """Return the members of a history that has none."""
    return {}


def test_each_member_is_where_it_is() -> None:
    """It waits, is held, runs, or has ended; what nobody took was cancelled, or its end is a moment old."""
    job = array_job(SWEEP, left="4", held="5")
    known = {
        0: recorded(0, JobState.SUCCEEDED, peak_bytes=9, duration_s=2.0, exit_code=0),
        1: recorded(1, JobState.STARTING),
        2: recorded(2, JobState.FAILED),
    }
    found = rows(job, known)
    states = ["succeeded", "running", "failed", None, "queued", "held"]
    assert states == [each.state and str(each.state) for each in found]
    assert [("1e-3", "sgd"), ("1e-3", "adam"), ("1e-4", "sgd")] == [each.values for each in found[:3]]
    assert (9, 2.0, 0, 7, "nodeA") == (
        found[0].peak_bytes, found[0].duration_s, found[0].exit_code, found[1].used_bytes, found[1].host,
    )  # fmt: skip
    assert JobState.CANCELLED is rows(array_job(SWEEP, left="4", held="5", cancelled="1"), known)[3].state
    assert JobState.CANCELLED is rows(replace(job, state=JobState.FAILED, tally=None), known)[3].state


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({}, [0, 1, 2, 3, 4, 5]),
        ({"offset": 2, "limit": 2}, [2, 3]),
        ({"reverse": True, "limit": 2}, [5, 4]),
        ({"reverse": True, "offset": 4, "limit": 5}, [1, 0]),
        ({"offset": 6}, []),
        ({"sort": MemberSort.VALUE, "axis": "lr"}, [2, 3, 0, 1, 4, 5]),
        ({"sort": MemberSort.VALUE, "axis": "opt", "limit": 3}, [1, 3, 5]),
        ({"sort": MemberSort.PEAK}, [3, 2, 0, 1, 4, 5]),
        ({"sort": MemberSort.PEAK, "reverse": True}, [2, 3, 0, 1, 4, 5]),
        ({"sort": MemberSort.STATE, "limit": 2}, [4, 1]),
    ],
)
def test_the_order_and_the_part(query: dict[str, Any], expected: list[int]) -> None:
    """Numbers are sorted as numbers, texts as texts, and what is not known is last in both directions."""
    ended = JobState.SUCCEEDED
    known = {2: recorded(2, ended, peak_bytes=30), 3: recorded(3, ended, peak_bytes=4)}
    assert expected == [each.index for each in rows(array_job(SWEEP, left="4"), known, **query)]


def test_members_are_counted_and_filtered_by_state() -> None:
    """The counts are those of all members, whatever is shown. What an ended array does not count was cancelled."""
    job = array_job(SWEEP, left="4", held="5", succeeded="2")
    only = table(job, nobody, states=(JobState.QUEUED, JobState.RUNNING))
    assert ([1, 4], 2) == ([each.index for each in only.rows], only.total)
    assert {"queued": 1, "running": 1, "held": 1, "succeeded": 2} == only.counts
    over = replace(array_job(SWEEP, succeeded="2", cancelled="1"), state=JobState.CANCELLED)
    assert {"succeeded": 2, "cancelled": 3, "running": 1} == table(over, nobody).counts
    assert {"running": 1} == table(replace(over, tally=None), nobody).counts
    with pytest.raises(Refused, match="without a filter"):
        table(array_job(Array(indexes=Indexes.parse("0-999999"))), nobody, states=(JobState.FAILED,))


def test_members_have_their_metrics() -> None:
    """A column for each name, at most so many, and an order by one of them. Nobody else sees any."""
    values = {0: {"loss": 0.5}, 1: {"loss": 0.25, "acc": 0.75}, 4: {f"m{each}": 1.0 for each in range(MAX_METRICS)}}

    def measured(indexes: Collection[int], name: str | None) -> Mapping[int, Mapping[str, float]]:
        return {
            each: {of: had[of] for of in had if name in {None, of}} for each, had in values.items() if each in indexes
        }

    job = array_job(SWEEP, left="2-5")
    found = table(job, nobody, measured, limit=2)
    assert (("acc", "loss"), [{"loss": 0.5}, {"loss": 0.25, "acc": 0.75}]) == (
        found.metrics,
        [each.metrics for each in found.rows],
    )
    assert MAX_METRICS == len(table(job, nobody, measured).metrics)
    ordered = table(job, nobody, measured, sort=MemberSort.METRIC, axis="loss", reverse=True)
    assert [0, 1, 2, 3, 4, 5] == [each.index for each in ordered.rows]
    assert [1, 0] == [
        each.index for each in table(job, nobody, measured, sort=MemberSort.METRIC, axis="loss", limit=2).rows
    ]
    assert ((), [{}, {}]) == (
        table(job, nobody, limit=2).metrics,
        [each.metrics for each in table(job, nobody, limit=2).rows],
    )


def test_a_very_large_array_is_cut_without_listing_it() -> None:
    """A page of a million members reads no others, and another order than that of the index is refused."""
    job = array_job(Array(indexes=Indexes.parse("0-999999")), left="2-999999")
    assert [500_000, 500_001] == [each.index for each in rows(job, offset=500_000, limit=2)]
    with pytest.raises(Refused, match=f"more than {MOST_SORTED} members"):
        rows(job, sort=MemberSort.PEAK)


def test_what_cannot_be_shown_is_said() -> None:
    """A job that is no array, and a value that the sweep does not have."""
    with pytest.raises(Refused, match="no array"):
        rows(replace(array_job(SWEEP), spec=make_spec()))
    with pytest.raises(Refused, match="lr, opt"):
        rows(array_job(SWEEP), sort=MemberSort.VALUE, axis="seed")
