"""The walk of somebody who has never seen gpuqueue: what is typed, what is seen, and what is said of each mistake."""

from __future__ import annotations

from pathlib import Path

import pytest
from own_home import Home
from walk import Shell, walk

HALTS = ["up", "submit", "queue", "why", "top", "logs", "cancel", "wait", "history", "stats", "doctor", "down"]


@pytest.mark.timeout(400)
def test_a_newcomer_gets_through(home: Home, tmp_path: Path) -> None:
    """Each command of the first ten minutes, on a real terminal, on simulated devices."""
    with Shell(home.environ, tmp_path) as shell:
        assert HALTS == list(walk(shell, tmp_path))
