"""What ``status`` says of the history, and ``up`` of workers of another version."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from factories import make_offer, serve
from own_store import OwnStore

from gpuqueue.cli.commands import up
from gpuqueue.cli.commands.status import status
from gpuqueue.embedded import machine as machines
from gpuqueue.embedded.machine import Machine, prepare_history
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.system.process import ProcessIdentity
from gpuqueue.version import VERSION


def words_of_status(monkeypatch: pytest.MonkeyPatch, store: OwnStore) -> str:
    """Return the line of ``status`` about the history."""
    monkeypatch.setenv("GPUQUEUE_STATE_DIR", str(store.settings.state_dir))
    lines = CliRunner().invoke(status, []).output.splitlines()
    return next(line for line in lines if line.startswith("history"))


def test_status_says_that_the_history_cannot_be_read(own_store: OwnStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: it said "recorded" when no event waited, and `history` failed."""
    settings = own_store.settings
    with_queue = JobQueue(own_store.url)
    with_queue.recovery.open(0)
    with_queue.close()

    assert "away" in words_of_status(monkeypatch, own_store)
    prepare_history(settings.database_url)
    assert "history  recorded" == words_of_status(monkeypatch, own_store).rstrip()
    assert Machine(settings).status().history_trouble is None

    Path(settings.database_url.removeprefix("sqlite:///")).write_bytes(b"no database" * 1000)
    assert "recorded" not in words_of_status(monkeypatch, own_store)


def test_a_history_server_that_is_down_is_named_without_its_password(own_store: OwnStore) -> None:
    """The command does not wait for long, and shows no password."""
    settings = replace(own_store.settings, database_url="postgresql://ada:hunter2@127.0.0.1:1/jobs")

    trouble = Machine(settings).history_trouble()

    assert "does not answer" in str(trouble)
    assert "hunter2" not in str(trouble)
    elsewhere = replace(settings, record=False)
    assert Machine(elsewhere).history_trouble() is None, "such a host has none"


def test_up_names_workers_of_another_version(
    own_store: OwnStore, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Regression: after an upgrade, ``up`` said "already up", and the old code went on."""
    queue = JobQueue(own_store.url)
    queue.recovery.open(0)
    serve(queue, make_offer(host=own_store.settings.host))
    queue.close()
    prepare_history(own_store.settings.database_url)
    here = ProcessIdentity.of(os.getpid())
    assert here is not None

    up._refresh(Machine(own_store.settings), None, here, None)
    assert "still run" not in capsys.readouterr().err
    monkeypatch.setattr(machines, "VERSION", "99.0")
    up._refresh(Machine(own_store.settings), None, here, None)
    assert (
        f"99.0 is installed, and workers of {VERSION} still run: gpuqueue down --leave-jobs, then gpuqueue up: "
        "running jobs are taken over"
    ) in capsys.readouterr().err
