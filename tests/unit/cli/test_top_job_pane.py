"""Tests of the job pane of ``top``."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from gpuqueue.cli.top.job_pane import About, reported


def test_a_job_that_has_written_nothing_has_a_line_that_says_so(tmp_path: Path) -> None:
    """The pane says that a job has written nothing. Regression: an empty pane looked like a key without function."""
    log = tmp_path / "log"
    logs = SimpleNamespace(tail=lambda: None, turn=lambda *_: None, end=lambda *_: log.read_bytes())
    client: Any = SimpleNamespace(logs=logs, jobs=SimpleNamespace(newest=lambda _: None))

    log.write_text("")
    assert "nothing was written yet" == reported(client, 1, About.LOG)
    log.write_text("epoch 1\nepoch 2\n")
    assert "epoch 1\nepoch 2" == reported(client, 1, About.LOG)
