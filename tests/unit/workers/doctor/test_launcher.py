from __future__ import annotations

import os
import pwd
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from gpuqueue.model.finding import Finding, Grade, examined
from gpuqueue.settings.settings import Settings
from workers.doctor.launcher import CHECKS, Facts, facts_of

ME = os.geteuid()
WELL = Facts(socket="/run/gpuqueue-launcher/launcher.sock", served=ME, expected=ME)
#: The same of workers beside a service.
BESIDE = replace(WELL, key=(54322, 0o400), expected=54321, service=54322, is_joined=True)


def found(facts: Facts, check: str = "launcher") -> Finding | None:
    """Return the finding of one check, or None if it has none."""
    return next((each for each in examined("host", facts, CHECKS) if each.check == check), None)


@pytest.mark.parametrize(
    ("facts", "grade", "words"),
    [
        (WELL, Grade.OK, "answers, for"),
        (replace(WELL, trouble="Connection refused", served=None), Grade.PROBLEM, "cannot be used: Connection refused"),
        (replace(WELL, served=54321), Grade.PROBLEM, "is for uid 54321, and the workers are"),
        (replace(WELL, open_directory="/srv"), Grade.PROBLEM, "/srv can be changed by others than root"),
    ],
)
def test_what_is_wrong_with_the_launcher(facts: Facts, grade: Grade, words: str) -> None:
    """A launcher that is away, serves another account, or has a socket that can be replaced is a problem."""
    finding = found(facts)

    assert finding is not None
    assert grade is finding.grade
    assert words in finding.seen


def test_an_open_installation_is_a_problem() -> None:
    """A file that others than root can change is named."""
    finding = found(replace(WELL, open_installation="/opt/gpuqueue/bin"), "installation")

    assert finding is not None
    assert (Grade.PROBLEM, True) == (finding.grade, finding.seen.startswith("/opt/gpuqueue/bin can be changed"))


@pytest.mark.parametrize(
    ("facts", "grade", "words"),
    [
        (WELL, Grade.NOTE, "jobs need no signature here"),
        (replace(WELL, key=(0, 0o400), is_joined=True), Grade.OK, "only root can read"),
        (replace(WELL, key=(0, 0o440), is_joined=True), Grade.PROBLEM, "can be read by root and others"),
        (replace(WELL, key=(54321, 0o400), expected=54321, is_joined=True), Grade.PROBLEM, "can be read by uid 54321"),
        (BESIDE, Grade.OK, "only root and uid 54322, the account of the service, can read"),
        (replace(BESIDE, key=(54322, 0o440)), Grade.PROBLEM, "can be read by uid 54322 and others"),
        (replace(BESIDE, key=(54321, 0o400)), Grade.PROBLEM, "can be read by uid 54321"),
        (replace(BESIDE, service=54321, key=(54321, 0o400)), Grade.PROBLEM, "can be read by uid 54321"),
        (replace(WELL, key=(54321, 0o400), expected=54321), Grade.NOTE, "it guards the other hosts"),
        (replace(WELL, key=(54321, 0o404), expected=54321), Grade.PROBLEM, "can be read by uid 54321 and others"),
        (replace(WELL, key=(54322, 0o400), expected=54321), Grade.PROBLEM, "can be read by uid 54322"),
    ],
)
def test_who_reads_the_key_of_the_tickets(facts: Facts, grade: Grade, words: str) -> None:
    """A key that the workers of a host can read protects nobody. On the host of the service they have its account."""
    finding = found(facts, "tickets")

    assert finding is not None
    assert (grade, True) == (finding.grade, words in finding.seen), finding


def test_jobs_of_the_worker_need_no_launcher(tmp_path: Path) -> None:
    """Nothing is checked and nothing is found where jobs run as the account of the worker."""
    facts = facts_of(Settings.load({"GPUQUEUE_STATE_DIR": str(tmp_path), "GPUQUEUE_CONFIG": os.devnull}))

    assert (None, None, None) == (facts.socket, found(facts), found(facts, "installation"))


def test_a_dead_socket_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A socket without a launcher, and no socket at all, are reported with the reason."""
    monkeypatch.setattr("workers.doctor.launcher.first_changeable", lambda: None)  # it looks at ten thousand files
    environ = {
        "GPUQUEUE_STATE_DIR": str(tmp_path),
        "GPUQUEUE_CONFIG": os.devnull,
        "GPUQUEUE_RUN_AS": "submitter",
        "GPUQUEUE_LAUNCHER": str(tmp_path / "launcher.sock"),
    }
    missing = facts_of(Settings.load(environ))
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as dead:
        dead.bind(str(tmp_path / "launcher.sock"))
    refused = facts_of(Settings.load(environ))

    assert ("No such file or directory", None) == (missing.trouble, missing.served)
    assert ("Connection refused", ME) == (refused.trouble, refused.served)


@pytest.mark.parametrize(
    ("named", "grade", "words"),
    [
        (pwd.getpwuid(ME).pw_name, Grade.OK, "as for the launcher"),
        ("gpuqueue-wokers", Grade.PROBLEM, "workers_account is gpuqueue-wokers, and the launcher starts jobs for "),
    ],
)
def test_the_service_knows_the_account_of_the_workers(named: str, grade: Grade, words: str) -> None:
    """With another name the workers would have the rights of a person, and that account those of the workers."""
    finding = found(Facts(socket=None, served=ME, named=named), "workers account")

    assert finding is not None
    assert (grade, True) == (finding.grade, words in finding.seen), finding
    assert found(Facts(socket=None), "workers account") is None
