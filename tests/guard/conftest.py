"""The fixture of a store and a history in which the tests of this directory count."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from own_store import OwnStore

from gpuqueue.history.database import HistoryDatabase
from gpuqueue.queue.jobqueue import JobQueue

from guard.one_life import OneLife  # isort: skip


@pytest.fixture
def life(own_store: OwnStore, migrated_sqlite: Path, tmp_path: Path) -> Iterator[OneLife]:
    """Return a store and a history of their own, through which three jobs have passed."""
    path = tmp_path / "history.db"
    shutil.copy(migrated_sqlite, path)
    made = OneLife(store=own_store, queue=JobQueue(own_store.url), database=HistoryDatabase(f"sqlite:///{path}"))
    yield made
    made.admin.close()
    made.queue.close()
    made.database.close()
