"""The messages between a shim and its guard, a process of the launcher. Standard library only.

The launcher listens on a socket that keeps message boundaries. One connection serves one request:

================  ======================================================  ==========================================
the shim sends    with                                                    the answer
================  ======================================================  ==========================================
``hello``                                                                 ``hello``
``sweep TOKEN``                                                           ``swept N``: no process of the run is left
``start RUN``     descriptors: the spec; the bundle if the job's code     ``ok PID GUARD``, or ``no ERRNO REASON``
                  came with it; standard output and, if it is another
                  file, standard error
``remove RUN``                                                            ``removed``: its ``code`` is empty, or
                                                                          ``no ERRNO REASON``
``pack RUN``      descriptors: a file with the request, and where to      ``packed NOTES``: the archive is complete, or
                  write the archive                                       ``no ERRNO REASON``
``port TOKEN N``                                                          ``at ADDRESS``: only the run's processes
                                                                          listen there on N; no ADDRESS: nowhere
================  ======================================================  ==========================================

RUN is the name of a run directory, JOB/TOKEN. The launcher opens it itself, below the directory that root has named.
After ``ok`` the connection stays open as long as a process of the run is left. The shim sends ``signal N`` for all
processes, or ``first N`` for the first one. The guard sends ``ended STATUS CAUSE`` when the first process has ended
(negative for a signal; the cause is empty, or says that host memory ran short). When the last one has, it sends
``left NOTES`` (JSON) if they have left shared memory, and ``gone MAXRSS_KB CPU_S``. If the shim closes the connection,
the guard kills all processes. If the guard closes it without ``gone``, the guard was killed. ``pack``, ``remove`` and
``port`` come from other processes of the account of the workers; packing ends if the one that asked closes the
connection.

``command`` to the guard of a run, with one end of a pair of sockets, prepares a second command in the run
(:mod:`workers.shim.second_command`). A process of the guard serves that pair: it takes ``command`` with descriptors
(the request; a terminal, or standard output, error and perhaps input), and then the same messages as a guard.
"""

from __future__ import annotations

import fcntl
import os
import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket

GREETING, START, SWEEP, REMOVE, PACK, PORT = b"hello", b"start", b"sweep", b"remove", b"pack", b"port"
#: Asks the guard of a run for a second command in it.
COMMAND = b"command"
#: The variable that identifies every process of a run.
TOKEN = "GPUQUEUE_TOKEN"  # noqa: S105 - a fencing token, no secret
#: Longest message, in bytes, and most descriptors in one.
MOST_BYTES = 4096
MOST_DESCRIPTORS = 5
#: Largest request for a second command, in bytes.
MAX_COMMAND_BYTES = 2**20
#: The variable of a second command. Its processes report nothing about the run.
SECOND = "GPUQUEUE_EXEC"


def run_name(path: str) -> bytes:
    """Return the name of the run directory at *path*, as the launcher takes it."""
    return os.fsencode("/".join(path.rstrip("/").split("/")[-2:]))


def command_environment(env: dict[str, str], *, has_terminal: bool) -> dict[str, str]:
    """Return the environment of a second command, from that of the job."""
    return {**({"TERM": "xterm"} if has_terminal else {}), **env, SECOND: "1"}


def wake_on(connection: socket.socket) -> None:
    """Have the kernel send this process SIGUSR1, which it must have blocked, for each message that arrives."""
    fd = connection.fileno()
    fcntl.fcntl(fd, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGUSR1)
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_ASYNC)
