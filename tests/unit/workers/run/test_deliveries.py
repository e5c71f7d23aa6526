"""Tests of the entries that say which runs have something to deliver."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpuqueue.model.run import RunDevice
from gpuqueue.settings.settings import Settings
from workers.run import deliveries
from workers.run.deliveries import Delivery
from workers.run.directory import Held, RunDir


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Return settings with a state directory that is there."""
    return Settings.load({"GPUQUEUE_STATE_DIR": str(tmp_path), "GPUQUEUE_CONFIG": os.devnull})


def run(settings: Settings, job_id: int) -> RunDir:
    """Make the directory of a run."""
    held = Held(job_id=job_id, token="1.ab", devices=(RunDevice(uuid="dev-0", lease_bytes=1),))
    return RunDir.create(settings.runs_dir, held)


def test_a_delivery_begins_with_the_settlement(settings: Settings) -> None:
    """A run that goes on is not delivered. A settled one is, with its patterns, until the entry is removed."""
    for job_id in (12, 3):
        deliveries.add(settings, Delivery(job_id=job_id, token="1.ab", keep=("*.pt", "--a")))
    first, second = run(settings, 3), run(settings, 12)
    assert [] == list(deliveries.settled(settings))

    second.settle()
    assert [Delivery(job_id=12, token="1.ab", keep=("*.pt", "--a"))] == list(deliveries.settled(settings))

    first.settle()
    assert [3, 12] == [each.job_id for each in deliveries.settled(settings)]
    deliveries.remove(settings, Delivery(job_id=3, token="1.ab"))
    assert [12] == [each.job_id for each in deliveries.settled(settings)]
    assert ["12.1.ab"] == deliveries.names(settings)


def test_only_the_owner_reads_the_entries(settings: Settings) -> None:
    """The patterns may name what nobody else should know."""
    deliveries.add(settings, Delivery(job_id=3, token="1.ab"))

    folder = settings.state_dir / deliveries.DIRECTORY
    assert (0o700, 0o600) == (folder.stat().st_mode & 0o777, (folder / "3.1.ab").stat().st_mode & 0o777)


def test_of_a_damaged_entry_only_the_patterns_are_lost(settings: Settings, caplog: pytest.LogCaptureFixture) -> None:
    """A power cut may leave an empty entry. Its name is enough to send the log. Other files are no entries."""
    folder = settings.state_dir / deliveries.DIRECTORY
    folder.mkdir()
    for name in ("3.1.ab", "notes.txt", ".4.1.ab.1.2"):
        (folder / name).touch()

    for _ in range(2):
        assert [Delivery(job_id=3, token="1.ab")] == list(deliveries.settled(settings))
    assert 1 == len(caplog.messages)


@pytest.mark.parametrize("name", ["3.1.../../x", "../3.1.a", "3.1.", "3", "3.a.1", "-3.1.a", "3.1.a\n", "٣.1.a"])
def test_a_name_from_another_machine_is_no_path(name: str) -> None:
    """The service names runs in its requests, and must not name other files of this host."""
    assert deliveries.run_named(name) is None
