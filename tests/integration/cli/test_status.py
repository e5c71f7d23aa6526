"""``gpuqueue status``: what it says of a queue that answers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpuqueue.cli.commands.status import status
from gpuqueue.queue import keys
from gpuqueue.queue.connect import connect
from gpuqueue.queue.jobqueue import JobQueue


def test_the_cost_of_reservations_is_shown_once_there_is_one(
    queue: JobQueue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Device-hours that were idle because of reservations have a line, and a key of the JSON in seconds."""
    monkeypatch.setenv("GPUQUEUE_STATE_DIR", str(tmp_path))
    monkeypatch.setenv("GPUQUEUE_REDIS_URL", queue.url)
    assert "reserved" not in CliRunner().invoke(status).stdout

    store = connect(queue.url)
    store.hset(keys.META, "reserved_idle_ms", 9_000_500)
    store.close()

    assert "reserved 2.5 h        of idle devices so far" in CliRunner().invoke(status).stdout
    assert 9000.5 == json.loads(CliRunner().invoke(status, ["--json"]).stdout)["reserved_idle_device_s"]
