"""Tests of the settlement of a run directory while another thread or process writes to it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gpuqueue.model.run import EndingKind, RunDevice
from workers.run.directory import Held, RunDir, unsettled


@pytest.mark.parametrize(
    "write",
    [
        lambda directory: directory.renew(1.0),
        lambda directory: directory.keep_meters({}),
        lambda directory: directory.ask_end(EndingKind.LOST),
    ],
    ids=["renew", "keep_meters", "ask_end"],
)
def test_a_heartbeat_that_meets_the_settlement_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[RunDir], None]
) -> None:
    """A write that overlaps the settlement leaves no file.

    The heartbeat saw the claim, the run was settled, and then the heartbeat wrote a file that stayed for ever.
    """
    directory = RunDir.create(tmp_path, Held(job_id=7, token="1.a", devices=(RunDevice(uuid="x", lease_bytes=1),)))
    directory.log.touch()

    def settled_right_after(self: RunDir) -> bool:
        there = (self.path / "claim").exists()
        self.settle()
        return there

    monkeypatch.setattr(RunDir, "claimed", property(settled_right_after))
    write(directory)

    assert ["log"] == [path.name for path in directory.path.iterdir()]
    assert [] == list(unsettled(tmp_path))


def test_what_a_killed_writer_left_half_written_goes_and_what_the_job_wrote_stays(tmp_path: Path) -> None:
    """A settlement deletes half-written files of a killed writer and keeps the job's files.

    A half-written spec holds the submitter's environment, with its secrets.
    """
    directory = RunDir.create(tmp_path, Held(job_id=7, token="1.a", devices=(RunDevice(uuid="x", lease_bytes=1),)))
    for name in (".spec.123.456", ".exit", "lock", "spec", "spec.yaml", ".spec.yaml", "log", "log.1"):
        (directory.path / name).touch()

    directory.settle()

    assert {"spec.yaml", ".spec.yaml", "log", "log.1"} == {path.name for path in directory.path.iterdir()}
