from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from gpuqueue.doctor import state
from gpuqueue.doctor.state import CHECKS, StateFacts, filesystem_of, state_facts
from gpuqueue.model.finding import Finding, Grade, examined
from gpuqueue.settings.settings import Settings
from gpuqueue.text.units import GIB, MIB


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Return settings with a private, healthy state directory."""
    (tmp_path / "state").mkdir(mode=0o700)
    return Settings.load({"GPUQUEUE_CONFIG": os.devnull, "GPUQUEUE_STATE_DIR": str(tmp_path / "state")})


def found(facts: StateFacts, check: str) -> Finding:
    """Return the finding of one check."""
    return next(each for each in examined("state", facts, CHECKS) if each.check == check)


def test_a_directory_that_is_well_needs_nothing(settings: Settings) -> None:
    """A healthy directory passes every check."""
    findings = list(examined("state", state_facts(settings), state.CHECKS))

    assert {"ok"} == {str(each.grade) for each in findings if each.check not in {"disk", "filesystem"}}  # of the host
    assert {"directory", "modes", "writing", "disk", "filesystem", "logs"} == {each.check for each in findings}


def test_a_directory_that_is_not_there_is_worth_a_note(tmp_path: Path) -> None:
    """A missing directory is a note, as on a client's machine.

    The check does not create it and does not check its modes.
    """
    settings = Settings.load({"GPUQUEUE_CONFIG": os.devnull, "GPUQUEUE_STATE_DIR": str(tmp_path / "none")})

    (finding,) = examined("state", state_facts(settings), CHECKS)

    assert (Grade.NOTE, "directory") == (finding.grade, finding.check)
    assert not (tmp_path / "none").exists()


def test_a_file_in_its_place_is_a_problem(settings: Settings) -> None:
    """A file in place of the directory is a problem, because nothing can be written below it."""
    settings.state_dir.rmdir()
    settings.state_dir.write_text("")

    assert Grade.PROBLEM is found(state_facts(settings), "directory").grade


def test_what_others_may_write_is_a_problem(settings: Settings) -> None:
    """A directory that others may write is a problem: they could create a socket or a run in it."""
    settings.state_dir.chmod(0o770)

    finding = found(state_facts(settings), "modes")

    assert Grade.PROBLEM is finding.grade
    assert f"chmod go-w {settings.state_dir}" == finding.remedy


def test_what_others_may_read_is_named(settings: Settings) -> None:
    """A readable file in a readable directory is named. A readable directory with only private content is fine."""
    settings.state_dir.chmod(0o755)
    (settings.state_dir / "runs").mkdir(mode=0o700)
    assert Grade.OK is found(state_facts(settings), "modes").grade

    (settings.state_dir / "history.db").touch(mode=0o644)
    finding = found(state_facts(settings), "modes")

    assert Grade.WARNING is finding.grade
    assert "history.db (0644)" in finding.seen


@pytest.mark.parametrize(
    ("free_bytes", "free_files", "grade"),
    [
        (10 * GIB, None, Grade.OK),
        (10 * GIB, 10**6, Grade.OK),
        (GIB - 1, None, Grade.WARNING),
        (10 * GIB, 100, Grade.WARNING),
        (100 * MIB - 1, None, Grade.PROBLEM),
        (10 * GIB, 0, Grade.PROBLEM),
    ],
)
def test_a_disk_is_judged_by_bytes_and_by_files(
    settings: Settings, free_bytes: int, free_files: int | None, grade: Grade
) -> None:
    """A disk is judged by free bytes and free inodes. Some file systems allocate inodes on demand and have no limit."""
    facts = replace(state_facts(settings), free_bytes=free_bytes, free_files=free_files)

    assert grade is found(facts, "disk").grade


def test_the_file_system_is_the_innermost_mount(tmp_path: Path) -> None:
    """The innermost mount is used.

    A later mount at the same place hides an earlier one, and spaces are octal escapes.
    """
    mounts = tmp_path / "mounts"
    mounts.write_text(
        "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n"
        "2 1 0:40 / /data\\040x rw - xfs /dev/sdb rw\n"
        "3 1 0:41 / /data\\040x rw shared:1 - nfs4 srv:/d rw\n"
        "4 1 0:42 / /data rw - btrfs /dev/sdc rw\n"
    )

    assert "nfs4" == filesystem_of(Path("/data x/state"), mounts)
    assert "btrfs" == filesystem_of(Path("/data/state"), mounts)
    assert "ext4" == filesystem_of(Path("/database"), mounts)
    assert filesystem_of(Path("/data"), tmp_path / "none") is None


@pytest.mark.parametrize(
    ("kind", "grade"), [("nfs4", "warning"), ("fuse.sshfs", "warning"), ("ext4", "ok"), (None, "ok")]
)
def test_a_network_disk_is_warned_of(settings: Settings, kind: str | None, grade: str) -> None:
    """A network file system gives a warning, because the directory contains locks and sockets."""
    assert grade == str(found(replace(state_facts(settings), filesystem=kind), "filesystem").grade)


def test_logs_are_added_up(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """The logs of the service and of the jobs are added up. No other file of a run counts."""
    run = settings.runs_dir / "7" / "1.a"
    run.mkdir(parents=True)
    (run / "log").write_bytes(b"x" * 3000)
    (run / "spec").write_bytes(b"x" * 5000)
    settings.logs_dir.mkdir()
    (settings.logs_dir / "host.log").write_bytes(b"x" * 2048)

    facts = state_facts(settings)

    assert (2048, 3000, True) == (facts.log_bytes, facts.run_log_bytes, facts.added_up)
    assert Grade.WARNING is found(replace(facts, log_bytes=2 * GIB), "logs").grade
    monkeypatch.setattr(state, "ADD_UP_S", -1.0)
    assert "more than" in found(state_facts(settings), "logs").seen


def test_another_account_is_shown_the_owner(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory of another account gives a warning with a command that can be typed."""
    facts = state_facts(settings)
    monkeypatch.setattr(os, "getuid", lambda: 65534)

    finding = found(replace(facts, owner=0), "directory")

    assert Grade.WARNING is finding.grade
    assert "sudo -u root" in finding.remedy
