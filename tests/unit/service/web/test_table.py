"""The rows of the queue: chosen, sorted and cut, and only those that the caller may see."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

import pytest
from factories import make_status

from gpuqueue.model.device import Xid
from gpuqueue.model.job import JobState, WaitReason
from gpuqueue.model.job_spec import Priority
from gpuqueue.model.page import ExternalUse, Members, QueueRow, RowSort
from gpuqueue.model.queue_query import QueueQuery
from gpuqueue.queue.drains import Drain, DrainOrigin
from gpuqueue.queue.lease import DeviceReservation, ExternalProcess, Holding
from gpuqueue.service.web.queue_copy import NOTHING, QueueState
from gpuqueue.service.web.rows import device_view, in_words, with_array_states
from gpuqueue.service.web.table import Filters, Seen, Tables
from gpuqueue.text.units import GIB

AT = datetime(2026, 11, 26, tzinfo=timezone.utc)
ALL = Seen(("ada", 1001), everything=True)


def row(job_id: int, **changes: Any) -> QueueRow:
    """Return a row of ada."""
    made = QueueRow(
        id=job_id,
        label=str(job_id),
        name=f"train{job_id}",
        user="ada",
        uid=1001,
        state=JobState.QUEUED,
        priority=Priority.NORMAL,
        asked_priority=Priority.NORMAL,
        mem_bytes=job_id,
        gpus=1,
        submitted_at=AT,
    )
    return replace(made, **changes)


STATE = replace(
    NOTHING,
    rows={
        each.id: each
        for each in (
            row(1, state=JobState.RUNNING, tags=("night", "big"), pool="big", idle_since=AT),
            row(2, user="bob", uid=1002, name="Eval", priority=Priority.HIGH),
            row(3, state=JobState.HELD, note="wait for the data", tags=("night",)),
            row(4, user="ada", uid=1009, mem_bytes=1, gpus=5),
        )
    },
    rows_version=7,
)


def ids(filters: Filters, seen: Seen = ALL, state: QueueState = STATE) -> list[int]:
    """Return the ids of the rows that match."""
    return [each.id for each in Tables().table(state, filters, seen, offset=0, limit=10).rows]


def test_a_row_names_the_devices_of_its_run() -> None:
    """The host alone where they are not known. A job that waits is nowhere."""
    device = make_status().device
    running = {"state": JobState.RUNNING, "host": "vm"}
    rows = (row(1, **running, devices=(device.uuid,)), row(2, **running, devices=("GPU-gone",)), row(3))

    assert [f"vm:{device.index}", "vm", None] == [each.where for each in in_words(rows, [make_status()])]


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        (Filters(), [1, 2, 3, 4]),
        (Filters(query=QueueQuery(user="bob")), [2]),
        (Filters(query=QueueQuery(states=(JobState.HELD, JobState.RUNNING))), [1, 3]),
        (Filters(query=QueueQuery(name="train*")), [1, 3, 4]),
        (Filters(query=QueueQuery(tags=("night",))), [1, 3]),
        (Filters(query=QueueQuery(tags=("night", "big"))), [1]),
        (Filters(query=QueueQuery(pool="big")), [1]),
        (Filters(idle=True), [1]),
        (Filters(text="EVAL"), [2]),
        (Filters(text="the data"), [3]),
        (Filters(text="bo"), [2]),
        (Filters(reverse=True), [4, 3, 2, 1]),
        (Filters(sort=RowSort.MEM, reverse=True), [4, 3, 2, 1]),
        (Filters(sort=RowSort.MEM), [1, 2, 3, 4]),
        (Filters(sort=RowSort.PRIORITY, reverse=True), [2, 1, 3, 4]),
        (Filters(sort=RowSort.STATE), [1, 2, 4, 3]),
        (Filters(sort=RowSort.NAME), [2, 1, 3, 4]),
    ],
)
def test_rows_match_all_filters_and_are_in_order(filters: Filters, expected: list[int]) -> None:
    """Equal rows are in the order of their ids."""
    assert expected == ids(filters)


def test_rows_are_in_the_order_of_claims() -> None:
    """Those that run, then by priority, usage of the user and place among the user's own, then those not in turn."""
    waiting = (
        row(1, state=JobState.RUNNING),
        row(2),
        row(3, front=5),
        row(4, reason=WaitReason.DEPENDENCY),
        row(5, user="bob"),
        row(6, priority=Priority.HIGH),
        row(7, state=JobState.HELD),
        row(8, user="new"),
    )
    state = replace(NOTHING, rows={each.id: each for each in waiting}, rows_version=8, usage={"bob": 10.0, "ada": 20.0})
    assert [1, 6, 8, 5, 3, 2, 4, 7] == ids(Filters(sort=RowSort.PLACE), state=state)


def test_a_caller_sees_counts_and_names_of_what_it_may_see_only() -> None:
    """An account is its name and its uid. Others' users and tags are in no choice of a filter."""
    bobs = Tables().table(STATE, Filters(), Seen(("bob", 1002), everything=False), offset=0, limit=10)
    assert ([2], {"queued": 1}, ("bob",), ()) == ([each.id for each in bobs.rows], bobs.counts, bobs.users, bobs.tags)
    assert [] == ids(Filters(), Seen(None, everything=False))
    assert [1, 3] == ids(Filters(), Seen(("ada", 1001), everything=False))


def test_what_one_caller_asked_is_no_answer_for_another() -> None:
    """The remembered answers of a caller who sees everything are not those of others."""
    tables = Tables()
    everything = tables.table(STATE, Filters(), ALL, offset=0, limit=10)
    own = tables.table(STATE, Filters(), Seen(("bob", 1002), everything=False), offset=0, limit=10)
    nobodys = tables.table(STATE, Filters(), Seen(None, everything=False), offset=0, limit=10)
    assert (4, 1, 0) == (everything.total, own.total, nobodys.total)


def test_a_part_has_the_number_of_all() -> None:
    """A window of rows, as a browser shows them."""
    part = Tables().table(STATE, Filters(), ALL, offset=1, limit=2)
    assert ([2, 3], 4, 1) == ([each.id for each in part.rows], part.total, part.offset)


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ([JobState.RUNNING, JobState.HELD], (JobState.RUNNING, None, 1)),
        ([JobState.QUEUED, JobState.HELD], (JobState.QUEUED, WaitReason.RETRY, 0)),
        ([JobState.HELD], (JobState.HELD, WaitReason.HELD, 0)),
        ([], (JobState.RUNNING, None, 0)),
    ],
)
def test_an_array_has_the_state_that_its_members_have(
    members: list[JobState], expected: tuple[JobState, WaitReason | None, int]
) -> None:
    """The store calls an array running until its last member has ended. Members that run are counted."""
    array = row(10, state=JobState.RUNNING, members=Members(total=9, waiting=3, held=0, ended=0, failed=0))
    rows = {10: array, **{11 + n: row(11 + n, state=state, array_id=10) for n, state in enumerate(members)}}
    found = with_array_states(rows)[10]
    assert expected == (found.state, found.reason, found.members and found.members.running)


def test_a_job_on_a_device_that_it_was_not_given_is_apart_from_its_user() -> None:
    """What else the user has there belongs to no job."""
    processes = [
        ExternalProcess(pid=pid, held_bytes=held, user="ada", command=None, job_id=job_id)
        for pid, held, job_id in ((1, 5, 7), (2, 3, None), (3, 1, 7))
    ]

    rows = {7: row(7, label="4_2")}
    view = device_view(make_status(external_processes=tuple(processes)), rows, AT, silent_after_s=9)

    assert view.external == (
        ExternalUse(user="ada", processes=2, held_bytes=6, job_id=7, label="4_2"),
        ExternalUse(user="ada", processes=1, held_bytes=3),
    )


def test_a_device_says_which_errors_its_driver_reported() -> None:
    """The page shows the phrases as they are."""
    status = make_status(memory_errors=1, xids=(Xid(13, AT),))

    counted, xid = device_view(status, {}, AT, silent_after_s=9).errors

    assert counted == "1 memory error that could not be corrected, since the driver started"
    assert xid.startswith("Xid 13, an error in a program's computation, at ")


def test_a_device_says_why_no_job_gets_its_free_memory() -> None:
    """Regression: beside "0B free" the page showed a white bar."""

    def closed(**changes: Any) -> str | None:
        return device_view(make_status(**changes), {}, AT, silent_after_s=9).closed

    run = Holding(job_id=3, lease_bytes=GIB, observed_bytes=0)
    assert closed() is None
    assert "it is drained" == closed(drains=(Drain(origin=DrainOrigin.PERSON, why="a fan", by="ann"),))
    assert "it runs as many jobs as it may: 1" == closed(slots=1, holdings=(run,))
    assert "it is reserved for job 7" == closed(reservation=DeviceReservation(job_id=7, since=None))
    assert "its worker is silent" == closed(seen_s_ago=10.0)
    assert "its use by others is unknown" == closed(external_bytes=None)
    assert "one job has it for itself" == closed(exclusive=True, holdings=(run,))
