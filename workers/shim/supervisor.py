"""Owns one run: its process tree, its log and its time limit. One process a run, standard library only.

This is its course: start (:mod:`workers.shim.start`), watch, end, say how.

Forked by :mod:`workers.shim.forkserver` for a worker, in a session of its own, so that it outlives the worker:
upgrade, crash or kill -9 of a worker do not touch a run. (A worker of an older version starts what is installed now
as ``python -I -S supervisor.py RUN_DIR``.) It knows neither Redis nor Celery; it talks to the workers of its host
through
files in the run directory:

========  =======  ===========================================================================================
file      written  holds
========  =======  ===========================================================================================
lock      worker   locked by worker and shim for as long as one of them lives; nobody holds it: nobody is there.
                   A second name of the worker's ``claim``
spec      worker   JSON: what to run (see :class:`workers.run.values.ShimSpec`); the exit is written over it
pid       shim     identity of the shim (pid, start time, boot id), then the same of the job's first process
beat      worker   until when somebody vouches for the run, on the host's monotonic clock, in seconds
cancel    worker   appears when the run must end; its text is the ending's kind. On a full disk a link to that word
preempt…  worker   JSON: appears when the run must make place, ``preempt.json`` (see :mod:`workers.shim.preempt_notice`)
log       job      standard output and standard error, in the order of writing, cut by :mod:`workers.shim.log`;
                   of a job that wants a terminal the shim writes it (:mod:`workers.shim.pseudo_terminal`)
tty       shim     the socket by which a terminal is typed on that people type on (``attached_terminal.py``)
stderr    job      standard error, where the job wants it apart from standard output
….times   shim     when ``log`` (or ``stderr``) was how long
inside/   job      a file for each of its processes that used torch on a GPU (see :mod:`workers.run.torch_report`)
start     shim     whether a spare became the job, or why not (:mod:`workers.shim.warm`); only where one was to
command… worker   empty: ``commands-begun`` appears before those at the job's end run (``after_end.py``)
exit      shim     JSON: how it ended; appears at once and whole, after the last process is gone
========  =======  ===========================================================================================

It fences itself: when nobody has vouched for the run in time, it ends the tree before anybody else can be
given the job. And it is the subreaper of the tree, so that a daemon that left its session twice is still its
child in the end, and nothing outlives the run.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from workers.shim.warm import Spare
if __name__ == "__main__" and not TYPE_CHECKING:  # isolated: only the standard library is on the path, and stays first
    sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from workers.shim.files import LOOK_S, add, asked_end, deleted, put, put_at_last, read, vouched_until  # noqa: E402
from workers.shim.log import KeptLog  # noqa: E402
from workers.shim.preempt_notice import Notice  # noqa: E402
from workers.shim.start import NotStarted, become, output_of, spawn  # noqa: E402
from workers.shim.tree import WAKE, Tree, prctl, signal_all, slurp, start_ticks  # noqa: E402

PR_SET_CHILD_SUBREAPER = 36
#: What is left of the tree after the first process has ended by itself gets this long between TERM and KILL.
LEFTOVER_GRACE_S = 2.0
#: So long may a job that was ended for taking too much memory go on holding it.
EXCESS_GRACE_S = 1.0
#: Exit code of a shim that cannot write into the run directory: it never began.
CANNOT_WRITE = os.EX_IOERR


def boot_id() -> str:
    """Return the id of this boot."""
    return slurp("/proc/sys/kernel/random/boot_id").decode().strip()


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


def grace_of(kind: str, spec: dict[str, Any], notice: Notice) -> float:
    """Return the seconds between TERM and KILL.

    Whoever must make place has until then, also where a cancel comes in between: the other job was told when. A run
    that may soon be another's has less: it must be gone by then. One that took too much memory has hardly any: it holds
    it at the cost of others.
    """
    if kind == "preempted":
        return notice.left_s()
    grace_s: float = LEFTOVER_GRACE_S if kind == "exited" else spec["kill_grace_s"]
    if kind == "out_of_memory":
        grace_s = min(EXCESS_GRACE_S, grace_s)
    fence_s: float | None = spec.get("fence_grace_s")  # an older worker knew none
    if kind == "lost" and fence_s is not None:
        grace_s = min(grace_s, fence_s)
    return grace_s if notice.until_s is None else min(grace_s, notice.left_s())


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
        boot = boot_id()
        # Not synced: after a power cut nobody is there of whom it tells, and the job would wait for the disk.
        put("pid", f"{os.getpid()} {start_ticks(os.getpid())} {boot}\n", sync=False, room=True)
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
        # As above; where there was room for the first line, there is for the second.
        add("pid", f"{tree.pid} {start_ticks(tree.pid)} {boot}\n")
    notice = Notice(spec["kill_grace_s"])
    kind = watch(tree, spec, look_at_logs, notice)
    duration_s = time.monotonic() - started
    if kind == "exited" and notice.told and tree.status != 0:
        kind = "preempted"  # it went as it was told; what it has left behind may still be saving
    notice.look(read)  # it may have come at the same moment as a cancel
    told = kind == "preempted" and notice.told
    tree.end(grace_of(kind, spec, notice), look_at_logs, told=told)
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
