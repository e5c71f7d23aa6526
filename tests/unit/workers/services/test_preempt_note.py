"""Tests of the note that a preempted run gets."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import cast

import pytest

from gpuqueue.queue.lease import PreemptRequest
from workers.measure.active_runs import LiveRun
from workers.services.heartbeats import ask_preempt

REQUEST = PreemptRequest(by=2, left_s=60.0)
NOTE = "preemption requested for job 2, in 1:00 at the latest"


class Directory:
    """A run directory whose run ends, and reports its notes, as soon as it is asked."""

    def __init__(self, *, answer: bool | OSError) -> None:
        self.answer, self.notes, self.reported = answer, deque[str](), list[str]()

    def ask_preempt(self, by: int, left_s: float) -> bool:
        """Report the notes of the run, and answer."""
        assert (by, left_s) == (REQUEST.by, REQUEST.left_s)
        if self.answer is True:
            self.reported += self.notes
            self.notes.clear()
        if isinstance(self.answer, OSError):
            raise self.answer
        return self.answer

    @property
    def run(self) -> LiveRun:
        """Return the run of this directory."""
        return cast("LiveRun", SimpleNamespace(directory=self, notes=self.notes))


def test_a_run_that_ends_at_once_has_the_note() -> None:
    """The note was added after the request. If the run had ended by then, nobody saw it."""
    directory = Directory(answer=True)

    ask_preempt(directory.run, REQUEST)

    assert ([NOTE], []) == (directory.reported, list(directory.notes))


def test_a_repeated_request_adds_no_note() -> None:
    """Each heartbeat repeats the request."""
    directory = Directory(answer=False)

    ask_preempt(directory.run, REQUEST)

    assert not directory.notes


def test_a_request_that_cannot_be_written_adds_no_note() -> None:
    """The next heartbeat tries again."""
    directory = Directory(answer=OSError("no space left"))

    with pytest.raises(OSError, match="no space left"):
        ask_preempt(directory.run, REQUEST)

    assert not directory.notes
