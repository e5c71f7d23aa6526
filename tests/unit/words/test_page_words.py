"""The words beside the codes of the values that the page gets."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest
from factories import make_spec

from gpuqueue.codec.wire import to_plain
from gpuqueue.model.dependencies import Condition
from gpuqueue.model.history_query import FoldedRow
from gpuqueue.model.job import Job, JobState
from gpuqueue.model.job_spec import Priority
from gpuqueue.model.page import MemberRow, Members, Related
from gpuqueue.model.run import Ending, EndingKind, Record, Run
from gpuqueue.queue.explanation import Explanation, Obstacle, Start, Verdict
from gpuqueue.service.web.queue_copy import place_of

NOW = datetime(2026, 11, 26, tzinfo=timezone.utc)


def test_values_are_sent_with_their_words() -> None:
    """An array, its row in the history, one of its members, a job that another one waits for."""
    members = Members(total=10, waiting=2, held=0, ended=5, failed=1, running=2)
    assert "5 of 10 members ended, 1 failed, 2 running, 2 waiting" == to_plain(members)["words"]
    job = Job(id=7, spec=make_spec(), state=JobState.FAILED, submitted_at=NOW)
    row = FoldedRow(record=Record(job=job), last_id=9, members={JobState.SUCCEEDED: 8, JobState.FAILED: 2})
    assert "2 failed, 8 succeeded" == to_plain(row)["words"]
    rows = (
        MemberRow(id=8, index=1, state=JobState.FAILED, exit_code=3, ending=EndingKind.EXITED),
        MemberRow(id=9, index=2, state=JobState.FAILED, ending=EndingKind.SIGNALLED),
        MemberRow(id=10, index=3, state=JobState.QUEUED),
    )
    assert ["exit 3", "signalled", ""] == [to_plain(each)["ended"] for each in rows]
    assert ["must have succeeded", ""] == [
        to_plain(Related(id=1, condition=each))["must"] for each in (Condition.OK, None)
    ]


def test_a_record_says_how_it_ended_without_details() -> None:
    """By its last run, or by why the queue ended it. A list has no room for a detail."""
    job = Job(id=7, spec=make_spec(), state=JobState.CANCELLED, submitted_at=NOW, because="dependency 3")
    run = Run(
        job_id=7, attempt=1, token="", host="a", worker="w", devices=(), claimed_at=NOW,
        ending=Ending.refused("no such directory"),
    )  # fmt: skip
    assert "refused: no such directory" == to_plain(run)["ending"]["words"]
    assert ["refused", "dependency 3"] == [to_plain(Record(job=job, runs=each))["outcome"] for each in ((run,), ())]
    assert "killed by SIGKILL" == Ending.from_status(-9).brief


@pytest.mark.parametrize(("rivals", "runs"), [(0, (3,)), (7397, ())])
def test_a_place_promises_no_room_that_others_may_take(rivals: int, runs: tuple[int, ...]) -> None:
    """Regression: "7397 jobs before it; room by 19:38" was the room for the first of them."""
    start = Start(devices=("GPU-0",), blockers=(3,), room_ms=60_000, rivals=rivals, at_ms=None if rivals else 60_000)
    found = Explanation(job_id=9000, state=JobState.QUEUED, priority=Priority.NORMAL, start=start, own_before=rivals)
    place = place_of(found)
    assert (runs, rivals > 0) == (place.runs, place.start_at is None)


def test_a_place_says_what_goes_before_the_job() -> None:
    """Or that a device is reserved for it, or that no device can ever run it."""

    def place(obstacle: Obstacle, reserved_for: int | None = None, higher: int = 0) -> str:
        device = Verdict(
            device="GPU-0", host="a", obstacle=obstacle, available_bytes=0, capacity_bytes=0, total_bytes=0,
            reserved_for=reserved_for,
        )  # fmt: skip
        found = Explanation(job_id=7, state=JobState.QUEUED, priority=Priority.NORMAL, devices=(device,), higher=higher)
        return place_of(found).words

    assert "nobody before it" == place(Obstacle.MEMORY)
    assert "3 jobs before it" == place(Obstacle.MEMORY, higher=3)
    assert "a device is reserved for it" == place(Obstacle.MEMORY, reserved_for=7)
    assert "no device here can ever run it" == place(Obstacle.KIND)
