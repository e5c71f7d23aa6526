"""A file system that never answers: a process that looks up a name there waits in the kernel, and cannot be killed."""

from __future__ import annotations

import os
import select
import shutil
import socket
import struct
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

#: The size of a request, and the head of a request and of an answer (linux/fuse.h).
REQUEST_BYTES = 135_168
HEAD, ANSWER = "<IIQQ", "<IiQ"


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
