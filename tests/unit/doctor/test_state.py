from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from findings import by_check, findings

from gpuqueue.doctor import state
from gpuqueue.doctor.site import Site
from gpuqueue.doctor.state import CHECKS
from gpuqueue.model.finding import Grade
from gpuqueue.settings.settings import Settings
from gpuqueue.system.disk_room import filesystem_of
from gpuqueue.text.units import GIB, MIB, format_bytes


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """Return a site with a private, healthy state directory."""
    (tmp_path / "state").mkdir(mode=0o700)
    return Site(Settings.load({"GPUQUEUE_CONFIG": os.devnull, "GPUQUEUE_STATE_DIR": str(tmp_path / "state")}))


def test_a_directory_that_is_well_needs_nothing(site: Site) -> None:
    """A healthy directory passes every check."""
    found = by_check(CHECKS, site)

    assert {Grade.OK} == {
        each.grade for name, each in found.items() if name not in {"disk", "filesystem"}
    }  # the host's
    assert {"directory", "original", "modes", "writing", "disk", "filesystem", "logs"} == set(found)


def test_a_directory_that_is_not_there_is_worth_a_note(site: Site) -> None:
    """A missing directory is a note, as on a client's machine.

    The check does not create it and does not check its modes.
    """
    site.settings.state_dir.rmdir()

    (finding,) = findings(CHECKS, site)

    assert (Grade.NOTE, "directory") == (finding.grade, finding.check)
    assert not site.settings.state_dir.exists()


def be_a_file(directory: Path) -> None:
    directory.rmdir()
    directory.touch()


def open_with(name: str, mode: int) -> Callable[[Path], None]:
    """Return what lets others read the directory, with a file of *mode* in it."""

    def change(directory: Path) -> None:
        directory.chmod(0o755)
        (directory / name).touch(mode=mode)

    return change


def write_log(directory: Path) -> None:
    (directory / "log").mkdir()
    with (directory / "log" / "host.log").open("wb") as log:
        log.truncate(2 * GIB)


@pytest.mark.parametrize(
    ("change", "check", "grade", "seen", "remedy"),
    [
        (be_a_file, "directory", Grade.PROBLEM, "is no directory", "move it away"),
        (lambda path: path.chmod(0o770), "modes", Grade.PROBLEM, "others may write into it (0770)", "chmod go-w {}"),
        (open_with("history.db", 0o644), "modes", Grade.WARNING, "(0755): history.db (0644)", "chmod 700 {}"),
        (open_with("history.db", 0o600), "modes", Grade.OK, "0755", ""),
        (write_log, "logs", Grade.WARNING, "our own 2G, the jobs' 0", "look into {}/log"),
    ],
)
def test_what_is_wrong_with_the_directory(
    site: Site, change: Callable[[Path], None], check: str, grade: Grade, seen: str, remedy: str
) -> None:
    """Each fault is found, with its remedy. Others could create a socket or a run in a directory that they may write.

    A readable directory with only private content is fine.
    """
    change(site.settings.state_dir)

    finding = by_check(CHECKS, site)[check]

    assert grade is finding.grade
    assert seen in finding.seen
    assert finding.remedy.startswith(remedy.format(site.settings.state_dir))


@pytest.mark.parametrize(
    ("bytes_left", "files", "files_left", "grade", "seen"),
    [
        (10 * GIB, 0, 0, Grade.OK, "10G free"),  # without a limit
        (10 * GIB, 10**7, 10**6, Grade.OK, "10G free"),
        (GIB - 1, 0, 0, Grade.WARNING, f"{format_bytes(GIB - 1)} free"),
        (10 * GIB, 10**7, 100, Grade.WARNING, "10G free, but only 100 inodes"),
        (100 * MIB - 1, 0, 0, Grade.PROBLEM, f"{format_bytes(100 * MIB - 1)} free"),
        (10 * GIB, 10**7, 0, Grade.PROBLEM, "10G free, but no inode"),
    ],
)
def test_a_disk_is_judged_by_bytes_and_by_files(
    site: Site, monkeypatch: pytest.MonkeyPatch, bytes_left: int, files: int, files_left: int, grade: Grade, seen: str
) -> None:
    """A disk is judged by free bytes and free inodes. Some file systems allocate inodes on demand and have no limit."""
    disk = SimpleNamespace(f_bavail=bytes_left, f_frsize=1, f_files=files, f_favail=files_left, f_flag=0)
    monkeypatch.setattr(os, "statvfs", lambda _: disk)

    finding = by_check(CHECKS, site)["disk"]

    assert (grade, seen) == (finding.grade, finding.seen)


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
def test_a_network_disk_is_warned_of(site: Site, monkeypatch: pytest.MonkeyPatch, kind: str | None, grade: str) -> None:
    """A network file system gives a warning, because the directory contains locks and sockets."""
    monkeypatch.setattr(state, "filesystem_of", lambda _: kind)

    assert grade == str(by_check(CHECKS, site)["filesystem"].grade)


def test_logs_are_added_up(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The logs of the service and of the jobs are added up. No other file of a run counts."""
    run = site.settings.runs_dir / "7" / "1.a"
    run.mkdir(parents=True)
    (run / "log").write_bytes(b"x" * 3072)
    (run / "spec").write_bytes(b"x" * 5000)
    site.settings.logs_dir.mkdir()
    (site.settings.logs_dir / "host.log").write_bytes(b"x" * 2048)

    assert "our own 2K, the jobs' 3K" == by_check(CHECKS, site)["logs"].seen
    monkeypatch.setattr(state, "ADD_UP_S", -1.0)
    assert "our own 2K, the jobs' more than 3K" == by_check(CHECKS, site)["logs"].seen


def test_another_account_is_shown_the_owner(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory of another account gives a warning with a command that can be typed."""
    owner = site.settings.state_dir.owner()
    monkeypatch.setattr(os, "getuid", lambda: 65534)

    finding = by_check(CHECKS, site)["directory"]

    assert (Grade.WARNING, True) == (finding.grade, f"sudo -u {owner}" in finding.remedy)
