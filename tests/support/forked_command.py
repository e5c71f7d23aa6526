"""Runs ``gpuqueue`` in forks of a process that has imported it already.

A fork has its own environment, directory, umask, signals and exit code like any process, and saves the start of an
interpreter and the imports: most of what a command costs. The forking process is single-threaded and has no database
open. With ``REAL_COMMANDS`` set, each command is a process of its own instead, which takes twice as long.
"""

from __future__ import annotations

import atexit
import io
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import IO, NoReturn

from gpuqueue.system.account import current_umask

#: Read before the tests wipe the environment.
REAL_COMMANDS = bool(os.environ.get("REAL_COMMANDS"))
BIN = Path(sys.executable).parent
#: Longest time that a command may take, in seconds.
TIMEOUT_S = 100
#: Largest request and largest standard input, in bytes; more goes to a process of its own.
MOST_BYTES = 60_000
#: Commands that start processes which outlive them, or that need a terminal.
ALWAYS_REAL = frozenset({"up", "top"})


def command(words: Sequence[str], environ: Mapping[str, str], *, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run ``gpuqueue`` with these words, as a user would, and return what it printed and its exit code."""
    request = json.dumps([list(words), dict(environ), str(Path.cwd()), current_umask()]).encode()
    if REAL_COMMANDS or not words or words[0] in ALWAYS_REAL or max(len(request), len(stdin)) > MOST_BYTES:
        return subprocess.run(
            [str(BIN / "gpuqueue"), *words],
            env=dict(environ),
            capture_output=True,
            text=True,
            input=stdin,
            timeout=TIMEOUT_S,
            check=False,
        )
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        code = _forked(request, stdin.encode(), out, err)
        return subprocess.CompletedProcess(["gpuqueue", *words], code, _text(out), _text(err))


def _forked(request: bytes, stdin: bytes, out: IO[bytes], err: IO[bytes]) -> int:
    """Run the command; return its exit code, or the negative number of the signal that ended it."""
    reads, writes = os.pipe()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)  # pid and exit code are two messages
    with ours, theirs:
        socket.send_fds(_forker(), [request], [reads, out.fileno(), err.fileno(), theirs.fileno()])
        os.close(reads)
        theirs.close()
        os.write(writes, stdin)
        os.close(writes)
        pid = int(ours.recv(20).split()[0])
        if not select.select([ours], [], [], TIMEOUT_S)[0]:
            os.kill(pid, signal.SIGKILL)
            raise subprocess.TimeoutExpired(json.loads(request)[0], TIMEOUT_S)
        return int(ours.recv(20))


@cache
def _forker() -> socket.socket:
    """Start the process that forks; it ends with this one."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen([sys.executable, __file__, str(theirs.fileno())], pass_fds=[theirs.fileno()])

    def stop() -> None:
        ours.close()
        process.wait()

    atexit.register(stop)
    return ours


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode()


def _serve(requests: socket.socket) -> None:
    """Fork for each request, until the test process has gone."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    main = import_module("gpuqueue.cli.main")
    for module, _ in main.COMMANDS.values():
        import_module(module)
    while True:
        request, fds, _, _ = socket.recv_fds(requests, 2 * MOST_BYTES, 4)
        if not request:
            return
        if os.fork() == 0:
            requests.close()
            _answer(*json.loads(request), fds)
        for fd in fds:
            os.close(fd)


def _answer(words: Sequence[str], environ: Mapping[str, str], cwd: str, umask: int, fds: Sequence[int]) -> NoReturn:
    """Run the command in a fork of this process, report its pid and then its end, and exit."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    reply = fds[3]
    pid = os.fork()
    if pid == 0:
        os.umask(umask)
        _become(words, environ, cwd, fds)
    os.write(reply, f"{pid} ".encode())
    _, status = os.waitpid(pid, 0)
    os.write(reply, str(os.waitstatus_to_exitcode(status)).encode())
    os._exit(0)


def _become(words: Sequence[str], environ: Mapping[str, str], cwd: str, fds: Sequence[int]) -> NoReturn:
    """Run the command in this process, and end it."""
    code = 1
    try:
        for number, source in enumerate(fds[:3]):
            os.dup2(source, number)
        os.closerange(3, max(fds) + 1)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.chdir(cwd)
        os.environ.clear()
        os.environ.update(environ)
        sys.argv = ["gpuqueue", *words]
        sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0)), encoding="utf-8")
        sys.stdout = io.TextIOWrapper(io.BufferedWriter(io.FileIO(1, "w")), encoding="utf-8")
        sys.stderr = io.TextIOWrapper(io.BufferedWriter(io.FileIO(2, "w")), encoding="utf-8", line_buffering=True)
        import_module("gpuqueue.__main__").main()
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:  # noqa: BLE001 - a test must see it
        traceback.print_exc()
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as from_tests:
        _serve(from_tests)
