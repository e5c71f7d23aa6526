"""Packs the results of a run in a process that has become their owner. Standard library only.

Nothing in the code directory is opened as root, and the request is not read as root either: its patterns come from
users.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import socket

from workers.launcher.account import Refused, Rules
from workers.launcher.code_directory import become_owner, open_code_directory
from workers.launcher.run_directory import open_run
from workers.results.errors import NoCopy, PackFailed
from workers.results.pack import pack as pack_code
from workers.results.progress import STALL_S, Progress, stalled
from workers.results.wanted import MOST_REQUEST_BYTES, Request
from workers.shim.launch_protocol import MOST_BYTES

#: What the child writes while it makes progress. No answer has it.
STEP = b"\0"


def pack(asker: socket.socket, name: str, request: int, output: int, rules: Rules) -> None:
    """Pack the results in the run directory *name* into *output*, and send the answer to *asker*."""
    guard = os.getpid()
    try:
        run_dir = open_run(name, rules)
        code, uid = open_code_directory(run_dir, rules)
        reader, answer = os.pipe()
        pid = os.fork()
    except Refused as refusal:
        asker.send(f"no -1 {refusal}".encode()[:MOST_BYTES])
        return
    except OSError as error:
        asker.send(f"no {error.errno} {error.strerror}".encode())
        return
    if pid == 0:
        try:
            asker.close()
            os.close(run_dir)
            os.close(reader)
            os.write(answer, answer_of_owner(code, uid, request, output, answer, guard))
        finally:
            os._exit(0)
    for fd in (code, request, output, answer):
        os.close(fd)
    try:
        text = followed(asker, reader)
    finally:
        os.kill(pid, signal.SIGKILL)  # not reaped, so the pid is still its own
    if text:
        asker.send(text)


def answer_of_owner(code: int, uid: int, request: int, output: int, answer: int, guard: int) -> bytes:
    """Become the owner, the account *uid*, write the archive, and return the answer."""
    try:
        become_owner(uid, guard)
        progress = Progress(output, lambda: os.write(answer, STEP))
        lines = pack_code(code, Request.read(os.pread(request, MOST_REQUEST_BYTES, 0)), output, progress)
        text = "packed " + "\n".join(lines)
    except NoCopy as error:
        text = f"no {errno.ENOENT} {error}"
    except (PackFailed, Refused) as error:
        text = f"no -1 {error}"
    except BrokenPipeError as error:
        text = f"no {errno.EPIPE} {error.strerror}"
    except Exception as error:  # noqa: BLE001 - the asker reports any error
        text = f"no -1 {getattr(error, 'strerror', None) or repr(error)}"
    return text.encode(errors="replace")[:MOST_BYTES]


def followed(asker: socket.socket, reader: int) -> bytes:
    """Return the answer of the child; none if *asker* is gone. A child that makes no progress gets no more time."""
    poll = select.poll()
    poll.register(asker, select.POLLIN)
    poll.register(reader, select.POLLIN)
    text = b""
    while ready := {fd for fd, _ in poll.poll(STALL_S * 1000)}:
        if asker.fileno() in ready:
            return b""
        part = os.read(reader, MOST_BYTES)
        if not part:
            return text or b"no -1 the process that packed the results was killed"
        text = (text + part.replace(STEP, b""))[:MOST_BYTES]
    return f"no -1 {stalled()}".encode()
