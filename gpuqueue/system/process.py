"""Processes of this host, with identities that are never reused.

The kernel reuses pids, so a pid alone does not identify a process. Pid and start time identify it within one boot of
the host, and the boot id identifies the boot (proc(5)).
"""

from __future__ import annotations

import fcntl
import os
import re
import select
import shutil
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from gpuqueue.errors import GpuQueueError
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.lazy.imports import later

if TYPE_CHECKING:
    import subprocess
    from typing import Protocol

    class Endable(Protocol):
        """A process like a ``Popen``: one that can be waited for and killed."""

        def wait(self, timeout: float) -> int:
            """Wait for its end and return the exit code. Raise ``TimeoutExpired`` after *timeout* seconds."""

        def kill(self) -> None:
            """Send SIGKILL."""

else:
    subprocess = later("subprocess")

#: How long a killed process may take to end, in seconds.
KILLED_S = 5.0


@cache
def boot_id() -> str:
    """Return the id of this boot of the kernel."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def start_time(pid: int) -> int | None:
    """Return the start time of *pid* in clock ticks since boot, or None if the process is gone or a zombie.

    If /proc hides the process, it belongs to another account, and the result is None as well.

    Raises:
        OSError: /proc cannot be read, for lack of file descriptors or memory. The process may still be running.

    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    after_name = stat[stat.rindex(b")") + 2 :].split()  # the name may contain spaces and brackets
    return None if after_name[0] in {b"Z", b"X"} else int(after_name[19])


def age_s(pid: int) -> float | None:
    """Return the age of *pid* in seconds, or None if it is gone."""
    ticks = start_time(pid)
    if ticks is None:
        return None
    uptime_s = float(Path("/proc/uptime").read_text(encoding="ascii").split()[0])
    return uptime_s - ticks / os.sysconf("SC_CLK_TCK")


def each_process() -> Iterator[Path]:
    """Return an iterator over the /proc directories of all visible processes. Each may disappear at any time."""
    return (entry for entry in Path("/proc").iterdir() if entry.name.isdigit())


def ending_of(code: int) -> str:
    """Return how a process ended, in words, by its exit code, which is negative for a signal."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:  # a real-time signal without a name
        return f"was killed by signal {-code}"


def of_ours_with(words: str) -> list[int]:
    """Return the pids of this account's processes whose command line contains *words*."""
    found = []
    for entry in each_process():
        try:
            if entry.stat().st_uid == os.getuid() and os.fsencode(words) in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue  # the process has ended in the meantime
    return found


def has_own_pids() -> bool:
    """Return whether this process is in a pid namespace of its own, as in a container, and cannot see the host's."""
    try:
        # The initial pid namespace has this inode number on every Linux: PROC_PID_INIT_INO in linux/proc_ns.h.
        return str(Path("/proc/self/ns/pid").readlink()) != "pid:[4026531836]"
    except OSError:
        return False


def is_locked(path: Path) -> bool:
    """Return whether any process holds a lock (flock) on *path*.

    This reads the kernel's lock table, so that it never blocks a process that wants the lock at the same moment. In a
    container the table does not show the locks of other containers. There, or if the table cannot be read, this also
    tries to take the lock.
    """
    try:
        inode = str(path.stat().st_ino)
        locks = [line.split() for line in Path("/proc/locks").read_text(encoding="ascii").splitlines()]
    except OSError:
        return is_locked_anywhere(path)
    if any(words[1] == "FLOCK" and words[5].rpartition(":")[2] == inode for words in locks):
        return True
    return has_own_pids() and is_locked_anywhere(path)


def is_locked_anywhere(path: Path) -> bool:
    """Return whether any process in any container holds a lock (flock) on *path*. False if the file does not exist.

    This takes the lock for a moment, in which another process may fail to get it.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        return False
    finally:
        os.close(fd)


def end(process: Endable, patience_s: float) -> None:
    """Wait for the end of *process* for *patience_s*, and then kill it.

    A call of a driver that never returns keeps a process from ending, also after SIGKILL. So this waits for a killed
    process for ``KILLED_S`` at most.
    """
    for limit_s in (patience_s, KILLED_S):
        try:
            process.wait(limit_s)
        except subprocess.TimeoutExpired:
            process.kill()
        else:
            return


def installed(command: str) -> str:
    """Return the path of another gpuqueue command, installed next to this interpreter, else on PATH.

    ``python -m workers`` would not be safe, because it prefers a directory ``workers`` in the current directory.

    Raises:
        GpuQueueError: the command is not installed.

    """
    beside = Path(sys.executable).with_name(command)
    found = str(beside) if beside.exists() else shutil.which(command)
    if found is None:
        raise GpuQueueError(f"the command {command} is not installed beside gpuqueue: install the package again")
    return found


class DetachedProcess:
    """A program that outlives this process. It has a session of its own and writes its output to a file."""

    def __init__(
        self, argv: Sequence[str], *, log: Path, keep: int | None = None, environ: Mapping[str, str] | None = None
    ) -> None:
        """Start *argv*, whose first word is a path. It inherits the descriptor *keep*.

        Its environment is *environ*, by default that of this process. Its output is appended to *log*.

        Raises:
            OSError: the program could not be started.

        """
        log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        files = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ]
        if keep is not None:
            os.set_inheritable(keep, True)
        where = os.environ if environ is None else environ
        self.pid = os.posix_spawn(argv[0], list(argv), where, file_actions=files, setsid=True)
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal, or None while the program runs."""
        return self._collect(os.WNOHANG)

    def wait(self) -> int:
        """Wait for the end of the program and return the exit code, negative for a signal."""
        code = self._collect(0)
        return 0 if code is None else code

    def wait_and_reap(self) -> Iterator[tuple[int, int]]:
        """Wait for the end of the program, and yield pid and exit code of each other child that ends before it.

        So a child of this process that somebody else supervises does not remain as a zombie.
        """
        while self.returncode is None:
            pid, status = os.waitpid(-1, 0)
            code = os.waitstatus_to_exitcode(status)
            if pid == self.pid:
                self.returncode = code
            else:
                yield pid, code

    def _collect(self, options: int) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, options)
            if pid == self.pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode


#: A pid or a start time. A damaged file may contain non-ASCII digits, or very many digits.
_NUMBER = re.compile(r"[1-9][0-9]{0,17}")


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """The identity of one process, which no later process with the same pid shares."""

    pid: int
    started: int
    boot: str

    @classmethod
    def of(cls, pid: int) -> ProcessIdentity | None:
        """Return the identity of *pid*, or None if there is no such process."""
        started = start_time(pid)
        return None if started is None else cls(pid, started, boot_id())

    @classmethod
    def parse(cls, text: str) -> ProcessIdentity | None:
        """Return the identity from the text of ``str()``, or None if *text* is damaged."""
        words = text.split()
        if len(words) != 3 or not all(_NUMBER.fullmatch(word) for word in words[:2]):  # noqa: PLR2004 - three fields
            return None
        return cls(int(words[0]), int(words[1]), words[2])

    def __str__(self) -> str:
        return f"{self.pid} {self.started} {self.boot}"

    def alive(self) -> bool:
        """Return whether this very process still runs."""
        return self.boot == boot_id() and start_time(self.pid) == self.started

    def handle(self) -> int | None:
        """Return a pidfd of this very process, or None if it is gone. The caller closes the pidfd."""
        try:
            fd = os.pidfd_open(self.pid)
        except (ProcessLookupError, OverflowError, ValueError):
            return None
        if self.alive():
            return fd
        os.close(fd)
        return None

    def send(self, number: signal.Signals) -> bool:
        """Send a signal to this very process. Return False if it is gone."""
        fd = self.handle()
        if fd is None:
            return False
        try:
            signal.pidfd_send_signal(fd, number)
        except ProcessLookupError:
            return False
        finally:
            os.close(fd)
        return True

    def wait(self, timeout_s: float) -> bool:
        """Wait until this process is gone. Return False if it still runs after *timeout_s* seconds."""
        fd = self.handle()
        if fd is None:
            return True
        try:
            poll = select.poll()
            poll.register(fd, select.POLLIN)
            return bool(poll.poll(max(0, round(timeout_s * 1000))))
        finally:
            os.close(fd)


# ---- which signal ends the processes of this host --------------------------------------------------------------------

# An engine such as Slurm ends an allocation by a SIGTERM to every process in it at once, then by SIGKILL. If workers
# and tunnel ended on that, nobody would report what became of the runs. So in a pilot only the pilot itself acts on
# SIGTERM: it has the host hand back in order. All other processes of the host are **shielded**: they end on SIGINT.

#: Set in the environment of the processes of a pilot, and so of a shim (workers/shim/preempt_request.py has it, too).
SHIELDED = "_GPUQUEUE_SHIELDED"


def is_shielded() -> bool:
    """Return whether this process belongs to a pilot."""
    return SHIELDED in os.environ


def stop_signal() -> signal.Signals:
    """Return the signal that ends a process of this host in order."""
    return signal.SIGINT if is_shielded() else signal.SIGTERM


def shield() -> None:
    """In a pilot: do at SIGINT what this process does at SIGTERM, and only note a SIGTERM. For the main thread."""
    handler = signal.getsignal(signal.SIGTERM)
    if is_shielded() and handler is not _note:
        signal.signal(signal.SIGINT, handler)
        signal.signal(signal.SIGTERM, _note)  # a handler: an ignored signal would stay ignored in jobs


def is_ending() -> bool:
    """Return whether a shielded process has got the engine's signal: the allocation ends, and no run may begin."""
    return bool(_noted)


_noted: list[int] = []


def _note(number: int, _frame: FrameType | None) -> None:
    _noted[:] = [number]
