"""Runs what a job's owner wants run once it has ended: on the host where it ran, as the account that ran it.

The same rights, so that a command can do no more than the job itself could. Each has so long and no longer, a few at a
time, in threads of their own: no run, no claim and no beat waits for them. docs/internals/adr/0009.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import select
import stat
import subprocess
import threading
from collections.abc import Callable
from functools import partial

from gpuqueue.codec import decode_spec
from gpuqueue.errors import GpuQueueError, Unreadable
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.job import JobSpec, JobState
from gpuqueue.model.notification import Delivery, NotificationKind, Outcome
from gpuqueue.model.run import Ending
from gpuqueue.queue.jobqueue import JobQueue
from workers.measure.active_runs import LiveRun
from workers.run import process_tree
from workers.run.directory import RunDir
from workers.run.environment import TOKEN, environment
from workers.run.files import BEGUN
from workers.threads.timeout import TIMEOUT

log = logging.getLogger(__name__)

#: How long one command may take, in seconds, and how long it then has to leave by itself.
LIMIT_S, GRACE_S = 60, 5
#: Commands that run at the same time, and those that wait for that; what comes beyond is left out.
LANES, MOST_WAITING = 2, 1000
#: By this variable all processes of a command are known, however often it forked.
MARK = "GPUQUEUE_AFTER"
#: What runs a command; timeout(1) ends it, also where this worker does not live to see that.
SHELL = "/bin/sh"
_LATE = 124  # as timeout(1) says it
#: What the shell does first. To enter a directory on a dead file server can take for ever: so it is under the time
#: limit, and no part of starting timeout(1), for which we wait. Into its input, a pipe, the shell says that it cannot.
_ENTER = 'cd -- "$1" || { echo >&0; exit 1; }; exec "$0" -c "$2" </dev/null'


@dataclass(frozen=True, kw_only=True, slots=True)
class _Command:
    """One command, and all that it is run with."""

    run: str
    words: str
    env: dict[str, str]
    cwd: str
    umask: int
    directory: RunDir
    #: What is told of it when it is over.
    report: Callable[[Outcome, str], None]


class AfterEnd:
    """The commands of a worker's ended runs."""

    def __init__(self, jobs: JobQueue) -> None:
        self._jobs = jobs
        self._waiting: queue.Queue[_Command] = queue.Queue(MOST_WAITING)
        self._lanes: list[threading.Thread] = []

    def ended(self, run: LiveRun, state: JobState, ending: Ending, spec: JobSpec | None = None) -> None:
        """Let the commands of the job of *run*, which has ended for good, run soon. Nothing is raised.

        *spec* is what was asked for; where it is not given, that of the run directory is read.
        """
        try:
            spec = spec or _spec_of(run.directory)
            if spec is None:
                return
            wanted: list[int] = []
            for number, notification in enumerate(spec.notifications):
                if notification.kind is NotificationKind.COMMAND and notification.follows(
                    succeeded=state is JobState.SUCCEEDED
                ):
                    wanted.append(number)
                elif notification.kind is NotificationKind.COMMAND:
                    self._report(run, state, number, Outcome.NOT_NEEDED, "")
            if not wanted or not self._begin(run, state, wanted):
                return
            for number in wanted:
                reported = {
                    MARK: f"{run.held.token}.{number}",
                    "GPUQUEUE_JOB_NAME": spec.name,
                    "GPUQUEUE_JOB_STATE": state.value,
                    "GPUQUEUE_ENDING": ending.kind.value,
                    "GPUQUEUE_EXIT_CODE": str(ending.shell_code),
                    "GPUQUEUE_LOG": str(run.directory.log),
                }
                self._put(
                    run, spec, spec.notifications[number].command, reported, partial(self._report, run, state, number)
                )
        except Exception:
            log.exception("%s: what is to run at its end does not", run)

    def _begin(self, run: LiveRun, state: JobState, wanted: list[int]) -> bool:
        """Return whether the commands *wanted* may run: they were not begun before, and nobody will begin them again.

        An end may be told more than once: to a store that lost it, or by the worker after us.
        """
        try:
            if _is_first(run.directory):
                return True
            log.info("%s: what was to run at its end was begun before", run)
        except OSError as error:
            words = f"not run: its run directory cannot be written: {error.strerror}"
            log.warning("%s: its command at the end is %s", run, words)
            for number in wanted:
                self._report(run, state, number, Outcome.GIVEN_UP, words)
        return False

    def _report(self, run: LiveRun, state: JobState, number: int, outcome: Outcome, trouble: str) -> None:
        """Let the job's owner know what became of a command. A store that is away hears nothing of it."""
        what = Delivery(number=number, outcome=outcome, trouble=trouble or None)
        try:
            self._jobs.senders.reported(
                run.held.job_id, state=state, attempt=int(run.held.token.partition(".")[0]), what=what
            )
        except (GpuQueueError, ValueError) as error:
            log.warning("%s: what became of its command at the end cannot be told: %s", run, error)

    def _put(
        self, run: LiveRun, spec: JobSpec, words: str, reported: dict[str, str], report: Callable[[Outcome, str], None]
    ) -> None:
        held, directory = run.held, run.directory
        env = environment(held.job_id, held.token, spec, held.devices, directory.path, cap=False)
        env.pop(TOKEN)  # it is no process of the run, which is over
        env["CUDA_VISIBLE_DEVICES"] = ""  # its devices are promised to others by now
        command = _Command(
            run=str(run),
            words=words,
            env={**env, **reported},
            cwd=spec.cwd,
            umask=spec.umask,
            directory=directory,
            report=report,
        )
        try:
            self._waiting.put_nowait(command)
        except queue.Full:
            log.warning("%s: too much is to be run already, left out at its end: %s", run, words)
            report(Outcome.GIVEN_UP, "left out: too much was to be run already")
            return
        if len(self._lanes) < LANES:
            thread = threading.Thread(target=self._lane, name="gpuqueue-after-end", daemon=True)
            self._lanes.append(thread)
            thread.start()

    def _lane(self) -> None:
        while True:
            command = self._waiting.get()
            try:
                _run(command)
            except Exception as error:  # noqa: BLE001 - whatever a person's command, directory or log can do to us
                log.warning("%s: its command at the end could not be run: %s", command.run, error)
                command.report(Outcome.GIVEN_UP, f"could not be run: {getattr(error, 'strerror', None) or error}")


def _spec_of(directory: RunDir) -> JobSpec | None:
    """Return what was asked for in the run of *directory*; None where nobody can say."""
    try:
        payload = directory.payload()
        return decode_spec(payload) if payload else None
    except (OSError, Unreadable):
        return None


def _is_first(directory: RunDir) -> bool:
    """Note that the commands of a run are begun; return whether nobody had noted it before.

    Raises:
        OSError: it cannot be noted.

    """
    marker = directory.path / BEGUN
    try:
        fd = os.open(marker, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return False
    try:
        os.fsync(fd)  # after a power cut the end may be told again, and the command has long begun
    finally:
        os.close(fd)
    if not directory.claimed:  # it was settled meanwhile: nobody tells its end again
        with contextlib.suppress(OSError):
            marker.unlink()
    return True


def _run(command: _Command) -> None:
    """Run one command to its end, and no process of it longer. What it writes goes to the end of the job's log."""
    log.info("%s: run at its end: %s", command.run, command.words)
    with contextlib.ExitStack() as stack:
        out = _appended(command.directory)
        if out is not None:
            stack.callback(os.close, out)
            os.write(out, f"gpuqueue: at the end: {command.words}\n".encode())
        refused, word = os.pipe()
        stack.callback(os.close, refused)
        stack.callback(os.close, word)
        poll = select.poll()
        poll.register(refused, select.POLLIN)
        done = subprocess.run(
            [TIMEOUT, "-k", str(GRACE_S), str(LIMIT_S), SHELL, "-c", _ENTER, SHELL, command.cwd, command.words],
            env=command.env,
            cwd="/",
            umask=command.umask,
            stdin=word,
            stdout=subprocess.DEVNULL if out is None else out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            check=False,
        )
        entered = not poll.poll(0)
    left = process_tree.sweep(MARK, command.env[MARK])
    if left:
        log.warning("%s: %d processes that its command at the end left behind were ended", command.run, left)
    how = ""
    if not entered:
        how = "could not be run: the job's directory cannot be entered"
    elif done.returncode:
        how = f"took longer than {LIMIT_S} s" if done.returncode == _LATE else f"failed with {done.returncode}"
    if how:
        log.warning("%s: its command at the end %s: %s", command.run, how, command.words)
    command.report(Outcome.GIVEN_UP if done.returncode else Outcome.SENT, how)


def _appended(directory: RunDir) -> int | None:
    """Return a descriptor that adds to the job's log; None where a job has put something else in its place."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        fd = os.open(directory.log, flags)
    except OSError:
        return None
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    return None
