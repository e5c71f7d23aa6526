"""Tests of the removal of code: a real guard in a process of its own, without real accounts."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from bounded import until

from workers.launcher import code_directory, guard
from workers.launcher.account import Refused, Rules
from workers.shim.launched import remove_code

#: A user id of a person. No account needs to have it. Tests that run at the same time need different ones.
OWNER = 5_000_000 + os.getpid()
RUN = "1/1.a"

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory to another account")


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[tuple[str, int]]:
    """Return the path of a socket behind which one guard serves one request, and the pid of that guard."""
    path = str(tmp_path / "launcher.sock")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(path)
    listener.listen()
    pid = os.fork()
    if pid == 0:
        try:
            guard.serve(listener.accept()[0], Rules(0, "lab", 1000, str(tmp_path)))
        finally:
            os._exit(0)
    yield path, pid
    listener.close()
    os.waitpid(pid, 0)


@pytest.fixture
def remove(tmp_path: Path, guarded: tuple[str, int]) -> Callable[[], None]:
    """Return a function that asks a guard to empty ``code`` in the run directory RUN."""
    return lambda: remove_code(guarded[0], f"{tmp_path}/{RUN}")


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """Return the directory ``code`` of a person, with a tree that the person can delete."""
    found = tmp_path / RUN / "code"
    (found / "tree" / "deep").mkdir(parents=True)
    (found / "tree" / "deep" / "file").touch()
    for each in (found, *found.rglob("*")):
        os.chown(each, OWNER, -1)
    return found


def test_an_empty_directory_is_answered_with_success(remove: Callable[[], None], code: Path) -> None:
    """All files of the owner are deleted, also in directories that are closed. The directory itself stays."""
    (code / "tree" / "deep").chmod(0o500)
    (code / "tree").chmod(0)

    remove()

    assert [] == [*code.iterdir()]


def test_files_that_are_left_are_an_error_with_a_reason(remove: Callable[[], None], code: Path) -> None:
    """What the owner may not delete stays. The rest is deleted, and the caller learns why something is left."""
    (code / "of-root").mkdir()
    (code / "of-root" / "file").touch()

    with pytest.raises(OSError, match=f"the user id {OWNER} cannot delete all files in it"):
        remove()

    assert ["of-root"] == [each.name for each in code.iterdir()]


def test_a_directory_of_no_person_is_an_error_with_a_reason(remove: Callable[[], None], code: Path) -> None:
    """Nothing is deleted as root, and the caller learns why."""
    os.chown(code, 0, -1)

    with pytest.raises(OSError, match="the code of a run belongs to the user id 0, which is no person's"):
        remove()

    assert ["tree"] == [each.name for each in code.iterdir()]


def processes_of_owner() -> list[int]:
    """Return the processes of the owner that have not ended."""
    found = []
    for each in Path("/proc").glob("[0-9]*/status"):
        with contextlib.suppress(OSError):
            text = each.read_text()
            if f"\nUid:\t{OWNER}\t" in text and "\nState:\tZ" not in text:
                found.append(int(each.parent.name))
    return found


@pytest.fixture
def _stopped(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[None]:
    """Let the process that deletes be stopped, as its owner can do."""
    monkeypatch.setattr(code_directory, "delete_below", lambda _: os.kill(os.getpid(), signal.SIGSTOP))
    request.getfixturevalue("guarded")
    yield
    for pid in processes_of_owner():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the guard give up soon."""
    monkeypatch.setattr(code_directory, "DELETE_S", 1.0, raising=False)


@pytest.mark.usefixtures("_impatient", "_stopped", "code")
def test_a_process_that_its_owner_stops_is_given_up(remove: Callable[[], None]) -> None:
    """A user may signal the process that deletes for the user, and neither it nor the guard stays for ever."""
    with pytest.raises(OSError, match=f"the user id {OWNER} has not deleted all files in it after 1 s"):
        remove()

    until(lambda: not processes_of_owner(), what="the end of the stopped process")


@pytest.mark.usefixtures("_stopped", "code")
def test_it_ends_with_its_guard(remove: Callable[[], None], guarded: tuple[str, int]) -> None:
    """No process is left if the guard is killed."""

    def ask() -> None:
        with contextlib.suppress(OSError):
            remove()

    asking = threading.Thread(target=ask)
    asking.start()
    until(processes_of_owner, what="a process that deletes")

    os.kill(guarded[1], signal.SIGKILL)

    until(lambda: not processes_of_owner(), timeout_s=10, what="the end of the process that deletes")
    asking.join()


def test_nothing_of_the_run_directory_is_inherited(tmp_path: Path) -> None:
    """Neither a default ACL of the workers nor their group gives them files of the job."""
    entries = [(1, 7, 0xFFFFFFFF), (2, 7, OWNER + 1), (4, 0, 0xFFFFFFFF), (16, 7, 0xFFFFFFFF), (32, 0, 0xFFFFFFFF)]
    os.chown(tmp_path, -1, OWNER)
    tmp_path.chmod(0o2711)
    try:
        acl = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
        os.setxattr(tmp_path, "system.posix_acl_default", acl)
    except OSError as error:
        pytest.skip(f"no ACLs on this disk: {error.strerror}")
    run_dir = os.open(tmp_path, os.O_RDONLY)
    try:
        fd = code_directory.make_code_directory(run_dir, OWNER)
    finally:
        os.close(run_dir)

    try:
        found = os.fstat(fd)
        assert (0o40700, OWNER, 0) == (found.st_mode, found.st_uid, found.st_gid)
        assert not [name for name in os.listxattr(fd) if "acl" in name]
    finally:
        os.close(fd)


def test_one_directory_is_not_given_to_two_accounts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The account of the workers exchanges two new directories while root is about to give the first one away.

    The second account would own the directory from which the job of the first one runs its signed code.
    """
    run, first, second = os.open(tmp_path, os.O_RDONLY), tmp_path / "first", tmp_path / "second"
    make, give, code = os.mkdir, os.fchown, tmp_path / "code"

    def exchange(name: str, mode: int, *, dir_fd: int) -> None:
        make(name, mode, dir_fd=dir_fd)
        code.rename(second)
        first.rename(code)

    def while_another_starts(fd: int, uid: int, gid: int) -> None:
        monkeypatch.setattr(os, "fchown", give)
        monkeypatch.setattr(os, "mkdir", exchange)
        code.rename(first)
        with pytest.raises(Refused, match="the directory for its code was replaced"):
            code_directory.make_code_directory(run, OWNER + 1)
        give(fd, uid, gid)

    monkeypatch.setattr(os, "fchown", while_another_starts)
    made = code_directory.make_code_directory(run, OWNER)

    assert os.path.samestat(os.fstat(made), code.stat())
    assert (OWNER, 0) == (code.stat().st_uid, second.stat().st_uid)
    os.close(made)
    os.close(run)
