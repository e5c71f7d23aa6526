from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpuqueue.system.logind import Logind

SESSION = "0::/user.slice/user-1000.slice/session-3.scope"
OF_OTHER = "0::/user.slice/user-1001.slice/session-3.scope"
MANAGER = "0::/user.slice/user-1000.slice/user@1000.service/app.slice/terminal.scope"
UNIT = "12:pids:/system.slice/queue.service\n0::/system.slice/queue.service"
PID = 7


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return the root of a machine with systemd and no settings of logind."""
    (tmp_path / "run/systemd/system").mkdir(parents=True)
    return tmp_path


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def login(text: str) -> str:
    return f"[Other]\nKillUserProcesses=yes\nRemoveIPC=no\n[Login]\n#RemoveIPC=no\n{text}\n"


def seen(root: Path, group: str, *, name: str = "ann", uid: int = 1000) -> str:
    """Return what a logout does to the queue of *name*: ends it, or deletes memory; empty: nothing."""
    write(root / f"proc/{PID}/cgroup", f"{group}\n")
    trouble = Logind(root).trouble_of_queue(PID, name, uid)
    return "" if trouble is None else trouble.seen.split()[4]


@pytest.mark.parametrize(
    ("group", "settings", "lingers", "expected"),
    [
        (SESSION, "", False, ""),  # the session stays until its last process has ended
        (SESSION, "KillUserProcesses=yes", False, "ends"),
        (SESSION, "KillUserProcesses=yes", True, "ends"),
        (SESSION, "KillUserProcesses=yes\nKillExcludeUsers=bob\nKillExcludeUsers=ann", False, ""),
        (SESSION, "KillUserProcesses=yes\nKillExcludeUsers=ann\nKillExcludeUsers=", False, "ends"),
        (SESSION, "KillUserProcesses=yes\nKillOnlyUsers=bob", False, ""),
        (SESSION, "KillOnlyUsers=bob ann", False, "ends"),
        (MANAGER, "", False, "ends"),
        (MANAGER, "KillUserProcesses=yes", True, ""),
        (UNIT, "", False, "deletes"),
        (UNIT, "RemoveIPC=maybe", False, "deletes"),
        (UNIT, "", True, ""),
        (UNIT, "RemoveIPC = off", False, ""),
        (OF_OTHER, "", False, "deletes"),
    ],
)
def test_a_logout_is_warned_of_only_where_it_does_something(
    root: Path, group: str, settings: str, *, lingers: bool, expected: str
) -> None:
    """What happens depends on where the queue runs, on the settings and on linger."""
    write(root / "etc/systemd/logind.conf", login(settings))
    if lingers:
        write(root / "var/lib/systemd/linger/ann", "")

    assert expected == seen(root, group)


@pytest.mark.parametrize(
    ("name", "uid", "defs"), [("root", 0, ""), ("daemon", 999, ""), ("ann", 1500, "UID_MIN 2000\nSYS_UID_MAX 1999\n")]
)
def test_system_accounts_are_not_warned_of(root: Path, name: str, uid: int, defs: str) -> None:
    """Logind leaves the shared memory of system accounts, and the processes of root."""
    write(root / "etc/systemd/logind.conf", login("KillUserProcesses=no"))
    write(root / "etc/login.defs", defs)

    assert not seen(root, UNIT, name=name, uid=uid)


def test_no_machine_without_logind_is_warned_of(tmp_path: Path) -> None:
    """A container has the files of systemd, and no systemd that reads them."""
    write(tmp_path / "etc/systemd/logind.conf", login("KillUserProcesses=yes"))

    assert "" == seen(tmp_path, SESSION) == seen(tmp_path, UNIT)
    assert Logind(tmp_path).trouble_of_all() is None


def test_settings_are_read_in_the_order_of_systemd(root: Path) -> None:
    """The first main file counts, then each file of the directories by its name; /etc replaces /run and /usr/lib."""
    write(root / "usr/lib/systemd/logind.conf", login("RemoveIPC=no"))
    assert not seen(root, UNIT)

    write(root / "etc/systemd/logind.conf", login(""))  # in place of the whole file in /usr/lib
    assert seen(root, UNIT)

    write(root / "usr/lib/systemd/logind.conf.d/50-lab.conf", login("RemoveIPC=no"))
    assert not seen(root, UNIT)

    write(root / "run/systemd/logind.conf.d/60-lab.conf", login("RemoveIPC=\\\nyes"))
    assert seen(root, UNIT)

    (root / "etc/systemd/logind.conf.d").mkdir()
    (root / "etc/systemd/logind.conf.d/60-lab.conf").symlink_to(os.devnull)
    assert not seen(root, UNIT)


def test_the_people_without_linger_are_named(root: Path) -> None:
    """Jobs that run as their submitters lose their shared memory at the logout of their submitter."""
    write(root / "var/lib/systemd/linger/bob", "")
    people = [("ann", 1000), ("bob", 1001), ("gpuqueue", 998), ("cleo", 1002)]

    trouble = Logind(root).trouble_of_jobs(people)

    assert trouble is not None
    assert "a logout of ann, cleo deletes the shared memory (/dev/shm) of their running jobs (RemoveIPC" in trouble.seen
    assert trouble.remedy.endswith("loginctl enable-linger ann cleo")
    assert Logind(root).trouble_of_jobs(people[1:3]) is None
    assert Logind(root).trouble_of_all() is not None
