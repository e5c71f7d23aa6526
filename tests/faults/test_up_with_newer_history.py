"""Tests of ``up`` with a history database of a newer version."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from own_home import Home
from template_history import make_tables

from gpuqueue.cli.commands.up import _start
from gpuqueue.embedded.machine import Machine
from gpuqueue.errors import HistoryNewer
from gpuqueue.settings.settings import Settings


@pytest.mark.full
def test_up_starts_nothing_with_newer_tables(home: Home) -> None:
    """After a downgrade ``up`` refuses in one line, before it starts a store or a worker.

    It used to start both for an open store. The workers then ran jobs whose history nobody could record.
    """
    home.state.mkdir(parents=True, exist_ok=True)
    make_tables(f"sqlite:///{home.state / 'history.db'}")
    with sqlite3.connect(home.state / "history.db") as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")

    output = home("up", "--devices", "sim:1x1G", code=4)

    assert "is newer than this gpuqueue: upgrade gpuqueue" in output
    assert 1 == len(output.strip().splitlines())
    assert [] == home.ours()
    assert not (home.state / "store").exists()


def test_a_running_machine_says_so_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An ``up`` on a machine that is up reports the newer tables as well."""
    settings = Settings.load({"GPUQUEUE_STATE_DIR": str(tmp_path)})
    make_tables(settings.database_url)
    with sqlite3.connect(tmp_path / "history.db") as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    machine = Machine(settings)
    monkeypatch.setattr(machine, "start_store", lambda: pytest.fail("it started the store"))
    with pytest.raises(HistoryNewer, match="upgrade gpuqueue"):
        _start(machine, None, hold_jobs=False)
