"""The launcher's process: listens for shims, and forks a guard for each. Standard library only.

Started by root as ``python -I -S main.py``; ``gpuqueue-worker launcher`` does that. It reads no settings, because the
account of the workers can change those. Guards outlive it, so a restart affects no job.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import pwd
import resource
import signal
import socket
import stat
import struct
import sys
import time
import unicodedata  # noqa: F401 - as unpack
from pathlib import Path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any
if __name__ == "__main__" and not TYPE_CHECKING:  # isolated: only the standard library is on the path, and stays first
    sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

# The code of a job is unpacked as its submitter, who may not be able to read the library of this Python.
from gpuqueue.files import unpack  # noqa: E402
from gpuqueue.model.ticket import read_key  # noqa: E402 - behind the path
from gpuqueue.system.login_account import least_uid  # noqa: E402
from workers.launcher import cgroup_place, guard  # noqa: E402
from workers.launcher.account import Rules  # noqa: E402
from workers.launcher.cgroup import Limits  # noqa: E402
from workers.launcher.pam import Service  # noqa: E402
from workers.launcher.pinned_code import prepared  # noqa: E402
from workers.launcher.run_directory import mount_of  # noqa: E402
from workers.shim import host_memory, master_port  # noqa: E402
from workers.shim.code import DIRECTORY  # noqa: E402
from workers.shim.tree import prctl  # noqa: E402

PR_SET_DUMPABLE = 4
#: The process name, as ps and top show it. Guards have it too.
NAME = "gpuqueue-launch"
#: Connections that wait for a fork.
BACKLOG = 128
#: Pause after a connection that could not be accepted, in seconds.
FULL_S = 0.1


def main(words: list[str]) -> None:
    """Listen until a signal ends this process."""
    asked = parser().parse_args(words)
    if os.geteuid() != 0:
        sys.exit("gpuqueue launcher: only root can start jobs as other users: start it as root")
    for path in changeable(sources()):
        sys.exit(f"gpuqueue launcher: {path} can be changed by others than root: install gpuqueue where only root can")
    for path in changeable([os.path.dirname(os.path.abspath(asked.socket))], sticky=True):
        sys.exit(f"gpuqueue launcher: {path} can be changed by others than root: name another directory with --socket")
    try:
        service_uid = pwd.getpwnam(asked.account).pw_uid
    except KeyError:
        sys.exit(f"gpuqueue launcher: there is no account {asked.account}: create it, or name another with --account")
    rules = Rules(
        service_uid,
        asked.group,
        least_uid(),
        runs_of(asked),
        mount_of_runs(asked),
        asked.allow_setuid,
        cgroups=place_of_groups(asked),
        earlier_cgroups=cgroup_place.of_launcher(asked.socket),
        limits=limits_of(asked),
        remove_shared_memory=asked.remove_shared_memory,
        ticket_key=key_of(asked),
        code_place=place_of_code(asked),
        pam=pam_of(asked),
        login_shells=frozenset(asked.login_shells.split(",")) if asked.login_shells else None,
    )
    harden()
    try:
        listener = listen(asked.socket, service_uid)
    except OSError as error:
        sys.exit(f"gpuqueue launcher: cannot listen on {asked.socket}: {error.strerror}")
    print(f"gpuqueue launcher: {asked.socket}, for jobs of the group {asked.group}", file=sys.stderr)  # noqa: T201
    serve(listener, rules)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    found = argparse.ArgumentParser(prog="gpuqueue-worker launcher", allow_abbrev=False)
    found.add_argument("--account", required=True)
    found.add_argument("--group", required=True)
    found.add_argument("--socket", required=True)
    found.add_argument("--runs", required=True)
    found.add_argument("--allow-setuid", action="store_true")
    found.add_argument("--runs-group")
    found.add_argument("--run-memory-bytes", type=int)
    found.add_argument("--run-cpus", type=float)
    found.add_argument("--run-processes", type=int)
    found.add_argument("--remove-shared-memory", action="store_true")
    found.add_argument("--ticket-key")
    found.add_argument("--pam-service")
    found.add_argument("--login-shells")
    return found


def runs_of(asked: argparse.Namespace) -> str:
    """Return the directory with the run directories. End if others than root could replace it."""
    path: str = os.path.realpath(asked.runs)
    for above in changeable([os.path.dirname(path)], sticky=True):
        sys.exit(f"gpuqueue launcher: {above} can be changed by others than root: name another directory with --runs")
    return path


def mount_of_runs(asked: argparse.Namespace) -> str | None:
    """Return the mount on which the run directories are, None if there is no directory for them yet."""
    try:
        fd = os.open(runs_of(asked), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        return mount_of(fd)
    finally:
        os.close(fd)


def limits_of(asked: argparse.Namespace) -> Limits:
    """Return the most that one run may use of this host."""
    return Limits(asked.run_memory_bytes, asked.run_cpus, asked.run_processes)


def key_of(asked: argparse.Namespace) -> bytes | None:
    """Return the key of the service that signs jobs, None if root has named none. End if it cannot be used."""
    if asked.ticket_key is None:
        return None
    path = Path(asked.ticket_key)
    try:
        mode, key = path.stat().st_mode, read_key(path)
    except (OSError, ValueError) as error:
        sys.exit(f"gpuqueue launcher: the key of the tickets cannot be used: {error}")
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        sys.exit(f"gpuqueue launcher: others than its owner can read the key of the tickets: chmod 400 {path}")
    return key


def place_of_code(asked: argparse.Namespace) -> str | None:
    """Return where signed jobs see their code, beside the socket; None if jobs need no signature."""
    if asked.ticket_key is None:
        return None
    try:
        return prepared(os.path.join(os.path.dirname(os.path.abspath(asked.socket)), DIRECTORY))
    except OSError as error:
        sys.exit(f"gpuqueue launcher: there is no place for the code of jobs: {error.strerror or error}")


def pam_of(asked: argparse.Namespace) -> Service | None:
    """Return the service of PAM that opens a session for each run, None if none is named. End if it cannot be used."""
    try:
        return Service(asked.pam_service) if asked.pam_service else None
    except OSError as error:
        sys.exit(f"gpuqueue launcher: no PAM session can be opened: {error.strerror or error}")


def place_of_groups(asked: argparse.Namespace) -> str | None:
    """Return the directory for the control groups of the runs; None if there can be none. End if limits need one."""
    place, why = None, "--runs-group names no control group for the runs"
    if asked.runs_group:
        try:
            place = cgroup_place.of_unit(asked.runs_group, asked.socket)
        except OSError as error:
            why = error.strerror or str(error)
    lacking = limits_of(asked).unsupported(place)
    if lacking is not None:
        why = why if place is None else f"the kernel has no {lacking} controller for {asked.runs_group}"
        sys.exit(f"gpuqueue launcher: runs cannot be limited: {why}")
    if place is None and asked.runs_group:
        print(f"gpuqueue launcher: nothing shares memory and processors among the runs: {why}", file=sys.stderr)  # noqa: T201
    return place or cgroup_place.of_launcher(asked.socket)


def sources() -> list[str]:
    """Return the files and directories whose content this process executes."""
    ours = [os.path.dirname(os.path.dirname(os.path.abspath(each))) for each in (__file__, unpack.__file__)]
    return [sys.executable, os.path.dirname(os.__file__), *(path for top in ours for path, *_ in os.walk(top))]


def changeable(paths: list[str], *, sticky: bool = False) -> Iterator[str]:
    """Yield the paths that others than root could replace: by their owner or mode, or by those of a parent.

    With *sticky*, a directory such as /tmp passes, where nobody can replace what is root's.
    """
    for path in dict.fromkeys(above for each in paths for above in parents(os.path.realpath(each))):
        found = os.lstat(path)
        if others_write(found) and not (sticky and found.st_uid == 0 and found.st_mode & stat.S_ISVTX):
            yield path


def others_write(found: os.stat_result) -> bool:
    """Return whether others than root can change a file or directory."""
    return found.st_uid != 0 or bool(found.st_mode & (stat.S_IWGRP | stat.S_IWOTH))


def parents(path: str) -> Iterator[str]:
    """Yield *path* and the directories above it."""
    yield path
    while path != "/":
        path = os.path.dirname(path)
        yield path


def harden() -> None:
    """Forbid core dumps and tracing of this process and its guards, and drop the caller's environment."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    os.environ.clear()
    os.umask(0o077)
    os.chdir("/")
    with contextlib.suppress(OSError), open("/proc/self/comm", "w", encoding="ascii") as name:
        name.write(NAME)


def listen(path: str, uid: int) -> socket.socket:
    """Return the listening socket at *path*, which only the account *uid* and root can connect to."""
    with contextlib.suppress(FileNotFoundError):
        if stat.S_ISSOCK(os.lstat(path).st_mode):
            os.unlink(path)  # of an earlier launcher
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    listener.bind(path)
    os.chmod(path, 0o600)
    os.chown(path, uid, -1)
    listener.listen(BACKLOG)
    return listener


def serve(listener: socket.socket, rules: Rules) -> None:
    """Fork a guard for each connection of the account of the workers."""
    signal.signal(signal.SIGCHLD, collect)
    master_port.candidates()  # read once, for all guards
    host_memory.opened()
    gc.collect()
    gc.freeze()
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:  # the host has no file descriptor left
            time.sleep(FULL_S)
            continue
        with connection, contextlib.suppress(OSError):  # without a process the shim sees the end of the connection
            if peer_uid(connection) == rules.service_uid and os.fork() == 0:
                become_guard(listener, connection, rules)


def become_guard(listener: socket.socket, connection: socket.socket, rules: Rules) -> None:
    """Serve *connection* and never return."""
    try:
        listener.close()
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        guard.serve(connection, rules)
    except OSError:  # the shim is gone
        pass
    finally:
        os._exit(0)


def peer_uid(connection: socket.socket) -> int:
    """Return the user id of the process that connected, as the kernel says."""
    size = struct.calcsize("3i")
    return struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))[1]  # type: ignore[no-any-return]


def collect(_number: int, _frame: Any) -> None:
    """Reap the guards that have ended."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0] != 0:
            pass


if __name__ == "__main__":
    main(sys.argv[1:])
