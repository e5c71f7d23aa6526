"""The sentence for each reason of a job that waits."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone

from gpuqueue.model.job import JobState, WaitReason
from gpuqueue.model.job_spec import Priority
from gpuqueue.model.page import QueueRow
from gpuqueue.text.units import GIB
from gpuqueue.words.waiting import GOALS, waits_because

ROW = QueueRow(
    id=7, label="7", name="train", user="ada", uid=1, state=JobState.QUEUED, priority=Priority.NORMAL,
    asked_priority=Priority.NORMAL, mem_bytes=20 * GIB, gpus=2,
    submitted_at=datetime(2026, 11, 26, tzinfo=timezone.utc),
)  # fmt: skip


def test_each_reason_has_a_sentence_and_a_goal() -> None:
    """A new reason must not reach people as a word of the program.

    Regression: `run --after 12` said only `job 13 waits; nobody before it`, because six reasons had no words.
    """
    for reason in WaitReason:
        assert GOALS[reason].startswith(("for ", "to "))
        words = waits_because(replace(ROW, reason=reason))
        assert words is not None
        assert "_" not in words


def test_a_lack_of_memory_names_what_the_job_needs() -> None:
    """Also of a job that wants a whole device, or that has no reason yet, or does not wait."""
    assert "needs 20G on 2 devices of one host; no room now, or other jobs go first" == waits_because(
        replace(ROW, reason=WaitReason.MEMORY)
    )
    whole = replace(ROW, reason=WaitReason.MEMORY, whole=True)
    assert "no device is empty now, or other jobs go first" == waits_because(whole)
    assert "its turn comes next" == waits_because(ROW)
    assert waits_because(replace(ROW, state=JobState.RUNNING)) is None
