"""Tests that a submit does not wait for a history that is away."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from gpuqueue.client import past_runs
from gpuqueue.client.past_runs import PastRuns
from gpuqueue.errors import HistoryUnreachable
from gpuqueue.learning.past_run import PastRun, Proof
from gpuqueue.model.device import DeviceKind

RUN = PastRun(proof=Proof.PEAK, bytes=1, kind=DeviceKind.GPU)


class Database:
    """A history with one run, whose answers can be held back or refused."""

    def __init__(self) -> None:
        self.asked = 0
        self.answers = threading.Event()
        self.answers.set()
        self.error: Exception | None = None

    def runs_of_program(self, _user: str, _program: str) -> tuple[PastRun, ...]:
        """Return the run, or raise the error, as soon as it may answer."""
        self.asked += 1
        assert self.answers.wait(30)
        if self.error is not None:
            raise self.error
        return (RUN,)


@pytest.fixture
def database() -> Any:
    """Return a history."""
    made = Database()
    yield made
    made.answers.set()  # its threads end


def runs_of(database: Any, *, is_open: bool = True, url: str = "postgresql://h/d") -> PastRuns:
    """Return the reader of past runs."""
    return PastRuns(url, lambda: database, is_open=lambda: is_open)


def test_an_answer_is_used_again_for_a_while(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service that gets the same job many times asks once a second."""
    past = runs_of(database)
    assert [(RUN,)] * 3 == [past.of("ada", "train.py", needed=False) for _ in range(3)]
    assert 1 == database.asked
    assert (RUN,) == past.of("bob", "train.py", needed=False)
    monkeypatch.setattr(past_runs, "FRESH_S", -1.0)
    past = runs_of(database)
    assert [(RUN,)] * 2 == [past.of("ada", "train.py", needed=False) for _ in range(2)]
    assert 4 == database.asked


def test_a_silent_history_is_waited_for_once(database: Database) -> None:
    """A history that hangs is asked by one submit, and not by the next ones."""
    database.answers.clear()
    past = runs_of(database)
    assert past.of("ada", "train.py", needed=True) is None
    assert past.of("ada", "other.py", needed=True) is None
    assert 1 == database.asked


def test_an_unreachable_history_is_no_error(database: Database) -> None:
    """An error of the history is the same as no answer."""
    database.error = HistoryUnreachable("away")
    assert runs_of(database).of("ada", "train.py", needed=True) is None


def test_a_history_that_is_not_open_is_asked_only_if_needed(database: Database) -> None:
    """A suggestion is not worth the import of a database driver."""
    past = runs_of(database, is_open=False)
    assert past.of("ada", "train.py", needed=False) is None
    assert 0 == database.asked
    assert (RUN,) == past.of("ada", "train.py", needed=True)


def test_a_missing_file_is_a_history_without_an_answer(database: Database, tmp_path: Any) -> None:
    """A SQLite file that is not there is not created."""
    past = runs_of(database, is_open=False, url=f"sqlite:///{tmp_path}/none.db")
    assert past.of("ada", "train.py", needed=False) is None
    assert [] == list(tmp_path.iterdir())
