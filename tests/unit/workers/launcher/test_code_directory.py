"""Tests of the removal of code: a real guard in a process of its own, without real accounts."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from workers.launcher import guard
from workers.launcher.account import Rules
from workers.shim.launched import remove_code

#: A user id of a person. No account needs to have it.
OWNER = 54321
RULES = Rules(service_uid=0, group="lab", least_uid=1000)

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory to another account")


@pytest.fixture
def remove(tmp_path: Path) -> Iterator[Callable[[], None]]:
    """Return a function that asks a guard to empty ``code`` in the run directory ``tmp_path / "run"``."""
    path = str(tmp_path / "launcher.sock")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(path)
    listener.listen()
    pid = os.fork()
    if pid == 0:
        try:
            guard.serve(listener.accept()[0], RULES)
        finally:
            os._exit(0)

    def ask() -> None:
        fd = os.open(tmp_path / "run", os.O_RDONLY)
        try:
            remove_code(path, fd)
        finally:
            os.close(fd)

    yield ask
    listener.close()
    os.waitpid(pid, 0)


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """Return the directory ``code`` of a person, with a tree that the person can delete."""
    found = tmp_path / "run" / "code"
    (found / "tree" / "deep").mkdir(parents=True)
    (found / "tree" / "deep" / "file").touch()
    for each in (found, *found.rglob("*")):
        os.chown(each, OWNER, -1)
    return found


def test_an_empty_directory_is_answered_with_success(remove: Callable[[], None], code: Path) -> None:
    """All files of the owner are deleted, and the directory itself stays."""
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
