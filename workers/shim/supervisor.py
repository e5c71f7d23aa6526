"""The shim of one run. It owns the run's process tree, its log and its time limit. Standard library only.

The shim starts the job (:mod:`workers.shim.start`), watches it, ends its process tree and writes how the run ended.

:mod:`workers.shim.forkserver` forks one shim for each run, in a session of its own. The shim therefore outlives the
worker: an upgrade, a crash or a kill -9 of the worker does not affect the run. (A worker of an older version starts the
installed shim as ``python -I -S supervisor.py RUN_DIR``.) The shim uses neither Redis nor Celery. It communicates with
the workers of its host through files in the run directory:

========  =======  ===========================================================================================
file      written  holds
========  =======  ===========================================================================================
lock      worker   locked while the worker or the shim lives; unlocked means that both are gone. A hard link to
                   the worker's ``claim``
spec      worker   JSON: what to run (see :class:`workers.run.values.ShimSpec`); ``exit`` reuses its inode
pid       shim     identity of the shim (pid, start time, boot id), then the same of the job's first process
beat      worker   heartbeat: when it expires, on the host's monotonic clock, in seconds
cancel    worker   appears when the run must end; its text is the kind of ending. On a full disk a symbolic link
                   whose target is that text
preempt…  worker   ``preempt.json``: the preemption request (see :mod:`workers.shim.preempt_notice`)
log       job      standard output and standard error, in the order of writing, cut by :mod:`workers.shim.log`.
                   For a job with a terminal the shim writes it (:mod:`workers.shim.pseudo_terminal`)
tty       shim     the socket of an attached terminal (:mod:`workers.shim.attached_terminal`)
stderr    job      standard error, if the job wants it separate from standard output
….times   shim     the size of ``log`` (or ``stderr``) over time
inside/   job      a report for each process that used torch on a GPU (see :mod:`workers.run.torch_report`)
start     shim     whether the run started warm, or why not (:mod:`workers.shim.warm`); only if it was to
exit      shim     JSON: how the run ended; appears atomically, after the last process is gone
========  =======  ===========================================================================================

The shim fences itself: when the heartbeat expires, it ends the process tree before another worker can claim the job.
The shim is also the subreaper of the tree. A daemon that leaves its session and its parent is still reparented to the
shim, so no process outlives the run.
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

    from workers.shim.warm import WarmInterpreter
if __name__ == "__main__" and not TYPE_CHECKING:  # isolated: only the standard library is on the path, and stays first
    sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from workers.shim.files import POLL_S, add, asked_end, deleted, put, put_at_last, read, renewed_until  # noqa: E402
from workers.shim.log import KeptLog  # noqa: E402
from workers.shim.preempt_notice import Notification  # noqa: E402
from workers.shim.start import NotStarted, become, output_of, spawn  # noqa: E402
from workers.shim.tree import WAKE, Tree, prctl, signal_all, slurp, start_ticks  # noqa: E402

PR_SET_CHILD_SUBREAPER = 36
#: Time between TERM and KILL for the rest of the tree after the first process has ended by itself, in seconds.
LEFTOVER_GRACE_S = 2.0
#: Longest time between TERM and KILL for a job that used too much memory, in seconds.
EXCESS_GRACE_S = 1.0
#: Exit code of a shim that cannot write into the run directory. Such a shim has started nothing.
CANNOT_WRITE = os.EX_IOERR


def boot_id() -> str:
    """Return the id of this boot."""
    return slurp("/proc/sys/kernel/random/boot_id").decode().strip()


def watch(tree: Tree, spec: dict[str, Any], look_at_log: Callable[[], float], notification: Notification) -> str:
    """Wait until the first process ends or must end; return the kind of ending.

    The conditions are checked in this order: the first process has ended, a cancel request, the time limit, the signal
    before the time limit, a preemption request, an expired heartbeat or a deleted run directory.
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
            os.kill(tree.pid, number)  # not reaped yet, so the pid is still its own
            warned_at = None
        if notification.look(read) and not notification.reported:
            notification.reported = signal_all(signal.SIGTERM) and signal_all(signal.SIGCONT)
        if notification.is_over(now):
            return "preempted"
        until = renewed_until(until)
        if now >= until or deleted():
            return "lost"
        soonest = min(warned_at or out_of_time or until, notification.until_s or until, until)
        next_look = min(now + min(POLL_S, look_at_log()), soonest)
        signal.sigtimedwait(WAKE, max(0.0, next_look - now))


def early_signal(spec: dict[str, Any], out_of_time: float | None) -> tuple[int, float | None]:
    """Return the signal to send before the time limit, and when on the host's monotonic clock; None means never."""
    number, before_s = spec.get("signal") or (0, 0.0)  # a spec of an older worker lacks it
    return number, out_of_time - before_s if number and out_of_time is not None else None


def grace_of(kind: str, spec: dict[str, Any], notification: Notification) -> float:
    """Return the seconds between TERM and KILL.

    A preempted run has until the time in the preemption request, even if a cancel arrives meanwhile, because the
    waiting job relies on that time. A run with an expired heartbeat has less time: it must be gone before another
    worker claims the job. A run that used too much memory has very little time, because it harms other jobs.
    """
    if kind == "preempted":
        return notification.left_s()
    grace_s: float = LEFTOVER_GRACE_S if kind == "exited" else spec["kill_grace_s"]
    if kind == "out_of_memory":
        grace_s = min(EXCESS_GRACE_S, grace_s)
    fence_s: float | None = spec.get("fence_grace_s")  # a spec of an older worker lacks it
    if kind == "lost" and fence_s is not None:
        grace_s = min(grace_s, fence_s)
    return grace_s if notification.until_s is None else min(grace_s, notification.left_s())


def detail_of(kind: str, notification: Notification) -> str:
    """Return the detail text of an ending."""
    if kind == "preempted" and notification.by:
        return f"preempted for job {notification.by}"
    return "no worker renewed its lease in time" if kind == "lost" else ""


def main(run_dir: str, warm_interpreter: WarmInterpreter | None = None) -> None:
    """Run the job of *run_dir* and write how it ended. A *warm_interpreter* may become its first process."""
    os.chdir(run_dir)
    os.umask(0o077)
    signal.pthread_sigmask(signal.SIG_BLOCK, WAKE)
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    spec = json.loads(read("spec") or "")
    if "lock_fd" in spec:  # an older worker's
        os.set_inheritable(spec["lock_fd"], False)  # the job must not keep the lock
    try:
        boot = boot_id()
        # Not synced: after a power cut the processes named in it are gone, and the job would have to wait for the disk.
        put("pid", f"{os.getpid()} {start_ticks(os.getpid())} {boot}\n", sync=False, room=True)
    except OSError:
        sys.exit(CANNOT_WRITE)
    started = time.monotonic()  # the host's clock, so that worker times are comparable
    try:
        output = output_of(spec)
        pid = become(warm_interpreter, spec, output) if warm_interpreter is not None else None
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
        # Not synced, as above. The block allocated for the first line has space for the second.
        add("pid", f"{tree.pid} {start_ticks(tree.pid)} {boot}\n")
    notification = Notification(spec["kill_grace_s"])
    kind = watch(tree, spec, look_at_logs, notification)
    duration_s = time.monotonic() - started
    if kind == "exited" and notification.reported and tree.status != 0:
        kind = "preempted"  # it ended on SIGTERM; its other processes may still be saving
    notification.look(read)  # the request may have arrived together with a cancel
    reported = kind == "preempted" and notification.reported
    tree.end(grace_of(kind, spec, notification), look_at_logs, reported=reported)
    output.drain()
    for log in logs:
        log.last_look()
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    # Between fork and exec the job's process counts the shim's own memory. A maximum below that says nothing.
    ours = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    put_at_last(
        "exit",
        json.dumps(
            {
                "kind": kind,
                "status": tree.status,
                "detail": detail_of(kind, notification),
                "duration_s": duration_s if kind == "exited" else time.monotonic() - started,
                "max_rss_bytes": usage.ru_maxrss * 1024 if usage.ru_maxrss > ours else None,
                "cpu_s": usage.ru_utime + usage.ru_stime,
            }
        ),
    )


if __name__ == "__main__":
    main(sys.argv[1])
