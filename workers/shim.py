"""Owns one run: its process tree, its log and its time limit. One process a run, standard library only.

Forked by :mod:`workers.shim_forkserver` for a worker, in a session of its own, so that it outlives the worker:
upgrade, crash or kill -9 of a worker do not touch a run. (A worker of an older version starts what is installed now
as ``python -I -S shim.py RUN_DIR``.) It knows neither Redis nor Celery; it talks to the workers of its host through
files in the run directory:

========  =======  ===========================================================================================
file      written  holds
========  =======  ===========================================================================================
lock      worker   locked by worker and shim for as long as one of them lives; nobody holds it: nobody is there
spec      worker   JSON: what to run (see :class:`workers.rundir.ShimSpec`)
pid       shim     identity of the shim (pid, start time, boot id), then the same of the job's first process
beat      worker   until when somebody vouches for the run, on the host's monotonic clock, in seconds
cancel    worker   appears when the run must end; its text is the ending's kind. On a full disk a link to that word
preempt…  worker   JSON: appears when the run must make place, ``preempt.json`` (see :mod:`workers.shim_notice`)
log       job      standard output and standard error, in the order of writing, cut by :mod:`workers.shim_log`;
                   of a job that wants a terminal the shim writes it (:mod:`workers.shim_pty`)
tty       shim     the socket by which a terminal is typed on that people type on (:mod:`workers.shim_tty`)
stderr    job      standard error, where the job wants it apart from standard output
….times   shim     when ``log`` (or ``stderr``) was how long
inside/   job      a file for each of its processes that used torch on a GPU (see :mod:`workers.inside_report`)
start     shim     whether a spare became the job, or why not (:mod:`workers.shim_spare`); only where one was to
exit      shim     JSON: how it ended; appears at once and whole, after the last process is gone
========  =======  ===========================================================================================

It fences itself: when nobody has vouched for the run in time, it ends the tree before anybody else can be
given the job. And it is the subreaper of the tree, so that a daemon that left its session twice is still its
child in the end, and nothing outlives the run.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import resource
import select
import signal
import stat
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from workers.shim_pty import Terminal
    from workers.shim_spare import Spare
if TYPE_CHECKING or __package__:
    from workers.shim_log import KeptLog
    from workers.shim_notice import Notice
    from workers.shim_tree import PR_SET_PDEATHSIG, RESET, WAKE, Tree, prctl, signal_all, slurp, start_ticks
else:  # isolated: the path holds the standard library and nothing else; that stays first
    sys.path.append(os.path.dirname(os.path.abspath(__file__)))
    from shim_log import KeptLog
    from shim_notice import Notice
    from shim_tree import PR_SET_PDEATHSIG, RESET, WAKE, Tree, prctl, signal_all, slurp, start_ticks

PR_SET_CHILD_SUBREAPER = 36
#: Most of a file that is read, in characters. The largest is the spec: 1 MiB of JSON, and what the worker has added.
MOST_READ = 64 * 1024 * 1024
#: Longest time between two looks at ``beat`` and ``cancel``, in seconds; signals wake the shim at once.
LOOK_S = 1.0
#: What is left of the tree after the first process has ended by itself gets this long between TERM and KILL.
LEFTOVER_GRACE_S = 2.0
#: So long may a job that was ended for taking too much memory go on holding it.
EXCESS_GRACE_S = 1.0
#: Why a run must not start any more; its claim may be another's.
TOO_LATE = "started too late: the claim may be another's"
#: What a host can be short of. A job that could not start for that has not failed.
SHORTAGES = {errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE}
#: What a file system says that has no room.
NO_ROOM = {errno.ENOSPC, errno.EDQUOT}
#: Exit code of a shim that cannot write into the run directory: it never began.
CANNOT_WRITE = os.EX_IOERR


def boot_id() -> str:
    """Return the id of this boot."""
    return slurp("/proc/sys/kernel/random/boot_id").decode().strip()


class NotStarted(Exception):
    """The job's first process could not be started."""

    def __init__(self, kind: str, detail: str, *, hosts_fault: bool = False) -> None:
        super().__init__(detail)
        self.kind = kind
        self.hosts_fault = hosts_fault


def deleted() -> bool:
    """Return whether the run directory is there no more. Nobody can vouch for the run then, or read how it ended."""
    try:
        return os.stat(".").st_nlink == 0
    except OSError:
        return False


def put_at_last(name: str, text: str) -> None:
    """Write a file of the run directory, however long that takes: a disk that is full now may not be so later."""
    while not deleted():
        try:
            put(name, text)
        except OSError:
            with contextlib.suppress(OSError):  # the spec has done its work, and its room is enough for a few words
                os.unlink("spec")
                continue
            time.sleep(LOOK_S)
        else:
            return


def put(name: str, text: str, *, sync: bool = True, room: bool = False) -> None:
    """Write a file of the run directory so that it appears whole or not at all; with *sync*, also on the disk.

    With *room* it fails now where the disk is full, and not when the kernel comes to write it there.
    """
    move_away(f".{name}")
    move_away(name)
    fd = os.open(f".{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
    try:
        left = memoryview(text.encode())
        while left:
            left = left[os.write(fd, left) :]
        if room:
            take_room(fd, len(text.encode()))
        if sync:
            os.fsync(fd)
    finally:
        os.close(fd)
    os.rename(f".{name}", name)


def take_room(fd: int, size: int) -> None:
    """Have the file system give the room for *size* bytes now. To wait for the disk does that too, and takes longer.

    Raises:
        OSError: there is none.

    """
    try:
        os.posix_fallocate(fd, 0, size)
    except OSError as error:
        if error.errno in NO_ROOM:
            raise
        os.fsync(fd)  # a file system that cannot be asked for it


def read(name: str) -> str | None:
    """Return a file of the run directory, or None if it is not there."""
    try:
        return slurp(name, MOST_READ).decode("utf-8", errors="replace")
    except OSError:
        return None


def move_away(name: str) -> None:
    """Make room for a file of ours: a pipe or a directory, which only the job can have made, would stop us for ever."""
    with contextlib.suppress(OSError):
        if not stat.S_ISREG(os.lstat(name).st_mode):
            os.rename(name, f"{name}.{time.monotonic_ns()}")


def vouched_until(known: float) -> float:
    """Return until when somebody answers for the run, on the host's monotonic clock; the wall clock may jump.

    What is *known* holds where it cannot be read now: a shortage on the host is no reason to end a run.
    """
    try:
        return float(read("beat") or "")
    except ValueError:
        return known


def asked_end() -> str | None:
    """Return the kind of ending that a worker asks for, or None."""
    with contextlib.suppress(OSError):
        return os.readlink("cancel")
    asked = read("cancel")
    return "" if asked is None and os.path.exists("cancel") else asked


class LogFile:
    """The log as the job's output: it writes there by itself. Standard error has one of its own if *errors* is one."""

    def __init__(self, log: int, errors: int | None = None) -> None:
        self.log = log
        self.errors = errors

    def take(self) -> None:
        """Make it the standard output and error of this process."""
        os.dup2(self.log, 1)
        os.dup2(self.log if self.errors is None else self.errors, 2)

    def begin(self) -> None:
        """Leave it to the job."""
        os.close(self.log)
        if self.errors is not None:
            os.close(self.errors)

    def drain(self) -> None:
        """Do nothing: what was written is there."""


def output_of(spec: dict[str, Any]) -> LogFile | Terminal:
    """Return where the job's output goes: into its log, or to a terminal if it wants one (an older worker knew none).

    Raises:
        NotStarted: the host has no room, descriptor or terminal to give.

    """
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        log = os.open("log", flags, 0o600)
        if spec.get("pty"):
            return typed_terminal(log, *spec["pty"]) if spec.get("typed") else terminal(log, *spec["pty"])
        return LogFile(log, os.open("stderr", flags, 0o600) if spec.get("separate_stderr") else None)
    except OSError as error:
        raise NotStarted("lost", f"cannot make a process: {error.strerror}", hosts_fault=True) from error


def terminal(log: int, columns: int, rows: int) -> Terminal:
    """Return a new terminal whose output goes into *log*. Few jobs want one, and every start would pay the import."""
    if TYPE_CHECKING or __package__:
        from workers.shim_pty import Terminal  # noqa: PLC0415 - see above
    else:
        from shim_pty import Terminal  # noqa: PLC0415 - see above
    return Terminal(log, columns, rows)


def typed_terminal(log: int, columns: int, rows: int) -> Terminal:
    """Return a new terminal that people may type on."""
    if TYPE_CHECKING or __package__:
        from workers.shim_tty import TypedTerminal  # noqa: PLC0415 - as above
    else:
        from shim_tty import TypedTerminal  # noqa: PLC0415 - as above
    return TypedTerminal(log, columns, rows)


def spawn(spec: dict[str, Any], output: LogFile | Terminal) -> int:
    """Start the job's first process, with its output to *output*, and return its pid.

    Raises:
        NotStarted: it could not be started, or may not any more; the message says why.

    """
    if time.monotonic() >= spec["start_before"]:
        raise NotStarted("lost", TOO_LATE)
    try:
        word, told = os.pipe()  # closed by a successful exec, else it brings the reason
        me = os.getpid()
        pid = os.fork()
    except OSError as error:
        raise NotStarted("lost", f"cannot make a process: {error.strerror}", hosts_fault=True) from error
    if pid == 0:
        step, program = "cannot prepare the process", ""
        try:
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # should the shim itself be killed
            if os.getppid() != me:  # it was, before that could work
                os._exit(127)
            os.setsid()
            signal.pthread_sigmask(signal.SIG_SETMASK, [])
            for number in RESET:
                signal.signal(number, signal.SIG_DFL)  # what Python, nohup or a daemon ignores is not for the job
            os.umask(int(spec["umask"]))
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            output.take()
            step = f"cannot enter the working directory {spec['cwd']}"
            os.chdir(spec["cwd"])  # on a dead file server this can take for ever
            if time.monotonic() >= spec["start_before"]:
                os.write(told, f"0 {TOO_LATE}".encode())
                os._exit(127)
            program = spec["argv"][0]
            step = f"cannot start {program}"
            os.execvpe(program, spec["argv"], spec["env"])  # noqa: S606 - no shell: that is the point
        except Exception as error:  # noqa: BLE001 - whatever it is, the other side must hear of it
            words = f"{getattr(error, 'errno', -1) or -1} {step}: {why(error, program)}"
            os.write(told, words.encode(errors="replace"))
        finally:
            os._exit(127)
    os.close(told)
    output.begin()
    with os.fdopen(word, "rb") as reader:
        await_word(word, pid, spec["start_before"])
        code, _, reason = reader.read().decode(errors="replace").partition(" ")
    if code:
        os.waitpid(pid, 0)
        raise no_start(int(code), reason)
    return pid


def no_start(number: int, reason: str) -> NotStarted:
    """Return what to raise where the job's first process could not begin: *number* is the error's, 0 is too late."""
    shortage = number in SHORTAGES
    return NotStarted("lost" if shortage or number == 0 else "refused", reason, hosts_fault=shortage)


def become(spare: Spare, spec: dict[str, Any], output: LogFile | Terminal) -> int | None:
    """Let *spare* become the job's first process; return its pid, None if it cannot and nothing of the job has run.

    Raises:
        NotStarted: it could not be started, or may not any more; the message says why.

    """
    word, told = os.pipe()
    try:
        spare.ask(os.getcwd(), output.log, told)
    finally:
        os.close(told)
    with os.fdopen(word, "rb") as reader:
        await_word(word, spare.pid, spec["start_before"])
        said = reader.read().decode(errors="replace")
    began = said == "ok"
    if not began:
        spare.end()
    number, _, reason = said.partition(" ")
    if number.isdigit():  # nor could any other process
        raise no_start(int(number), reason)
    with contextlib.suppress(OSError):
        put("start", "warm" if began else said or "cold: the spare has ended", sync=False)
    if began:
        output.begin()
    return spare.pid if began else None


def await_word(word: int, pid: int, until: float) -> None:
    """Wait until the job's process has begun or says why not. On a dead file server that can take for ever.

    Raises:
        NotStarted: it must end before that.

    """
    poll = select.poll()
    poll.register(word, select.POLLIN)
    while not poll.poll(LOOK_S * 1000):
        until = vouched_until(until)
        kind = asked_end() or ("lost" if time.monotonic() >= until else None)
        if kind is not None:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise NotStarted(kind.strip(), "its working directory or its program does not answer")


def why(error: Exception, program: str) -> str:
    """Return what went wrong, with what the kernel's own word for it does not say."""
    words = str(getattr(error, "strerror", None) or error)
    number = getattr(error, "errno", None)
    if number == errno.ENOEXEC:
        return f"{words}: it is no program for this kind of machine, and no script that begins with #!"
    if number == errno.EACCES and os.path.isdir(program):
        return f"{words}: it is a directory"
    if number == errno.ENOENT and "/" in program and os.path.exists(program):
        return f"{words}: the interpreter that its first line names"
    return words


def watch(tree: Tree, spec: dict[str, Any], look_at_log: Callable[[], float], notice: Notice) -> str:
    """Wait until the first process ends or must end; return the kind of ending.

    In turn: somebody has ended? cancelled? out of time, or soon to be? must it make place? nobody vouches any more?
    """
    limit_s = spec["time_limit_s"]
    out_of_time = time.monotonic() + limit_s if limit_s is not None else None
    number, warned_at = early_signal(spec, out_of_time)
    until = spec["start_before"]
    while True:
        tree.reap()
        if tree.status is not None:
            return "exited"
        now = time.monotonic()
        asked = asked_end()
        if asked is not None:
            return asked.strip() or "cancelled"
        if out_of_time is not None and now >= out_of_time:
            return "timed_out"
        if warned_at is not None and now >= warned_at:
            os.kill(tree.pid, number)  # it was not collected yet, so the number is still its own
            warned_at = None
        if notice.look(read) and not notice.told:
            notice.told = signal_all(signal.SIGTERM) and signal_all(signal.SIGCONT)
        if notice.is_over(now):
            return "preempted"
        until = vouched_until(until)
        if now >= until or deleted():
            return "lost"
        soonest = min(warned_at or out_of_time or until, notice.until_s or until, until)
        next_look = min(now + min(LOOK_S, look_at_log()), soonest)
        signal.sigtimedwait(WAKE, max(0.0, next_look - now))


def early_signal(spec: dict[str, Any], out_of_time: float | None) -> tuple[int, float | None]:
    """Return which signal comes before the time limit, and when on the host's monotonic clock; None: none does."""
    number, before_s = spec.get("signal") or (0, 0.0)  # an older worker knew none
    return number, out_of_time - before_s if number and out_of_time is not None else None


def grace_of(kind: str, spec: dict[str, Any]) -> float:
    """Return the seconds between TERM and KILL.

    A run that may soon be another's has less: it must be gone by then. One that took too much memory has hardly any:
    it holds it at the cost of others.
    """
    if kind == "exited":
        return LEFTOVER_GRACE_S
    if kind == "out_of_memory":
        return min(EXCESS_GRACE_S, float(spec["kill_grace_s"]))
    grace_s: float = spec["kill_grace_s"]
    fence_s: float | None = spec.get("fence_grace_s")  # an older worker knew none
    return min(grace_s, fence_s) if kind == "lost" and fence_s is not None else grace_s


def detail_of(kind: str, notice: Notice) -> str:
    """Return in words what is to be said of an ending."""
    if kind == "preempted" and notice.by:
        return f"made place for job {notice.by}"
    return "no worker vouched for it in time" if kind == "lost" else ""


def main(run_dir: str, spare: Spare | None = None) -> None:
    """Run the job of *run_dir* and write how it ended. Its first process may be a *spare* that waits for it."""
    os.chdir(run_dir)
    os.umask(0o077)
    signal.pthread_sigmask(signal.SIG_BLOCK, WAKE)
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    spec = json.loads(read("spec") or "")
    if "lock_fd" in spec:  # an older worker's
        os.set_inheritable(spec["lock_fd"], False)  # the job must not keep the lock
    try:
        me = f"{os.getpid()} {start_ticks(os.getpid())} {boot_id()}"
        # Not synced: after a power cut nobody is there of whom it tells, and the job would wait for the disk.
        put("pid", me + "\n", sync=False, room=True)
    except OSError:
        sys.exit(CANNOT_WRITE)
    started = time.monotonic()  # one clock for the whole host, so the worker's times can be compared with it
    try:
        output = output_of(spec)
        pid = become(spare, spec, output) if spare is not None else None
        tree = Tree(spawn(spec, output) if pid is None else pid)
    except NotStarted as no:
        words = {"kind": no.kind, "status": None, "detail": str(no), "hosts_fault": no.hosts_fault}
        put_at_last("exit", json.dumps(words))
        return
    names = ["log", "stderr"] if spec.get("separate_stderr") else ["log"]
    logs = [KeptLog(name, spec.get("log_limit_bytes")) for name in names]

    def look_at_logs() -> float:
        return min([log.look() for log in logs])

    with contextlib.suppress(OSError):
        # As above; there was room for the first line.
        put("pid", f"{me}\n{tree.pid} {start_ticks(tree.pid)} {boot_id()}\n", sync=False)
    notice = Notice(spec["kill_grace_s"])
    kind = watch(tree, spec, look_at_logs, notice)
    duration_s = time.monotonic() - started
    if kind == "exited" and notice.told and tree.status != 0:
        kind = "preempted"  # it went as it was told; what it has left behind may still be saving
    leaves = kind == "preempted"
    tree.end(notice.left_s() if leaves else grace_of(kind, spec), look_at_logs, told=leaves and notice.told)
    output.drain()
    for log in logs:
        log.last_look()
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    # Between fork and exec the job's process still counts our own memory: below that the figure says nothing.
    ours = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    put_at_last(
        "exit",
        json.dumps(
            {
                "kind": kind,
                "status": tree.status,
                "detail": detail_of(kind, notice),
                "duration_s": duration_s if kind == "exited" else time.monotonic() - started,
                "max_rss_bytes": usage.ru_maxrss * 1024 if usage.ru_maxrss > ours else None,
                "cpu_s": usage.ru_utime + usage.ru_stime,
            }
        ),
    )


if __name__ == "__main__":
    main(sys.argv[1])
