"""The line about a host without heartbeats."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from factories import make_status

from gpuqueue.cli.output.silent_hosts import kept_until, silent_lines
from gpuqueue.queue.drains import Drain, DrainOrigin
from gpuqueue.settings.settings import Settings

CARD = make_status(host="h1")


@pytest.fixture
def settings() -> Settings:
    """Return settings with a store across a network: jobs are kept for 62 minutes."""
    return Settings.load({"GPUQUEUE_REDIS_URL": "redis://store:6379", "GPUQUEUE_STATE_DIR": "/nowhere"})


def test_a_silent_host_is_named_once_with_the_time_until_which_its_jobs_are_kept(settings: Settings) -> None:
    """A silent host gets one line, however many devices it has.

    Nobody could see before how long its jobs wait for it.
    """
    silent = replace(CARD, host="h1", seen_s_ago=360.0, jobs=(7,), drains=())

    (line,) = silent_lines([silent, silent], settings)

    assert re.fullmatch(r"host h1 has been silent for 6 min: its jobs are kept until .*\d\d:\d\d", line)
    assert [line] == list(silent_lines([silent], settings, 7))
    assert [] == list(silent_lines([silent], settings, 8))


def test_other_devices_get_no_line(settings: Settings) -> None:
    """No line is shown for a device that answers, that runs nothing, or that `down --leave-jobs` left."""
    silent = replace(CARD, seen_s_ago=360.0, jobs=(7,), drains=())
    left = Drain(origin=DrainOrigin.DOWN, why="", by="ann", at=None)

    for each in (replace(silent, seen_s_ago=3.0), replace(silent, jobs=()), replace(silent, drains=(left,))):
        assert kept_until(each, settings) is None
