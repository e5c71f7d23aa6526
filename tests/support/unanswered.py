"""A file system that never answers: a process that looks up a name there waits in the kernel, and cannot be killed."""

from __future__ import annotations

import os
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

#: The size of a request, and the head of a request and of an answer (linux/fuse.h).
REQUEST_BYTES = 135_168
HEAD, ANSWER = "<IIQQ", "<IiQ"


#: Mounts a file system at PLACE in a user namespace of its own, opens a file there, and starts another program, which
#: closes it. The close is never answered: the file system has only what comes before it.
IN_EXEC = r"""
import ctypes, os, signal, struct, sys
libc, uid, gid, place = ctypes.CDLL(None, use_errno=True), os.getuid(), os.getgid(), sys.argv[1]
if libc.unshare(0x10020000) != 0:
    sys.exit("no user namespace")
for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
    open(f"/proc/self/{name}", "w").write(text)
fd = os.open("/dev/fuse", os.O_RDWR)
options = f"fd={fd},rootmode=40000,user_id=0,group_id=0"
if libc.mount(b"x", place.encode(), b"fuse", 0, options.encode()) != 0:
    sys.exit("no mount")
answers = {
    26: struct.pack("<IIIIHHIIHH7I", 7, 31, 0, 0, 0, 0, 65536, 1, 0, 0, *[0] * 7),  # init
    1: struct.pack("<QQQQII", 2, 1, 9, 9, 0, 0) + struct.pack("<QQQQQQ10I", 2, *[0] * 8, 0o100644, 1, *[0] * 5),
    14: struct.pack("<QII", 1, 0, 0),  # open
}
if os.fork() == 0:
    signal.alarm(60)
    while True:
        asked = os.read(fd, 135168)
        _, code, unique, _ = struct.unpack_from("<IIQQ", asked)
        if code == 25:  # flush
            print("waits", flush=True)
        elif code != 2:  # forget
            found = answers.get(code)
            head = struct.pack("<IiQ", 16 + len(found or b""), 0 if found else -38, unique)
            os.write(fd, head + (found or b""))
file = os.open(f"{place}/file", os.O_RDONLY)
os.execv("/bin/true", ["true"])
"""


@contextmanager
def waiting_in_exec(place: Path) -> Iterator[int]:
    """Start a process that waits in execve(2) until the end, and return its pid. On new kernels its stat waits, too."""
    place.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", IN_EXEC, str(place)],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        if process.stdout.readline() != "waits\n":
            pytest.skip("this account may mount no FUSE in a user namespace here")
        yield process.pid
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()


@contextmanager
def unanswered(place: Path, *, others: bool = False) -> Iterator[threading.Event]:
    """Mount the file system at *place*, and return the event that a process waits there.

    With *others*, which takes root, processes of other accounts may enter it.
    At the end each process goes on, and dies if it was killed.
    """
    program = shutil.which("fusermount3")
    if program is None or not os.access("/dev/fuse", os.R_OK | os.W_OK):
        pytest.skip("no FUSE here, which it takes to make a process that cannot be killed")
    place.mkdir()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        environ = {**os.environ, "_FUSE_COMMFD": str(theirs.fileno())}
        options = f"fsname=unanswered{',allow_other' if others else ''}"
        words = [program, "-o", options, "--", str(place)]
        if subprocess.run(words, env=environ, pass_fds=[theirs.fileno()], check=False).returncode != 0:
            pytest.skip("this account may mount no FUSE here")
        _, (fd,), _, _ = socket.recv_fds(ours, 1, 1)
    _, _, unique, _ = struct.unpack_from(HEAD, os.read(fd, REQUEST_BYTES))
    begun = struct.pack("<IIIIHHIIHH7I", 7, 31, 0, 0, 0, 0, 65_536, 1, 0, 0, *[0] * 7)
    os.write(fd, struct.pack(ANSWER, 16 + len(begun), 0, unique) + begun)
    asked, stopping = threading.Event(), threading.Event()
    reader = threading.Thread(target=_read, args=(fd, asked, stopping), daemon=True)
    reader.start()
    try:
        yield asked
    finally:
        stopping.set()
        reader.join()
        os.close(fd)  # this ends all requests
        subprocess.run([program, "-uz", str(place)], check=False)


def _read(fd: int, asked: threading.Event, stopping: threading.Event) -> None:
    """Take requests without an answer. Only one that was taken cannot be interrupted."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    while not stopping.is_set():
        if poll.poll(100):
            os.read(fd, REQUEST_BYTES)
            asked.set()
