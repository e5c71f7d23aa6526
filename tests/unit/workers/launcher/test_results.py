"""Tests of packing by the launcher: a real guard in a process of its own, without real accounts."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from bounded import until
from results_copy import Copy, contents

from gpuqueue.files.ignore import rules_of
from workers.launcher import guard
from workers.launcher.account import Rules
from workers.results import pack as packing
from workers.results.pack import ArchiveRequest
from workers.shim.launch_protocol import PACK
from workers.shim.launched import connect, pack_code

#: A user id of a person. No account needs to have it. Tests that run at the same time need different ones.
OWNER = 100_000 + os.getpid()
RUN = "1/1.a"

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory to another account")

Ask = Callable[..., tuple[int, str]]


@pytest.fixture
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the guard give up soon."""
    monkeypatch.setattr(packing, "STALL_S", 1.0)
    monkeypatch.setattr(guard, "STALL_S", 1.0)


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[str]:
    """Return the path of a socket behind which one guard serves one request."""
    path = str(tmp_path / "launcher.sock")
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listening.bind(path)
    listening.listen()
    pid = os.fork()
    if pid == 0:
        try:
            guard.serve(listening.accept()[0], Rules(0, "lab", 1000, str(tmp_path)))
        finally:
            os._exit(0)
    yield path
    listening.close()
    os.waitpid(pid, 0)


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    """Return a copy of code that belongs to a person, with one file of the job."""
    made = Copy(tmp_path / RUN / "code")
    made.take()
    made.write("out/file", b"x")
    give(made)
    return made


def give(copy: Copy) -> None:
    """Let everything in the copy belong to the person."""
    for each in (copy.code, *copy.code.rglob("*")):
        os.chown(each, OWNER, -1, follow_symlinks=False)
    copy.code.chmod(0o700)


@pytest.fixture
def ask(tmp_path: Path, listener: str) -> Ask:
    """Return a function that asks the guard to pack the run RUN into ``tmp_path / "archive.tar"``."""

    def asked(*patterns: str, text: bytes | None = None, output: int | None = None) -> tuple[int, str]:
        request = os.memfd_create("request")
        os.write(request, ArchiveRequest.of(patterns, rules_of(patterns)).text() if text is None else text)
        archive = os.open(tmp_path / "archive.tar", os.O_WRONLY | os.O_CREAT) if output is None else output
        try:
            return pack_code(listener, f"{tmp_path}/{RUN}", request, archive)
        finally:
            for fd in {request, archive} - {output}:
                os.close(fd)

    return asked


def test_what_the_job_made_is_packed(copy: Copy, ask: Ask, tmp_path: Path) -> None:
    """The archive is complete when the answer comes."""
    assert copy.code.stat().st_uid == OWNER

    assert (0, "") == ask()

    assert {"out/file": (b"x", "644")} == contents(tmp_path / "archive.tar")


def test_nothing_is_read_that_the_owner_cannot_read(copy: Copy, ask: Ask, tmp_path: Path) -> None:
    """Files of others, also those behind a second name of theirs, and closed directories: left out, with a line."""
    secret = tmp_path / "secret"
    secret.write_text("of root")
    secret.chmod(0o640)
    os.link(secret, copy.tree / "hard-link")
    copy.write("closed/of-root").chmod(0o600)
    (copy.tree / "closed").chmod(0o700)

    number, lines = ask("*")

    assert (0, ["out/file"]) == (number, [*contents(tmp_path / "archive.tar")])
    assert lines.startswith("left out ")
    assert lines.endswith(", which cannot be read (Permission denied), and 1 more like it")


def test_a_group_with_the_number_of_the_owner_opens_nothing(copy: Copy, ask: Ask, tmp_path: Path) -> None:
    """The process has no group of anybody, so a file that a group may read stays closed."""
    shared = copy.write("shared", mode=0o040)
    os.chown(shared, 0, OWNER)

    number, _ = ask("shared")

    assert (0, []) == (number, [*contents(tmp_path / "archive.tar")])


@pytest.mark.parametrize("uid", [0, 999, 65534])
def test_the_code_of_no_person_is_not_packed(copy: Copy, ask: Ask, tmp_path: Path, uid: int) -> None:
    """Nothing is packed as root or as an account of the system."""
    os.chown(copy.code, uid, -1)

    assert (-1, f"the code of a run belongs to the user id {uid}, which is no person's") == ask()
    assert 0 == (tmp_path / "archive.tar").stat().st_size


def test_a_directory_of_a_user_is_not_packed(copy: Copy, ask: Ask) -> None:
    """The launcher reads no directory of a user, whatever the service account names."""
    os.chown(copy.code.parent, OWNER, -1)

    assert (-1, "the run directory does not belong to the account of the queue") == ask()


@pytest.mark.parametrize("gone", ["code", "code/tree"])
def test_a_copy_that_is_gone_has_its_own_answer(copy: Copy, ask: Ask, gone: str) -> None:
    """The caller can tell it from a failure."""
    (copy.code.parent / gone).rename(copy.code.parent / "away")

    assert errno.ENOENT == ask()[0]


@pytest.mark.parametrize("text", [b"", b"{}", b"[" * 100_000, b'[[["(", true]], []]', b"[1, 2]", b"\xff"])
def test_a_damaged_request_is_an_answer(copy: Copy, ask: Ask, text: bytes) -> None:
    """Nothing is packed, and the caller learns that something is wrong."""
    assert copy.tree.exists()

    number, reason = ask(text=text)

    assert (-1, True) == (number, bool(reason))


def test_an_archive_that_is_cut_short_is_no_success(copy: Copy, ask: Ask) -> None:
    """The reason names what happened."""
    reader, writer = os.pipe()
    os.close(reader)
    copy.write("big", bytes(2**20))

    assert errno.EPIPE == ask("*", output=writer)[0]
    os.close(writer)


@pytest.fixture
def full_pipe() -> Iterator[tuple[int, int]]:
    """Return both ends of a pipe that has no room."""
    reader, writer = os.pipe()
    os.write(writer, bytes(fcntl.fcntl(writer, fcntl.F_GETPIPE_SZ)))
    yield reader, writer
    os.close(reader)


def test_it_ends_when_the_asker_is_gone(copy: Copy, listener: str, full_pipe: tuple[int, int]) -> None:
    """No process goes on to read or write for nobody."""
    reader, writer = full_pipe
    run, request = os.open(copy.code.parent, os.O_RDONLY), os.memfd_create("request")
    os.write(request, ArchiveRequest.of(("*",), rules_of(["*"])).text())
    with connect(listener) as connection:
        socket.send_fds(connection, [PACK], [run, request, writer])
        for fd in (run, request, writer):
            os.close(fd)
        until(processes_of_owner, what="a process that packs")

    drained = b"".join(iter(lambda: os.read(reader, 2**20), b""))  # ends once nobody has the other end any more
    until(lambda: not processes_of_owner(), what="the end of the process that packs")
    assert drained.startswith(bytes(4096))


def processes_of_owner() -> list[int]:
    """Return the processes of the owner."""
    found = []
    for each in Path("/proc").glob("[0-9]*/status"):
        try:
            if f"\nUid:\t{OWNER}\t" in each.read_text():
                found.append(int(each.parent.name))
        except OSError:
            continue
    return found


@pytest.mark.usefixtures("_impatient")
def test_a_reader_that_does_not_read_is_given_up(ask: Ask, copy: Copy, full_pipe: tuple[int, int]) -> None:
    """The time without progress is bounded, and the caller learns why."""
    assert copy.tree.exists()

    number, reason = ask("*", output=full_pipe[1])

    assert (-1, True) == (number, reason.startswith("packing made no progress for 1 s: the reader does not read"))
    os.close(full_pipe[1])


@pytest.mark.usefixtures("_impatient")
def test_a_process_that_its_owner_stops_is_given_up(ask: Ask, copy: Copy, full_pipe: tuple[int, int]) -> None:
    """A user may signal the process that packs for the user, and harms only that."""
    assert copy.tree.exists()
    stopped = os.fork()
    if stopped == 0:
        try:
            for pid in until(processes_of_owner, what="a process that packs"):
                os.kill(pid, signal.SIGSTOP)
        finally:
            os._exit(0)

    assert -1 == ask("*", output=full_pipe[1])[0]

    os.waitpid(stopped, 0)
    os.close(full_pipe[1])
    until(lambda: not processes_of_owner(), what="the end of the stopped process")
