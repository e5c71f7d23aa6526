from __future__ import annotations

import os
import pwd
import socket
import stat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from findings import by_check

from gpuqueue.installation.site import TICKET_KEY
from gpuqueue.model.finding import Finding, Grade
from gpuqueue.settings.settings import Settings
from workers.doctor import launcher
from workers.doctor.launcher import CHECKS

ME, WORKERS, SERVICE = os.geteuid(), 54321, 54322
SOCKET, BESIDE = "/run/gpuqueue-launcher/launcher.sock", "/run/gpuqueue/api.sock"
BASE = {"GPUQUEUE_STATE_DIR": "/s", "GPUQUEUE_CONFIG": os.devnull}
#: A host that has joined a service elsewhere, and workers beside a service.
JOINED = {"GPUQUEUE_SERVICE_URL": "https://gpu.example.org", "GPUQUEUE_RECORD": "false"}
JOINED_BESIDE = {**JOINED, "GPUQUEUE_SERVICE_URL": f"unix://{BESIDE}"}


@pytest.fixture
def examined(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that examines a host whose jobs run as their submitters, by default a healthy one."""

    def examine(
        *,
        served: int | None = ME,
        expected: int = ME,
        service: int = SERVICE,
        key: tuple[int, int] | None = None,
        trouble: str = "",
        open_directory: str | None = None,
        changeable: str | None = None,
        **settings: str,
    ) -> dict[str, Finding]:
        owners = {SOCKET: served, "/s": expected, BESIDE: service}
        real = os.lstat

        def lstat(path: Any) -> Any:
            if str(path) != str(TICKET_KEY):
                return real(path)
            if key is None:
                raise FileNotFoundError
            return SimpleNamespace(st_uid=key[0], st_mode=stat.S_IFREG | key[1])

        monkeypatch.setattr(launcher, "_owner", lambda path: owners[str(path)])
        monkeypatch.setattr(launcher, "_trouble", lambda *_, **__: trouble)
        monkeypatch.setattr(launcher, "_open_directory", lambda _: open_directory)
        monkeypatch.setattr(launcher, "first_changeable", lambda: changeable)  # it looks at ten thousand files
        monkeypatch.setattr(os, "lstat", lstat)
        environ = {**BASE, "GPUQUEUE_RUN_AS": "submitter", "GPUQUEUE_LAUNCHER": SOCKET}
        return dict(by_check(CHECKS, Settings.load({**environ, **settings})))

    return examine


ME_NAME = pwd.getpwuid(ME).pw_name


@pytest.mark.parametrize(
    ("situation", "check", "grade", "seen"),
    [
        ({}, "launcher", Grade.OK, "answers, for"),
        # A launcher that is away, serves another account, or has a socket that can be replaced.
        ({"trouble": "refused", "served": None}, "launcher", Grade.PROBLEM, "cannot be used: refused"),
        ({"served": WORKERS}, "launcher", Grade.PROBLEM, "is for uid 54321, and the workers are"),
        ({"open_directory": "/srv"}, "launcher", Grade.PROBLEM, "/srv can be changed by others than root"),
        ({}, "installation", Grade.OK, "only root can change"),
        ({"changeable": "/opt/bin"}, "installation", Grade.PROBLEM, "/opt/bin can be changed by others than root"),
        # A key that the workers of a host can read protects nobody.
        ({}, "tickets", Grade.NOTE, "jobs need no signature here"),
        ({"key": (0, 0o400), **JOINED}, "tickets", Grade.OK, "only root can read"),
        ({"key": (0, 0o440), **JOINED}, "tickets", Grade.PROBLEM, "can be read by root and others"),
        ({"key": (WORKERS, 0o400), "expected": WORKERS, **JOINED}, "tickets", Grade.PROBLEM, "by uid 54321"),
        (
            {"key": (SERVICE, 0o400), "expected": WORKERS, **JOINED_BESIDE},
            "tickets",
            Grade.OK,
            "only root and uid 54322, the account of the service, can read",
        ),
        ({"key": (SERVICE, 0o440), "expected": WORKERS, **JOINED_BESIDE}, "tickets", Grade.PROBLEM, "and others"),
        ({"key": (WORKERS, 0o400), "expected": WORKERS, **JOINED_BESIDE}, "tickets", Grade.PROBLEM, "by uid 54321"),
        (
            {"key": (WORKERS, 0o400), "expected": WORKERS, "service": WORKERS, **JOINED_BESIDE},
            "tickets",
            Grade.PROBLEM,
            "can be read by uid 54321",
        ),
        # On the host of the service they have its account.
        ({"key": (WORKERS, 0o400), "expected": WORKERS}, "tickets", Grade.NOTE, "it guards the other hosts"),
        ({"key": (WORKERS, 0o404), "expected": WORKERS}, "tickets", Grade.PROBLEM, "by uid 54321 and others"),
        ({"key": (SERVICE, 0o400), "expected": WORKERS}, "tickets", Grade.PROBLEM, "can be read by uid 54322"),
        # With another name the workers would have the rights of a person, and that account those of the workers.
        ({"GPUQUEUE_WORKERS_ACCOUNT": ME_NAME}, "workers account", Grade.OK, f"{ME_NAME}, as for the launcher"),
        (
            {"GPUQUEUE_WORKERS_ACCOUNT": "gpuqueue-wokers"},
            "workers account",
            Grade.PROBLEM,
            "workers_account is gpuqueue-wokers, and the launcher starts jobs for ",
        ),
        ({"GPUQUEUE_WORKERS_ACCOUNT": "x", "served": None}, "workers account", Grade.UNKNOWN, "does not run"),
    ],
)
def test_what_is_wrong_with_the_launcher(
    examined: Any, situation: dict[str, Any], check: str, grade: Grade, seen: str
) -> None:
    """Each fault is found, and what looks like one and is none is not."""
    finding = examined(**situation)[check]

    assert (grade, True) == (finding.grade, seen in finding.seen), finding


def test_each_check_has_its_hosts(examined: Any, tmp_path: Path) -> None:
    """Where jobs run as the account of the worker, nothing is found. The service checks the account."""
    own = Settings.load({**BASE, "GPUQUEUE_STATE_DIR": str(tmp_path)})

    assert set() == set(by_check(CHECKS, own))
    assert {"launcher", "installation", "tickets"} == set(examined())
    assert {"workers account"} == set(examined(GPUQUEUE_WORKERS_ACCOUNT=ME_NAME))


def test_a_dead_socket_is_seen(tmp_path: Path) -> None:
    """A socket without a launcher, and no socket at all, are reported with the reason."""
    path = tmp_path / "launcher.sock"
    settings = Settings.load(
        {**BASE, "GPUQUEUE_STATE_DIR": str(tmp_path), "GPUQUEUE_RUN_AS": "submitter", "GPUQUEUE_LAUNCHER": str(path)}
    )
    (missing,) = launcher.launcher(settings)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as dead:
        dead.bind(str(path))
    (refused,) = launcher.launcher(settings)

    assert f"{path} cannot be used: No such file or directory" in missing.seen
    assert f"{path} cannot be used: Connection refused" in refused.seen
