"""The light SQLite reader returns what the full history returns, and the full one answers where it cannot.

Each test with its own history compares both for every job: see ``history_fixtures.py``.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from factories import make_spec
from outbox import Outbox

from gpuqueue.client.connection import Connection
from gpuqueue.codec.request import encode_ended
from gpuqueue.errors import HistoryUnreachable
from gpuqueue.history import sqlite_reader
from gpuqueue.history.database import HistoryDatabase
from gpuqueue.model.array import Array
from gpuqueue.model.device import Activity, DeviceKind, Peak, PeakSource, Timeline
from gpuqueue.model.event import Act
from gpuqueue.model.job import JobState
from gpuqueue.model.notification import Notification
from gpuqueue.model.run import Ending, RunDevice
from gpuqueue.settings.settings import Settings
from gpuqueue.text.units import GIB


@pytest.fixture
def path(migrated_sqlite: Path, tmp_path: Path) -> Path:
    """Return a file with our tables, in a directory with special characters in its name."""
    odd = tmp_path / "50% off #1; Ünïcode"
    odd.mkdir()
    return Path(shutil.copy(migrated_sqlite, odd / "history.db"))


@pytest.fixture
def url(path: Path) -> str:
    """Return the URL of the file."""
    return f"sqlite:///{path}"


def full_history(url: str) -> HistoryDatabase:
    """Return a history with all fields of a job: job 1, and array 2 with its member 4."""
    database = HistoryDatabase(url)
    outbox = Outbox(database)
    outbox.submit(1, make_spec(gpus=2, tags=("a", "b"), notifications=(Notification("team"),)))
    outbox.claim(1, devices="GPU-b,GPU-a")
    outbox.started(1, devices="GPU-b,GPU-a")
    outbox.report(1, Act.NOTE, JobState.RUNNING, token="1.a", detail="holds too much")
    outbox.report(1, Act.MARK, JobState.RUNNING, note="keep")
    seen = RunDevice(
        uuid="GPU-b",
        lease_bytes=GIB,
        index=3,
        name="A10",
        kind=DeviceKind.GPU,
        total_bytes=24 * GIB,
        peak=Peak(bytes=GIB, source=PeakSource.NVML_SAMPLED, samples=9, na_samples=1, interval_s=0.5, shared=True),
        activity=Activity(
            first_memory_s=0.5,
            utilisation_mean=0.25,
            utilisation_max=1.0,
            temperature_max_c=61.0,
            own_utilisation_mean=0.2,
            own_utilisation_p95=0.9,
            own_bandwidth_mean=0.1,
            own_bandwidth_p95=0.3,
        ),
        timeline=Timeline(step_s=1.0, bytes=(None, GIB)),
    )
    devices = (seen, replace(seen, uuid="GPU-a", index=4, timeline=None))
    ended = encode_ended(ending=Ending.from_status(-9), duration_s=1.5, devices=devices, peak_at_once_bytes=GIB)
    outbox.report(1, Act.FINISH, JobState.FAILED, token="1.a", ended=ended)
    outbox.submit(2, make_spec(array=Array.asked("0-9", (), None)))
    outbox.claim(4, of="2", index="1", left="0,2-9")
    outbox.finish(4, Ending.from_status(0), JobState.SUCCEEDED)
    outbox.record()
    return database


def test_it_returns_what_the_full_history_returns(url: str) -> None:
    """The reader returns the same records as the full history.

    Compared are a job with all fields, an array, a member and a missing job.
    """
    database = full_history(url)

    records = {job_id: sqlite_reader.record(url, job_id) for job_id in (1, 2, 4, 99)}

    assert {job_id: database.get(job_id) for job_id in records} == records
    job, array, member = records[1], records[2], records[4]
    assert job is not None
    assert array is not None
    assert member is not None
    assert (2, 1, 1) == (len(job.runs[0].devices), len(job.notes), len(job.reported))
    assert (None, GIB) == next(each.timeline.bytes for each in job.runs[0].devices if each.timeline)
    assert True is job.runs[0].devices[0].peak.shared
    assert job.job.ended_at is not None
    assert job.job.ended_at.utcoffset() is not None
    assert array.job.tally is not None
    assert 1 == array.job.tally.ended["succeeded"]
    assert "2_1" == member.job.label
    database.close()


@pytest.mark.parametrize(
    "address",
    ["postgresql://h/d", "sqlite://", "sqlite:///history.db", "sqlite:////history.db?cache=shared", "sqlite+x:////b"],
)
def test_it_is_shut_for_all_but_a_file(address: str) -> None:
    """The reader refuses all but an absolute file path. A relative path or driver options are left to the library."""
    with pytest.raises(sqlite_reader.Shut):
        sqlite_reader.record(address, 1)


def test_it_makes_no_file(path: Path, url: str) -> None:
    """The reader makes no file for a wrong URL. The full history says what to do."""
    path.unlink()

    with pytest.raises(sqlite_reader.Shut):
        sqlite_reader.record(url, 1)

    assert [] == list(path.parent.iterdir())
    _explains(url, "is not there yet")


@pytest.mark.parametrize(("revision", "words"), [("0000", "older"), ("9999", "newer")])
def test_other_tables_are_not_read(path: Path, url: str, revision: str, words: str) -> None:
    """The reader refuses tables of another version."""
    with closing(sqlite3.connect(path)) as file, file:
        file.execute("UPDATE alembic_version SET version_num = ?", (revision,))

    with pytest.raises(sqlite_reader.Shut):
        sqlite_reader.record(url, 1)

    _explains(url, words)


def test_a_damaged_file_is_left_to_the_full_history(path: Path, url: str) -> None:
    """The reader refuses a damaged file and leaves the error message to the full history."""
    path.write_bytes(b"no database at all" * 1000)

    with pytest.raises(sqlite_reader.Shut):
        sqlite_reader.record(url, 1)

    _explains(url, "is damaged")


def test_a_file_that_somebody_keeps_locked_is_not_waited_for_long(
    path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader waits only briefly for a locked file. The full history waits longer and then reports the lock."""
    monkeypatch.setattr(sqlite_reader, "WAIT_S", 0.01)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("PRAGMA locking_mode = EXCLUSIVE")
        other.execute("BEGIN EXCLUSIVE")
        other.execute("UPDATE alembic_version SET version_num = version_num")

        with pytest.raises(sqlite_reader.Shut):
            sqlite_reader.record(url, 1)


def test_it_reads_beside_a_writer(path: Path, url: str) -> None:
    """The reader reads beside a writer without waiting, and sees only committed data."""
    database = full_history(url)
    before = database.get(1)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        other.execute("UPDATE jobs SET note = 'other'")

        assert before == sqlite_reader.record(url, 1)

        other.execute("COMMIT")
    after = sqlite_reader.record(url, 1)
    assert after is not None
    assert "other" == after.job.note
    assert after == database.get(1)
    database.close()


def test_a_file_in_anothers_place_is_read_at_once(path: Path, url: str, migrated_sqlite: Path) -> None:
    """A replaced file is read at once: the reader keeps no file open."""
    full_history(url).close()
    assert sqlite_reader.record(url, 1) is not None
    new = Path(shutil.copy(migrated_sqlite, path.with_name("new.db")))
    new.replace(path)

    assert sqlite_reader.record(url, 1) is None


def test_without_access_the_full_history_answers(tmp_path: Path, migrated_sqlite: Path) -> None:
    """The full history answers where the reader refuses, with the same result."""
    shutil.copy(migrated_sqlite, tmp_path / "history.db")
    full_history(f"sqlite:///{tmp_path / 'history.db'}").close()
    settings = Settings.load({"GPUQUEUE_STATE_DIR": str(tmp_path), "GPUQUEUE_CONFIG": os.devnull})
    reported = []
    for address in (settings.database_url, f"{settings.database_url}?timeout=7"):
        with closing(Connection(replace(settings, database_url=address))) as connection:
            reported.append((connection.recorded(1), connection._database is None))

    assert reported[0][0] == reported[1][0] is not None
    assert [True, False] == [is_light for _, is_light in reported]


def _explains(url: str, words: str) -> None:
    database = HistoryDatabase(url)
    with pytest.raises(HistoryUnreachable, match=words):
        database.get(1)
    database.close()
