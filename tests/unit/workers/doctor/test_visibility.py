from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpuqueue.model.finding import Finding, Grade, examined
from workers.doctor.visibility import CHECKS, Facts, Rival, _hides

WELL = Facts(gpus=1, pids={10: True}, unreported=(), apart=False, hidden=False, rivals=(), visible=None)


def found(facts: Facts, check: str) -> Finding | None:
    """Return the finding of one check, or None if it has none."""
    return next((each for each in examined("host", facts, CHECKS) if each.check == check), None)


@pytest.mark.parametrize(
    ("facts", "grade"),
    [
        (WELL, Grade.OK),
        (replace(WELL, pids={}), Grade.OK),
        (replace(WELL, pids={10: True, 11: False}), Grade.OK),  # one process has just ended
        (replace(WELL, pids={10: False}), Grade.WARNING),
        (replace(WELL, pids={10: False}, apart=True), Grade.WARNING),
        (replace(WELL, pids={10: True}, apart=True), Grade.OK),  # the driver translates pids, or pid: host
        (replace(WELL, pids={}, apart=True), Grade.UNKNOWN),
        (replace(WELL, pids={10: False}, hidden=True), Grade.NOTE),
        (replace(WELL, unreported=(10,)), Grade.NOTE),
    ],
)
def test_whether_the_drivers_pids_are_known(facts: Facts, grade: Grade) -> None:
    """The check distinguishes another pid namespace, hidden processes, and a reading without processes."""
    finding = found(facts, "pids")

    assert finding is not None
    assert grade is finding.grade


def test_without_a_gpu_pids_are_not_reported() -> None:
    """Without a GPU there is no finding about pids, because CPU processes are measured one by one."""
    assert found(replace(WELL, gpus=0, pids={}, apart=True, visible="0"), "pids") is None
    assert found(replace(WELL, gpus=0, visible="0"), "visible devices") is None


def test_each_rival_is_named() -> None:
    """Each other queue on a device is named with its pid and user, so that the owner can be contacted."""
    facts = replace(WELL, rivals=(Rival(pid=5, user="bob", device="GPU-0"),))
    finding = found(facts, "other queues")

    assert finding is not None
    assert (Grade.WARNING, "GPU-0") == (finding.grade, finding.about)
    assert "pid 5 of bob" in finding.seen


@pytest.mark.parametrize(
    ("options", "hides"),
    [("rw,nosuid", False), ("rw,hidepid=0", False), ("rw,hidepid=2", True), ("rw,hidepid=invisible", True)],
)
def test_a_proc_that_hides_is_known_by_its_mount(tmp_path: Path, options: str, *, hides: bool) -> None:
    """Hidden processes are recognized by the mount options of /proc, in both spellings of the kernel's option.

    Other proc mounts do not count.
    """
    mounts = tmp_path / "mounts"
    mounts.write_text(f"/dev/sda1 / ext4 rw 0 0\nproc /proc proc {options} 0 0\nproc /jail/proc proc hidepid=2 0 0\n")

    assert hides == _hides(mounts)
    assert not _hides(tmp_path / "none")
