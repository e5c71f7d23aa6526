"""Runs ``gpuqueue`` in a fork of the test process, which has imported it already.

A fork has its own environment, signals and exit code like any process, and saves the start of an interpreter and the
imports: most of what a command costs. With ``REAL_COMMANDS`` set, as in ``dev.py test --full``, each command is a
real process instead.
"""

from __future__ import annotations

import io
import os
import select
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, NoReturn

from gpuqueue.__main__ import main

#: Read before the tests wipe the environment.
REAL_COMMANDS = bool(os.environ.get("REAL_COMMANDS"))
BIN = Path(sys.executable).parent
#: Longest time that a command may take, in seconds.
TIMEOUT_S = 100
#: The largest standard input that a pipe takes at once, in bytes.
PIPE_BYTES = 65_536
#: Commands that start processes which outlive them: they inherit nothing from the tests.
ALWAYS_REAL = frozenset({"up", "simulate", "top"})


def command(words: Sequence[str], environ: Mapping[str, str], *, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run ``gpuqueue`` with these words, as a user would, and return what it printed and its exit code."""
    if REAL_COMMANDS or not words or words[0] in ALWAYS_REAL or len(stdin) > PIPE_BYTES // 4:
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
        code = _forked(words, environ, stdin.encode(), out, err)
        return subprocess.CompletedProcess(["gpuqueue", *words], code, _text(out), _text(err))


def _forked(words: Sequence[str], environ: Mapping[str, str], stdin: bytes, out: IO[bytes], err: IO[bytes]) -> int:
    """Run the command in a fork; return its exit code, or the negative number of the signal that ended it."""
    reads, writes = os.pipe()
    pid = os.fork()
    if pid == 0:
        _become(words, environ, (reads, out.fileno(), err.fileno()))
    os.close(reads)
    os.write(writes, stdin)
    os.close(writes)
    pidfd = os.pidfd_open(pid)
    try:
        if not select.select([pidfd], [], [], TIMEOUT_S)[0]:
            os.kill(pid, signal.SIGKILL)
            raise subprocess.TimeoutExpired(["gpuqueue", *words], TIMEOUT_S, _text(out), _text(err))  # type: ignore[arg-type]
    finally:
        os.close(pidfd)
        _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)


def _become(words: Sequence[str], environ: Mapping[str, str], standard: tuple[int, int, int]) -> NoReturn:
    """Run the command in this process, which is the fork, and end it."""
    code = 1
    try:
        for number, source in enumerate(standard):
            os.dup2(source, number)
        os.closerange(3, 1024)  # what the tests have open is not the command's
        for number in (signal.SIGALRM, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.environ.clear()
        os.environ.update(environ)
        sys.argv = ["gpuqueue", *words]
        sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0)), encoding="utf-8")
        sys.stdout = io.TextIOWrapper(io.BufferedWriter(io.FileIO(1, "w")), encoding="utf-8")
        sys.stderr = io.TextIOWrapper(io.BufferedWriter(io.FileIO(2, "w")), encoding="utf-8", line_buffering=True)
        main()
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


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode()
