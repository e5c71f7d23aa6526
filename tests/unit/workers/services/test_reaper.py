"""What keeps the reaper going."""

from __future__ import annotations

import threading
from functools import partial

import pytest

from gpuqueue.clock import SystemClock
from gpuqueue.errors import StoreUnreachable
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.settings.settings import Settings
from workers.services.reaper import Reaper


class Steps:
    """A reaper of which one step fails, and how often each was taken."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, failing: str, error: Exception) -> None:
        self.taken: list[str] = []
        settings = Settings.load({"GPUQUEUE_BEAT": "1s"})
        self.reaper = Reaper(settings, JobQueue("unix:///nowhere"), SystemClock())
        for name in ("keep_to_policy", "reap", "look_ahead"):
            raised = error if name == failing else None
            monkeypatch.setattr(self.reaper, name, partial(self.take, name, raised))

    def take(self, name: str, error: Exception | None) -> None:
        """Take a step."""
        self.taken.append(name)
        if error is not None:
            raise error


@pytest.mark.parametrize("failing", ["keep_to_policy", "reap", "look_ahead"])
def test_an_answer_that_makes_no_sense_silences_no_reaper(monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    """In the recorder nobody starts it again: after one such answer no expired lease was taken back any more."""
    steps = Steps(monkeypatch, failing, ValueError("what the store said"))
    stopping = threading.Event()
    monkeypatch.setattr(stopping, "wait", lambda _s: len(steps.taken) >= 6 and stopping.set())

    steps.reaper.loop(stopping)

    assert ["keep_to_policy", "reap", "look_ahead"] * 2 == steps.taken


def test_a_store_that_is_away_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each further question would wait as long for no answer."""
    steps = Steps(monkeypatch, "keep_to_policy", StoreUnreachable("away"))

    steps.reaper.tick()

    assert ["keep_to_policy"] == steps.taken
