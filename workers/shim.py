"""Owns one run: its process tree, its log and its time limit. One process a run, standard library only.

Started as ``python -I -S shim.py RUN_DIR`` by a worker, in a session of its own, so that it outlives the
worker: upgrade, crash or kill -9 of a worker do not touch a run. It knows neither Redis nor Celery; it talks
to the workers of its host through files in the run directory:

========  =======  ===========================================================================================
file      written  holds
========  =======  ===========================================================================================
lock      worker   locked by worker and shim for as long as one of them lives; nobody holds it: nobody is there
spec      worker   JSON: what to run (see :class:`workers.rundir.ShimSpec`)
pid       shim     identity of the shim (pid, start time, boot id), then the same of the job's first process
beat      worker   until when somebody vouches for the run, on the host's monotonic clock, in seconds
cancel    worker   appears when the run must end; its text is the ending's kind
log       job      standard output and standard error, in the order of writing
inside/   job      a file for each of its processes that used torch on a GPU (see :mod:`workers.inside_report`)
exit      shim     JSON: how it ended; appears at once and whole, after the last process is gone
========  =======  ===========================================================================================

It fences itself: when nobody has vouched for the run in time, it ends the tree before anybody else can be
given the job. And it is the subreaper of the tree, so that a daemon that left its session twice is still its
child in the end, and nothing outlives the run.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import signal
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
#: Longest time between two looks at ``beat`` and ``cancel``, in seconds; signals wake the shim at once.
LOOK_S = 1.0
#: What is left of the tree after the first process has ended by itself gets this long between TERM and KILL.
LEFTOVER_GRACE_S = 2.0
#: Why a run must not start any more; its claim may be another's.
TOO_LATE = "started too late: the claim may be another's"
#: A tree that survives SIGKILL (a process stuck in the driver) is waited for in steps of this length.
KILL_STEP_S = 0.05

WAKE = {signal.SIGCHLD, signal.SIGUSR1, signal.SIGTERM, signal.SIGINT, signal.SIGHUP}


def start_ticks(pid: int) -> str:
    """Return when *pid* started, in clock ticks since boot (the 22nd field of /proc/PID/stat)."""
    with open(f"/proc/{pid}/stat", "rb") as stat:
        return stat.read().rpartition(b")")[2].split()[19].decode()


def boot_id() -> str:
    """Return the id of this boot."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as text:
        return text.read().strip()


def put_at_last(name: str, text: str) -> None:
    """Write a file of the run directory, however long that takes: a disk that is full now may not be so later."""
    while True:
        try:
            put(name, text)
        except OSError:
            time.sleep(LOOK_S)
        else:
            return


def put(name: str, text: str) -> None:
    """Write a file of the run directory so that it appears whole or not at all."""
    with open(f".{name}", "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.rename(f".{name}", name)


def read(name: str) -> str | None:
    """Return a file of the run directory, or None if it is not there."""
    try:
        with open(name, encoding="utf-8") as file:
            return file.read()
    except OSError:
        return None


def children_of() -> dict[int, list[int]]:
    """Return every process of the host by its parent."""
    found: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError), open(f"/proc/{name}/stat", "rb") as stat:
                parent = int(stat.read().rpartition(b")")[2].split()[1])
                found.setdefault(parent, []).append(int(name))
    return found


def descendants() -> list[int]:
    """Return the pids of all processes below this one."""
    children = children_of()
    found: list[int] = []
    todo = [os.getpid()]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


def signal_all(number: int) -> None:
    """Send a signal to every process below this one."""
    for pid in descendants():
        with contextlib.suppress(OSError):
            os.kill(pid, number)


def vouched_until() -> float:
    """Return until when somebody answers for the run, on the host's monotonic clock; the wall clock may jump."""
    try:
        return float(read("beat") or "")
    except ValueError:
        return 0.0


class Tree:
    """The processes of the run. ``status`` is the first one's, negative for a signal, None while it lives."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.status: int | None = None

    def reap(self) -> bool:
        """Collect whoever has ended; return whether any process is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self.pid:
                self.status = os.waitstatus_to_exitcode(status)

    def end(self, grace_s: float) -> None:
        """End every process: TERM, a grace, then KILL until none is left."""
        if not self.reap():
            return
        signal_all(signal.SIGTERM)
        signal_all(signal.SIGCONT)  # a stopped process could not obey
        deadline = time.monotonic() + grace_s
        while time.monotonic() < deadline:
            signal.sigtimedwait(WAKE, min(LOOK_S, max(0.0, deadline - time.monotonic())))
            if not self.reap():
                return
        while self.reap():
            signal_all(signal.SIGKILL)
            signal.sigtimedwait(WAKE, KILL_STEP_S)


def spawn(spec: dict[str, Any]) -> int:
    """Start the job's first process and return its pid.

    Raises:
        TimeoutError: it may not start any more.
        OSError: it could not be started; the message says why.

    """
    log = os.open("log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    word, told = os.pipe()  # closed by a successful exec, else it brings the reason
    libc = ctypes.CDLL(None)
    me = os.getpid()
    pid = os.fork()
    if pid == 0:
        step = "cannot prepare the process"
        try:
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # should the shim itself be killed
            if os.getppid() != me:  # it was, before that could work
                os._exit(127)
            os.setsid()
            signal.pthread_sigmask(signal.SIG_SETMASK, [])
            for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
                signal.signal(number, signal.SIG_DFL)  # what Python, nohup or a daemon ignores is not for the job
            os.umask(int(spec["umask"]))
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(log, 1)
            os.dup2(log, 2)
            step = f"cannot enter the working directory {spec['cwd']}"
            os.chdir(spec["cwd"])  # on a dead file server this can take for ever
            if time.monotonic() >= spec["start_before"]:
                os.write(told, TOO_LATE.encode())
                os._exit(127)
            step = f"cannot start {spec['argv'][0]}"
            os.execvpe(spec["argv"][0], spec["argv"], spec["env"])  # noqa: S606 - no shell: that is the point
        except Exception as error:  # noqa: BLE001 - whatever it is, the other side must hear of it
            os.write(told, f"{step}: {getattr(error, 'strerror', None) or error}".encode(errors="replace"))
        finally:
            os._exit(127)
    os.close(told)
    os.close(log)
    with os.fdopen(word, "rb") as reader:
        reason = reader.read().decode(errors="replace")
    if reason:
        os.waitpid(pid, 0)
        raise TimeoutError(reason) if reason == TOO_LATE else OSError(reason)
    return pid


def watch(tree: Tree, spec: dict[str, Any]) -> str:
    """Wait until the first process ends or must end; return the kind of ending.

    In turn: somebody has ended? cancelled? out of time? nobody vouches any more?
    """
    limit_s = spec["time_limit_s"]
    out_of_time = time.monotonic() + limit_s if limit_s is not None else None
    while True:
        tree.reap()
        if tree.status is not None:
            return "exited"
        now = time.monotonic()
        asked = read("cancel")
        if asked is not None:
            return asked.strip() or "cancelled"
        if out_of_time is not None and now >= out_of_time:
            return "timed_out"
        until = vouched_until()
        if now >= until:
            return "lost"
        next_look = min(now + LOOK_S, until, out_of_time or now + LOOK_S)
        signal.sigtimedwait(WAKE, max(0.0, next_look - now))


def main(run_dir: str) -> None:
    """Run the job of *run_dir* and write how it ended."""
    os.chdir(run_dir)
    os.umask(0o077)
    signal.pthread_sigmask(signal.SIG_BLOCK, WAKE)
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    spec = json.loads(read("spec") or "")
    os.set_inheritable(spec["lock_fd"], False)  # the job must not keep the lock
    me = f"{os.getpid()} {start_ticks(os.getpid())} {boot_id()}"
    put("pid", me + "\n")
    started = time.monotonic()  # one clock for the whole host, so the worker's times can be compared with it
    try:
        if started >= spec["start_before"]:
            raise TimeoutError(TOO_LATE)
        tree = Tree(spawn(spec))
    except OSError as error:
        kind = "lost" if isinstance(error, TimeoutError) else "refused"
        put_at_last("exit", json.dumps({"kind": kind, "status": None, "detail": str(error)}))
        return
    with contextlib.suppress(OSError):
        put("pid", f"{me}\n{tree.pid} {start_ticks(tree.pid)} {boot_id()}\n")
    kind = watch(tree, spec)
    duration_s = time.monotonic() - started
    tree.end(LEFTOVER_GRACE_S if kind == "exited" else spec["kill_grace_s"])
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    # Between fork and exec the job's process still counts our own memory: below that the figure says nothing.
    ours = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    put_at_last(
        "exit",
        json.dumps(
            {
                "kind": kind,
                "status": tree.status,
                "detail": "no worker vouched for it in time" if kind == "lost" else "",
                "duration_s": duration_s if kind == "exited" else time.monotonic() - started,
                "max_rss_bytes": usage.ru_maxrss * 1024 if usage.ru_maxrss > ours else None,
                "cpu_s": usage.ru_utime + usage.ru_stime,
            }
        ),
    )


if __name__ == "__main__":
    main(sys.argv[1])
