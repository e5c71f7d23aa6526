"""Tests that the reaper continues after errors."""

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
    """A reaper with one failing step that records every step."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, failing: str, error: Exception, **environ: str) -> None:
        self.taken: list[str] = []
        settings = Settings.load({"GPUQUEUE_HEARTBEAT": "1s", **environ})
        self.reaper = Reaper(settings, JobQueue("unix:///nowhere"), SystemClock())
        for name in ("send_policy", "reap", "serve_long_waits"):
            raised = error if name == failing else None
            monkeypatch.setattr(self.reaper, name, partial(self.take, name, raised))

    def take(self, name: str, error: Exception | None) -> None:
        """Record a step, and raise its error."""
        self.taken.append(name)
        if error is not None:
            raise error


@pytest.mark.parametrize("failing", ["send_policy", "reap", "serve_long_waits"])
def test_an_answer_that_makes_no_sense_silences_no_reaper(monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    """The reaper continues after an unexpected error, because the recorder does not restart it.

    Regression: after one such answer no expired lease was reaped any more.
    """
    steps = Steps(monkeypatch, failing, ValueError("what the store said"))
    stopping = threading.Event()
    monkeypatch.setattr(stopping, "wait", lambda _s: len(steps.taken) >= 6 and stopping.set())

    steps.reaper.loop(stopping)

    assert ["send_policy", "reap", "serve_long_waits"] * 2 == steps.taken


def test_a_joined_host_leaves_the_rules_of_the_site_to_it_and_reaps(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not have the rules. Regressions: its defaults replaced them, and each pilot read all devices.

    Expired leases it still reaps: with its own connection to the store it is the only one if the recorder is down.
    """
    steps = Steps(monkeypatch, "none", ValueError(), GPUQUEUE_SERVICE_URL="https://gpu.example.org:8443")

    steps.reaper.tick()

    assert ["reap"] == steps.taken


def test_a_store_that_is_away_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a failed connection the other steps are skipped, because each would wait as long."""
    steps = Steps(monkeypatch, "send_policy", StoreUnreachable("away"))

    steps.reaper.tick()

    assert ["send_policy"] == steps.taken
