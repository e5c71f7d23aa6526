"""The process tree of a run. The shim is its root and its subreaper. Standard library only."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import select
import signal
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    T = TypeVar("T")

#: Longest time between two checks during the grace between TERM and KILL, in seconds.
POLL_S = 1.0
#: Time between two SIGKILLs, in seconds.
KILL_STEP_S = 0.05
#: How long a process may take to disappear after SIGKILL, in seconds. One that takes longer is unkillable: it waits in
#: the kernel, for a driver or a file server.
UNKILLABLE_S = 15.0
#: How long after the end of the first process the others may end by themselves, in seconds: ``tee`` has its last lines
#: to write, and workers notice that nobody needs them.
SETTLE_S = 0.5
#: How many of the processes that are then still running are named, the longest text of a command, and how long reading
#: them may take, in seconds.
MAX_NAMED, MAX_COMMAND, NAMES_S = 3, 60, 0.5
#: The programs of container engines that put a container away after its last process, and how long they may take, in
#: seconds. If they are killed, the engine takes the container for a running one.
PODMAN = b"podman"
KEEPERS, KEEPERS_S = frozenset({b"catatonit", b"conmon", PODMAN}), 3.0
#: The bit of SIGKILL in the pending signals of a thread, and that of a thread which ends, in its flags (see proc(5)).
KILLED, ENDS = 1 << (signal.SIGKILL - 1), 0x4
#: More processes than this are stopped before they are killed, in at most so many rounds.
MANY, MAX_STOPS = 20, 50
#: prctl(2): sets the signal that a process gets when its parent ends.
PR_SET_PDEATHSIG = 1
#: Loaded once, in the fork server. Otherwise each shim would load the C library twice.
prctl = ctypes.CDLL(None).prctl
#: Signals whose action a job's process resets to the default: those that Python, nohup or a daemon ignores, and those
#: that Python handles. To reset all signals would take 60 system calls. Computed once, in the fork server.
RESET = frozenset(
    number
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}
    if signal.getsignal(number) not in {signal.SIG_DFL, None}
)
#: Most open files that a job may have by us. Some containers permit a thousand times more, and programs that close
#: each possible descriptor before they start another would take minutes.
MAX_OPEN_FILES = 2**20
#: Most bytes of a file that are read at once.
CHUNK_BYTES = 65536
#: The signals that wake a shim. The shim must have blocked them.
WAKE = {signal.SIGCHLD, signal.SIGUSR1, signal.SIGTERM, signal.SIGINT, signal.SIGHUP}


def begin_child(parent: int) -> None:
    """Prepare a new child process of the shim *parent*: its session, its signals and an empty standard input.

    The child ends with its parent.
    """
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # the parent was killed before the prctl call
        os._exit(127)
    os.setsid()
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    for number in RESET:
        signal.signal(number, signal.SIG_DFL)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)


def raise_open_files() -> None:
    """Raise the soft limit of open files of this process to its hard limit, for the job that it becomes.

    Data loaders open many files, and the usual soft limit is for programs that use select(2).
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = open_files(hard)
    if 0 <= soft < most:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def open_files(hard: int) -> int:
    """Return how many files a job may open where the hard limit is *hard*."""
    return MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_OPEN_FILES)


def slurp(name: str, most: int = CHUNK_BYTES) -> bytes:
    """Return the content of a small file, at most about *most* bytes. Never waits for a pipe that a job put there.

    It uses no file object, because the file object would cost more time than the read itself.

    Raises:
        OSError: the file cannot be read.

    """
    fd = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        whole = b""
        while len(whole) < most and (part := os.read(fd, CHUNK_BYTES)):
            whole += part
        return whole
    finally:
        os.close(fd)


def start_ticks(pid: int) -> str:
    """Return when *pid* started, in clock ticks since boot (the 22nd field of /proc/PID/stat)."""
    return parent_and_start(pid)[1]


def parent_and_start(pid: int) -> tuple[int, str]:
    """Return the parent of *pid*, and when *pid* started, in clock ticks since boot."""
    fields = slurp(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    return int(fields[1]), fields[19].decode()


def parent_of(pid: int) -> int:
    """Return the parent of *pid*, which may be a process of anybody.

    A user can have ``stat`` never answer: it waits for a process that closes a file of a FUSE file system in execve(2).
    """
    return int(slurp(f"/proc/{pid}/status").partition(b"\nPPid:")[2].split(maxsplit=1)[0])


def is_killed(pid: int) -> bool | None:
    """Return whether SIGKILL was sent to the process *pid* or it ends. None: it has ended, or cannot be read."""
    with contextlib.suppress(OSError, IndexError, ValueError):
        for thread in os.listdir(f"/proc/{pid}/task"):  # the first one that has not ended: each gets SIGKILL
            fields = slurp(f"/proc/{pid}/task/{thread}/stat").rpartition(b")")[2].split()
            if fields[0] not in {b"Z", b"X"}:
                lines = slurp(f"/proc/{pid}/task/{thread}/status").split(b"\n")
                pending = [int(line.split()[1], 16) for line in lines if line.startswith((b"SigPnd:", b"ShdPnd:"))]
                return bool(int(fields[6]) & ENDS) or any(number & KILLED for number in pending)
    return None


def unkillable(top: int) -> list[int] | None:
    """Return the processes below *top* that SIGKILL has not ended; None if others are left there."""
    try:
        states = {pid: is_killed(pid) for pid in descendants(top)}
    except OSError:
        return None
    return None if False in states.values() else [pid for pid, killed in states.items() if killed]


def end_child(pid: int) -> None:
    """Kill and reap the child *pid*. One that is unkillable is left."""
    handle = os.pidfd_open(pid)
    try:
        os.kill(pid, signal.SIGKILL)
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        poll.poll(UNKILLABLE_S * 1000)
        os.waitpid(pid, os.WNOHANG)
    finally:
        os.close(handle)


def descendants(top: int | None = None) -> dict[int, tuple[int, str]]:
    """Return the pids of all processes below *top*, by default this one, each with its parent and its start.

    Raises:
        OSError: the processes cannot be listed now.

    """
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError):
                children.setdefault(parent_of(int(name)), []).append(int(name))
    found: list[int] = []
    todo = [os.getpid() if top is None else top]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    there: dict[int, tuple[int, str]] = {}
    for pid in found:
        with contextlib.suppress(OSError, IndexError, ValueError):
            there[pid] = parent_and_start(pid)
    return there


def is_keeper(pid: int) -> bool:
    """Return whether the process *pid* is one of KEEPERS, by its name."""
    return program_name(pid) in KEEPERS


def program_name(pid: int) -> bytes:
    """Return the name of the program of the process *pid*, empty if it has ended."""
    try:
        return slurp(f"/proc/{pid}/comm").strip()
    except OSError:
        return b""


def inner_podman(pid: int) -> int:
    """Return the process that passes signals on for the first process *pid*.

    Podman without root is two processes, and only the inner one passes all signals on.
    """
    if program_name(pid) == PODMAN:
        with contextlib.suppress(OSError):
            children = [child for child, (parent, _) in descendants(pid).items() if parent == pid]
            return next((child for child in children if program_name(child) == PODMAN), pid)
    return pid


def running(top: int | None = None, *, keepers: bool = True) -> tuple[int, list[str]]:
    """Return how many processes below *top*, by default this one, are running, and names of the first of them.

    KEEPERS are left out unless *keepers*. If they cannot be read in time, none is returned.
    """

    def read() -> tuple[int, list[str]]:
        pids, names = [pid for pid in descendants(top) if is_killed(pid) is False], list[str]()
        pids = pids if keepers else [pid for pid in pids if not is_keeper(pid)]
        with contextlib.suppress(OSError):
            names.extend(name_of(pid) for pid in pids[:MAX_NAMED])
        return len(pids), names

    return within(NAMES_S, read) or (0, [])


def within(limit_s: float, read: Callable[[], T]) -> T | None:
    """Return what *read* returns, None if it raises OSError, or takes longer than *limit_s* seconds.

    A user can have a file of a process never answer, as long as the process lives. So a thread reads.
    """
    import threading  # noqa: PLC0415 - few runs need it

    results: list[T] = []

    def run() -> None:
        with contextlib.suppress(OSError):
            results.append(read())

    reader = threading.Thread(target=run, daemon=True)
    with contextlib.suppress(RuntimeError):  # the host has no thread left
        reader.start()
        reader.join(limit_s)
    return results[0] if results else None


def name_of(pid: int) -> str:
    """Return the command line of *pid*, shortened and in one line, and its pid: ``python train.py (pid 17)``.

    Raises:
        OSError: the process has ended.

    """
    line = slurp(f"/proc/{pid}/cmdline").replace(b"\0", b" ").strip() or slurp(f"/proc/{pid}/comm")
    words = " ".join(line.decode(errors="replace").split())
    return f"{words if len(words) <= MAX_COMMAND else words[: MAX_COMMAND - 1] + '…'} (pid {pid})"


def run_first() -> None:
    """Let this process run before all others, where its account may: a fork bomb would leave it no processor time."""
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))


def signal_all(number: int, *, keepers: bool = True) -> bool:
    """Send a signal to every process below this one; return False if the processes cannot be listed now.

    KEEPERS get none unless *keepers*.

    Before many processes are killed, all are stopped: else those that are left use the room for new ones.
    """
    if number in {signal.SIGTERM, signal.SIGKILL}:
        run_first()
    try:
        found = descendants()
        if not keepers:
            found = {pid: known for pid, known in found.items() if not is_keeper(pid)}
        elif number == signal.SIGKILL and len(found) > MANY:
            found = _stopped(found)
    except OSError:  # for example, no free file descriptor on the host
        return False
    for pid, known in found.items():
        _send(pid, known, number)
    return True


def _stopped(found: dict[int, tuple[int, str]]) -> dict[int, tuple[int, str]]:
    """Stop the processes *found* and those that they start meanwhile, and return all that are there then."""
    for _ in range(MAX_STOPS):
        for pid, known in found.items():
            _send(pid, known, signal.SIGSTOP)
        now = descendants()
        if now.keys() <= found.keys():
            return now
        found = now
    return found


def _send(pid: int, known: tuple[int, str], number: int) -> None:
    """Send a signal to the process *pid*, unless the kernel has given the pid to another process meanwhile."""
    with contextlib.suppress(OSError, IndexError, ValueError):
        handle = os.pidfd_open(pid)
        try:
            parent, start = parent_and_start(pid)
            if start == known[1] and parent in {known[0], os.getpid()}:  # this process adopts orphans
                signal.pidfd_send_signal(handle, number)
        finally:
            os.close(handle)


class Tree:
    """The processes of the run.

    ``status`` is the exit status of the first process: negative for a signal, None while the process lives. ``cause``
    is the reason for that status, empty if it is unknown. ``lost`` says why its end is unknown, and is empty otherwise.
    """

    #: The process that is the parent of the first one and of all orphans, if it is not the shim itself.
    root: int | None = None
    #: The processes that SIGKILL has not ended; None: there are none.
    unkillable: list[int] | None = None
    #: What was still :func:`running` after the first process had ended by itself.
    left: tuple[int, list[str]] = (0, [])
    #: The notes on the shared memory that its processes have left, from its guard.
    notes: list[dict[str, Any]] = []  # noqa: RUF012 - replaced, never changed
    #: The signal that was sent to the first process before the time limit; 0: none yet.
    early = 0
    #: How that signal has ended the first process; empty if it has not.
    uncaught = ""
    #: Whether the first process passes the signals on that it gets, as the program of a container engine does.
    forwards = False

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.status: int | None = None
        self.cause = ""
        self.lost = ""

    def send(self, number: int) -> bool:
        """Send a signal to every process of the run; return False if the processes cannot be listed now."""
        return signal_all(number)

    def warn(self) -> bool:
        """Send SIGTERM to every process of the run; return False if the processes cannot be listed now.

        A first process that passes signals on gets it alone: many programs abort at once on a second one.
        """
        if self.forwards and self.status is None:
            self.send_first(signal.SIGTERM)
            return True
        return self.send(signal.SIGTERM) and self.send(signal.SIGCONT)  # CONT: for stopped ones

    def send_job(self, number: int) -> bool:
        """Send a signal to the processes of the job, but not to those that put its container away."""
        return signal_all(number, keepers=not self.forwards)

    def status_of(self, number: int) -> int:
        """Return the exit status of the first process if the signal *number* has ended the job."""
        return 128 + number if self.forwards else -number

    def send_first(self, number: int) -> None:
        """Send a signal to the first process. It is not reaped yet, so the pid is still its own."""
        with contextlib.suppress(ProcessLookupError):  # of an inner process, which may have ended
            os.kill(inner_podman(self.pid) if self.forwards else self.pid, number)

    def usage(self) -> tuple[int | None, float]:
        """Return the largest resident memory of one process, in bytes, and the processor time, in seconds."""
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        # Between fork and exec the job's process counts the shim's own memory. A maximum below that is meaningless.
        ours = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        most = usage.ru_maxrss * 1024 if usage.ru_maxrss > ours else None
        return most, usage.ru_utime + usage.ru_stime

    def reap(self) -> bool:
        """Reap the processes that have ended; return whether any process is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self.pid:
                self.status = os.waitstatus_to_exitcode(status)

    def end(
        self, grace_s: float, meanwhile: Callable[[], object], *, warned: bool = False, by_itself: bool = False
    ) -> None:
        """End every process: send TERM, wait *grace_s* seconds, then send KILL until no process is left.

        With *by_itself* the run has ended by itself: the processes have ``SETTLE_S`` to do so too, and ``left`` has
        those that have not.

        After ``UNKILLABLE_S`` processes that SIGKILL does not end are left: ``unkillable`` names them.
        *meanwhile* is called at every check during the grace. With *warned* TERM was sent before and is not sent
        again, because many programs abort at once on a second TERM. What a container engine has beside the job gets a
        little more time.
        """
        if not self.reap():
            return
        if by_itself:
            if self._gone_by(time.monotonic() + SETTLE_S, meanwhile):
                return
            self.left = running(self.root, keepers=not self.forwards)
        deadline = time.monotonic() + grace_s
        only_first = self.forwards and self.status is None
        while True:
            warned = warned or self.warn()
            if only_first and self.status is not None:
                only_first = not self.send_job(signal.SIGTERM)
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                break
            signal.sigtimedwait(WAKE, min(POLL_S, left_s))
            if not self.reap():
                return
            meanwhile()
        self._kill()

    def _kill(self) -> None:
        """Send SIGKILL until no process is left, or only unkillable ones."""
        deadline = time.monotonic() + UNKILLABLE_S
        keep_until = time.monotonic() + KEEPERS_S if self.forwards else 0.0
        while self.reap():
            if time.monotonic() >= deadline and (left := unkillable(self.root or os.getpid())) is not None:
                self.unkillable = left
                return
            if time.monotonic() < keep_until:
                self.send_job(signal.SIGKILL)
            else:
                self.send(signal.SIGKILL)
            signal.sigtimedwait(WAKE, KILL_STEP_S)

    def _gone_by(self, deadline: float, meanwhile: Callable[[], object]) -> bool:
        """Wait until no process is left, or *deadline* on the host's monotonic clock. Return whether none is left."""
        while (left_s := deadline - time.monotonic()) > 0:
            signal.sigtimedwait(WAKE, min(POLL_S, left_s))
            if not self.reap():
                return True
            meanwhile()
        return False
