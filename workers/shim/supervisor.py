"""The shim of one run. It owns the run's process tree, its log and its time limit. Standard library only.

The shim starts the job (:mod:`workers.shim.start`), watches it, ends its process tree and writes how the run ended.

:mod:`workers.shim.forkserver` forks one shim for each run, in a session of its own. The shim therefore outlives the
worker: an upgrade, a crash or a kill -9 of the worker does not affect the run. The shim uses neither Redis nor Celery.
It communicates with the workers of its host through files in the run directory:

========  =======  ===========================================================================================
file      written  holds
========  =======  ===========================================================================================
lock      worker   locked while the worker or the shim lives; unlocked means that both are gone. A hard link to
                   the worker's ``claim``
spec      worker   JSON: what to run (see :class:`workers.run.directory.ShimSpec`); ``exit`` reuses its inode
pid       shim     identity of the shim (pid, start time, boot id), then the same of the job's first process, and of
                   the guard if the job runs as its submitter (:mod:`workers.shim.launched`)
heartbeat worker   when the heartbeat expires, on the host's monotonic clock, in seconds
cancel    worker   appears when the run must end; its text is the kind of ending. On a full disk a symbolic link
                   whose target is that text
preempt…  worker   ``preempt.json``: the preemption request (see :mod:`workers.shim.preempt_request`)
log       job      standard output and standard error, in the order of writing, cut by :mod:`workers.shim.log`.
                   For a job with a terminal the shim writes it (:mod:`workers.shim.pseudo_terminal`)
bundle    worker   the job's code if it came with the job; the first process unpacks it into ``code/tree``
                   (:mod:`workers.shim.code`)
log_limit worker   a symbolic link whose target is a lower limit of the logs (see :mod:`workers.shim.log`)
time_lim… worker   ``time_limit``: a symbolic link whose target is the extended time limit, in seconds
tty       shim     the socket of an attached terminal (:mod:`workers.shim.attached_terminal`)
exec      shim     the socket for second commands in the run (:mod:`workers.shim.second_command`)
stderr    job      standard error, if the job wants it separate from standard output
….times   shim     the size of ``log`` (or ``stderr``) over time
reports   job      a line for each process that used torch on a GPU (see :mod:`workers.run.torch_report`)
metrics   job      a line for each value that the job reports about itself (see :mod:`workers.measure.job_values`)
start     shim     whether the run started warm, or why not (:mod:`workers.shim.warm`); only for a warm job
exit      shim     JSON: how the run ended; appears atomically, after the last process is gone or proved unkillable
========  =======  ===========================================================================================

The shim fences itself: when the heartbeat expires, it ends the process tree before another worker can claim the job.
The shim is also the subreaper of the tree. A daemon that leaves its session and its parent is still reparented to the
shim, so no process outlives the run.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time

from workers.shim import acl, containers, shared_memory
from workers.shim.files import POLL_S, add, asked_end, deleted, extended, put, put_at_last, read, renewed_until
from workers.shim.host_memory import HostMemory
from workers.shim.launched import sweep
from workers.shim.log import KeptLog, LogLimit
from workers.shim.master_port import with_master_port
from workers.shim.not_started import NotStarted
from workers.shim.preempt_request import NEVER, PreemptRequest
from workers.shim.second_command import Commands
from workers.shim.start import output_of, started
from workers.shim.tree import WAKE, Tree, prctl, slurp, start_ticks, within

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from workers.shim.pseudo_terminal import Terminal
    from workers.shim.shared_memory import SharedMemory
    from workers.shim.start import LogFile
    from workers.shim.warm import WarmInterpreter

PR_SET_CHILD_SUBREAPER = 36
#: Time between TERM and KILL for the rest of the tree after the first process has ended by itself, in seconds.
LEFTOVER_GRACE_S = 2.0
#: Longest time between TERM and KILL for a job that used too much memory, in seconds.
EXCESS_GRACE_S = 1.0
#: Most that the reports and the metrics of a run need on the disk, in bytes each. 4096 reports of 8 devices need less.
MAX_REPORTS_BYTES = 8 * 1024 * 1024
#: How long a container engine may take to remove a container, in seconds.
REMOVE_S = 10.0
#: Exit code of a shim that cannot write into the run directory. Such a shim has started nothing.
CANNOT_WRITE = os.EX_IOERR


def identity(pid: int, boot_id: str) -> str:
    """Return the line of the file ``pid`` that identifies a process."""
    return f"{pid} {start_ticks(pid)} {boot_id}\n"


class TimeLimit:
    """When a run must end, and when its early signal is due, in seconds on the monotonic clock. It may be extended."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self._since: float = time.monotonic()
        self._limit_s: float | None = spec["time_limit_s"]
        signal_and_time: tuple[int, float] = spec["signal"] or (0, -NEVER)
        self.number, self._before_s = signal_and_time
        self.end = NEVER if self._limit_s is None else self._since + self._limit_s
        self.early = self.end - self._before_s

    def read(self, now: float) -> None:
        """Extend the limit if a worker has asked for that. An early signal that was sent is due again."""
        limit_s = extended()
        if limit_s is not None and limit_s != self._limit_s:
            self._limit_s, self.end = limit_s, self._since + limit_s
            if self.end - self._before_s > now:
                self.early = self.end - self._before_s


def watch(tree: Tree, spec: dict[str, Any], check_logs: Callable[[], float], request: PreemptRequest) -> str:
    """Wait until the first process ends or must end; return the kind of ending.

    If several endings apply at once, the order of the checks decides.
    """
    limit = TimeLimit(spec)
    until = spec["start_before"]
    while True:
        tree.reap()
        if tree.status is not None:
            return "exited"
        if tree.lost:
            return "lost"
        now = time.monotonic()
        limit.read(now)
        if (asked := asked_end()) is not None:
            return asked.strip() or "cancelled"
        if now >= limit.end:
            return "timed_out"
        if now >= limit.early:
            tree.early, limit.early = limit.number, NEVER
            tree.send_first(limit.number)
        if request.poll(read) and not request.signalled:
            request.signalled = tree.warn()
        if now >= request.until_s:
            return "preempted"
        until = renewed_until(until)
        if now >= until or deleted():
            return "lost"
        wake = min(now + POLL_S, now + check_logs(), limit.early, limit.end, request.until_s, until)
        request.woken(signal.sigtimedwait(WAKE, max(0.0, wake - now)))


def signal_word(number: int) -> str:
    """Return the name of a signal, such as ``SIGUSR1``."""
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


def grace_of(kind: str, spec: dict[str, Any], request: PreemptRequest) -> float:
    """Return the seconds between TERM and KILL.

    A preempted run has until the time in the preemption request, even if a cancel arrives meanwhile, because the
    waiting job relies on that time. A run with an expired heartbeat has less time: it must be gone before another
    worker claims the job. A run that used too much memory has very little time, because it harms other jobs.
    """
    grace_s: float = LEFTOVER_GRACE_S if kind == "exited" else spec["kill_grace_s"]
    if kind == "out_of_memory":
        grace_s = min(EXCESS_GRACE_S, grace_s)
    if kind == "lost" and spec["fence_grace_s"] is not None:
        grace_s = min(grace_s, spec["fence_grace_s"])
    if kind == "preempted" and request.until_s < NEVER:
        return request.left_s()
    return min(grace_s, request.left_s())


def detail_of(kind: str, request: PreemptRequest, tree: Tree) -> str:
    """Return the detail text of an ending."""
    words = ""
    if kind == "exited":
        words = tree.cause
    elif kind == "preempted" and request.by:
        words = "its time on the device was over" if request.by == "0" else f"preempted for job {request.by}"
    elif kind == "timed_out":
        words = tree.uncaught
    elif kind == "lost":
        words = tree.lost or "no worker renewed its lease in time"
    if tree.unkillable is None:
        return words
    names = ", ".join(map(str, tree.unkillable)) or "unknown"
    return f"{words}{'; ' if words else ''}unkillable: SIGKILL does not end its process {names}"


def main(run_dir: str, warm_interpreter: WarmInterpreter | None = None) -> None:
    """Run the job of *run_dir* and write how it ended. A *warm_interpreter* may become its first process."""
    os.chdir(run_dir)
    os.umask(0o077)
    signal.pthread_sigmask(signal.SIG_BLOCK, WAKE)
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    spec = json.loads(read("spec") or "")
    if spec["user"] is None:  # else its guard does
        spec["env"] = with_master_port(spec["env"])
    try:
        boot_id = slurp("/proc/sys/kernel/random/boot_id").decode().strip()
        # Not synced: after a power cut the processes named in it are gone, and the job would have to wait for the disk.
        put("pid", identity(os.getpid(), boot_id), sync=False, room=True)
    except OSError:
        sys.exit(CANNOT_WRITE)
    shared = shared_memory.SharedMemory(shared_memory.LIVE) if spec["user"] is None else None
    began = time.monotonic()  # the host's clock, so that worker times are comparable
    try:
        output = output_of(spec)
        tree = started(spec, output, warm_interpreter)
    except NotStarted as no:
        ending = no.ending()
    else:
        commands = Commands(spec, tree)  # a worker reports the run as running once its process is in the file pid
        with contextlib.suppress(OSError):
            # Not synced, as above. The block allocated for the first line has space for the second.
            add("pid", "".join(identity(pid, boot_id) for pid in (tree.pid, tree.root) if pid is not None))
        ending = follow(tree, commands, spec, output, shared, began)
    put_at_last("exit", json.dumps(ending))


def follow(
    tree: Tree,
    commands: Commands,
    spec: dict[str, Any],
    output: LogFile | Terminal,
    shared: SharedMemory | None,
    began: float,
) -> dict[str, Any]:
    """Watch the run, end all its processes, and return how it ended."""
    names = ["log", "stderr"] if spec["separate_stderr"] else ["log"]
    logs: list[KeptLog | LogLimit] = [KeptLog(name, spec["log_limit_bytes"]) for name in names]
    logs += [LogLimit(name, MAX_REPORTS_BYTES) for name in acl.REPORTED]
    memory = HostMemory() if spec["user"] is None else None  # else its guard watches that

    def check_logs() -> float:
        commands.poll()
        if memory is not None:
            memory.poll()
        if shared is not None:
            shared.poll()
        return min([log.check() for log in logs])

    request = PreemptRequest(spec["kill_grace_s"])
    kind = watch(tree, spec, check_logs, request)
    if kind == "exited" and memory is not None:
        tree.cause = memory.reason(tree.status)
    ended = time.monotonic()
    if kind == "exited" and request.has_ended(tree.status):
        kind = "preempted"  # it ended on SIGTERM; its other processes may still be saving
    elif kind == "exited" and tree.early and tree.status == tree.status_of(tree.early):
        kind, tree.uncaught = "timed_out", f"killed by {signal_word(tree.early)} of --signal, which it does not catch"
    request.poll(read)  # the request may have arrived together with a cancel
    by_itself = kind == "exited" and (tree.status or 0) >= 0 and not request.signalled
    warned = kind == "preempted" and request.signalled
    if shared is not None:
        shared.read()
    commands.end(at_once=kind == "lost")
    tree.end(grace_of(kind, spec, request), check_logs, warned=warned, by_itself=by_itself)
    end_container(tree, spec)
    output.drain()
    for log in logs:
        log.last_check()
    if spec["user"] is not None:
        acl.end_writing(".")
    max_rss_bytes, cpu_s = tree.usage()
    count, names = tree.left
    notes = [{"kind": "ended_processes", "items": names, "count": count}] if count else []
    notes += left_in_shared_memory(shared, spec) if shared is not None else tree.notes
    return {
        "kind": kind,
        "status": tree.status,
        "detail": detail_of(kind, request, tree),
        "duration_s": (ended if kind == "exited" else time.monotonic()) - began,
        "max_rss_bytes": max_rss_bytes,
        "cpu_s": cpu_s,
        **({"notes": notes} if notes else {}),
    }


def end_container(tree: Tree, spec: dict[str, Any]) -> None:
    """Remove the container of the run, if the program of its engine was killed before it could.

    A daemon of root may have its processes, or its layers may be left. Of a job that runs as its submitter the launcher
    kills what carries the token, and the daemon removes the container then.
    """
    if (tree.status or 0) >= 0 or (words := containers.removal(spec.get("container"), spec["env"])) is None:
        return
    if spec["user"] is not None:
        with contextlib.suppress(OSError):
            sweep(spec["launcher"], spec["env"]["GPUQUEUE_TOKEN"])
        return
    with contextlib.suppress(OSError):
        remover = Tree(os.posix_spawn(words[0], words, spec["env"], setsigmask=[]))
        until = time.monotonic() + REMOVE_S
        while remover.reap() and remover.status is None and (left_s := until - time.monotonic()) > 0:
            signal.sigtimedwait(WAKE, min(POLL_S, left_s))
        remover.end(0.0, lambda: None, warned=True)


def left_in_shared_memory(shared: SharedMemory, spec: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the notes on the shared memory that the run has left."""
    candidates = shared.candidates()
    if not candidates:
        return []
    remove = spec.get("remove_shared_memory", False)  # a worker of an earlier version writes none
    return within(shared_memory.END_S, lambda: shared_memory.notes(candidates, remove=remove)) or []
