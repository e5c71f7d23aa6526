"""The steps of ``up``, ``status`` and ``down`` on one machine: the store, the queue, the history, the host process."""

from __future__ import annotations

import fcntl
import json
import os
import sys
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from gpuqueue.clock import from_epoch_ms, from_iso
from gpuqueue.embedded.store import IS_LOADING, SILENT_S, EmbeddedStore
from gpuqueue.errors import (
    BadRequest,
    GpuQueueError,
    HistoryNewer,
    HistoryUnreachable,
    Refused,
    StoreLoading,
    StoreNotOpen,
    StoreNotReady,
    StoreUnreachable,
    Unreachable,
    unusable,
)
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.lazy.imports import later
from gpuqueue.model.job import JobState
from gpuqueue.queue.absence import StoreTrouble
from gpuqueue.queue.drains import DrainOrigin
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.queue.lease import SILENT_HEARTBEATS
from gpuqueue.queue.safety import check_safety
from gpuqueue.settings.settings import Settings
from gpuqueue.system import ownership
from gpuqueue.system.account import current_account
from gpuqueue.system.machine_id import machine_id
from gpuqueue.system.process import DetachedProcess, ProcessIdentity, installed, stop_signal
from gpuqueue.text.sanitize import without_password
from gpuqueue.version import VERSION
from gpuqueue.words.values import short_time

if TYPE_CHECKING:
    import subprocess
    from datetime import datetime

    from gpuqueue.model.device import Device
    from gpuqueue.queue.diagnostics import DeviceFacts
    from gpuqueue.queue.lease import DeviceStatus
    from gpuqueue.recovery import Opened
else:
    subprocess = later("subprocess")

#: Time limit for the workers to announce their devices, and for another host to open the store, in seconds.
READY_S = 60.0
#: Time limit for the host process to stop, in seconds.
LEAVE_S = 40.0
#: How long `status` waits for the history, in seconds.
HISTORY_S = 3.0
#: How workers get another version or other settings.
RESTART = "gpuqueue down --leave-jobs, then gpuqueue up: running jobs are taken over"
#: The option of the host process of an ``up --foreground``.
NEEDS_STORE = "--needs-store"
#: The option of a host process whose time ends.
UNTIL = "--until"
#: Interval between two polls while waiting, in seconds.
POLL_S = 0.05
#: Settings by which parts of the queue are outside of the state directory.
ELSEWHERE = ("redis_url", "store_socket", "database_url", "runs_dir", "service_url", "workers_account")
#: How long a start waits for a store that is loading its data, in seconds.
LOADING_S = 600.0


@dataclass(frozen=True, kw_only=True, slots=True)
class MachineStatus:
    """Status of this machine and of the queue."""

    store: str
    store_answers: bool
    host_pid: int | None
    #: Where the state directory is that this one is a copy of; None if it is no copy.
    copy_of: str | None = None
    #: The last death of the embedded store, if there was one.
    store_trouble: StoreTrouble | None = None
    devices: tuple[DeviceStatus, ...] = ()
    waiting: int = 0
    active: int = 0
    #: Number of events that are not in the history yet, and the age of the oldest in seconds.
    unrecorded: int = 0
    unrecorded_s: float | None = None
    #: Why the history cannot be read, None if it can be or this host has none.
    history_trouble: str | None = None
    #: For how long devices were idle because they were reserved, since the store was opened.
    reserved_idle_device_s: float = 0.0


class Machine:
    """Starts, inspects and stops the parts of the queue on this machine."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._pid_file = settings.state_dir / "host.pid"
        self.host_log = settings.logs_dir / "host.log"
        self.store = EmbeddedStore(settings)
        self._queue: JobQueue | None = None

    @property
    def queue(self) -> JobQueue:
        """Return the queue, connected on first use."""
        if self._queue is None:
            self._queue = JobQueue.of(self.settings)
        return self._queue

    @property
    def original(self) -> str | None:
        """Return where the state directory is that this one is a copy of, or None if it is no copy."""
        return ownership.original_of(self.settings.state_dir)

    # ---- up ------------------------------------------------------------------------------------------------------

    def own_directory(self, *, hold_jobs: bool) -> str | None:
        """Record that the state directory is no copy. If it is one, return of what.

        Raises:
            Refused: it is a copy, and its jobs are not to be held, or are not in it; or its processes run elsewhere.
            BadRequest: the jobs are to be held, and it is no copy.

        """
        directory, original = self.settings.state_dir, self.original
        if original is None:
            if hold_jobs:
                raise BadRequest(f"{directory} is no copy: leave out --hold-jobs")
            self.refuse_if_elsewhere()
            ownership.record(directory)
            return None
        copy = ownership.copy_words(directory, original)
        gone = f"if that is gone for good, and only then, remove {directory / ownership.RECORD} and try again"
        elsewhere = [name for name in ELSEWHERE if self.settings.origins.get(name, "default") != "default"]
        if elsewhere:
            raise Refused(
                f"{copy}, and uses the same {', '.join(elsewhere)}: each would take the jobs of the other. Choose an "
                f"empty GPUQUEUE_STATE_DIR; {gone}"
            )
        if not hold_jobs:
            raise Refused(
                f"{copy}: each of its jobs would run a second time. gpuqueue history shows what is in it; gpuqueue up "
                f"--hold-jobs starts it with all jobs held; {gone}"
            )
        for name in ("host.pid", "web.pid"):  # processes of the original
            (directory / name).unlink(missing_ok=True)
        return original

    def refuse_if_elsewhere(self) -> None:
        """Raise Refused if the processes of this directory were started as another one, and still run there."""
        logs = ownership.lives_elsewhere(self.settings.state_dir)
        if logs is not None:
            pids = " ".join(map(str, ownership.living_pids(self.settings.state_dir)))
            raise Refused(
                f"the processes of {self.settings.state_dir} run on the directory that it was moved from ({logs}): end "
                f"them with kill {pids}, then gpuqueue up"
            )

    def hold_jobs(self, original: str) -> int:
        """Hold all jobs of this copy of *original*, which then is no copy any more, and return how many are held.

        The runs are those of the original. They are withdrawn here, and no process of them is ended.

        Raises:
            GpuQueueError: the run directories cannot be settled.

        """
        why = f"this queue was copied from {original}, where its run stays"
        jobs = self.queue.jobs
        held = 0
        for job, run in ((each.record.job, each.run) for page in self.queue.recovery.survivors() for each in page):
            if run is not None:
                self.queue.runs.release_claim(job.id, run.token, why)
            held += jobs.hold(job.id) is JobState.HELD
        _run("left", "--forget")
        ownership.record(self.settings.state_dir, is_new=True)
        return held

    @contextmanager
    def alone(self, *, patient: bool = False) -> Iterator[None]:
        """Hold the lock that excludes another ``up`` or ``down`` on this machine. If *patient*, wait for the lock.

        Raises:
            Refused: another ``up`` or ``down`` holds the lock.
            GpuQueueError: the state directory cannot be used.

        """
        with self._lock("up.lock", fcntl.LOCK_EX if patient else fcntl.LOCK_EX | fcntl.LOCK_NB) as is_held:
            if not is_held:
                raise Refused("another gpuqueue up or down is in progress on this machine: wait for it")
            yield

    @contextmanager
    def in_foreground(self) -> Iterator[None]:
        """Hold the lock that says that an ``up --foreground`` waits for the host process.

        The kernel releases it when this process dies. A host process that is then left is taken over by the next one.

        Raises:
            Refused: another ``up --foreground`` holds the lock.
            GpuQueueError: the state directory cannot be used.

        """
        with self._lock("foreground.lock", fcntl.LOCK_EX | fcntl.LOCK_NB) as is_held:
            if not is_held:
                raise Refused("it is up already, in the foreground: end that process, or run gpuqueue down first")
            yield

    @contextmanager
    def _lock(self, name: str, operation: int) -> Iterator[bool]:
        """Take a lock in the state directory until the end of the block, and return whether it was taken."""
        try:
            self.settings.state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
            fd = os.open(self.settings.state_dir / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise unusable(self.settings.state_dir, error) from error
        try:
            try:
                fcntl.flock(fd, operation)
            except BlockingIOError:
                yield False
            else:
                yield True
        finally:
            os.close(fd)

    @contextmanager
    def tunnel(self, *, is_needed: bool = True) -> Iterator[None]:
        """Keep a tunnel to the store open, on a host that uses the store through the service and has no tunnel now.

        Without *is_needed*, a tunnel that cannot be opened is no error: the store does not answer then.

        Raises:
            StoreUnreachable: the service cannot be reached, or does not serve this host.
            GpuQueueError: the token, the certificate or the state directory of this host cannot be used.

        """
        if not self.settings.store_through_service or self._tunnel_answers():
            yield
            return
        words = [installed("gpuqueue-worker"), "tunnel", "--for-command"]
        pipe = subprocess.PIPE
        with subprocess.Popen(
            words, stdin=pipe, stdout=pipe, stderr=pipe, text=True, start_new_session=True
        ) as process:
            if process.stdout is None or process.stderr is None or process.stdin is None:
                raise AssertionError
            if process.stdout.readline() != "ready\n" and is_needed:
                lines = process.stderr.read().strip().splitlines()
                error = as_error(process.wait(), lines)
                raise StoreUnreachable(str(error)) if process.returncode == StoreUnreachable.exit_code else error
            try:
                yield
            finally:
                process.stdin.close()

    def _tunnel_answers(self) -> bool:
        import socket  # noqa: PLC0415 - only on a host that has joined

        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(str(self.settings.socket_path)) == 0

    def start_store(self) -> str:
        """Start the embedded store if there is one, check that the store is safe, and return a text of what was done.

        A store that is loading its data is waited for. A host that records no history also waits for a store that does
        not answer yet, because another host or account starts it.

        Raises:
            GpuQueueError: the embedded server does not start.
            StoreUnreachable: the store at GPUQUEUE_REDIS_URL does not answer.
            StoreLoading: it is still loading its data.
            Refused: the clock is before 1970.
            StoreNotReady: the store could lose jobs.

        """
        if time.time() < 0:
            year = time.gmtime(time.time()).tm_year
            raise Refused(
                f"the clock of this machine is in the year {year}, and the store counts from 1970: set it first"
            )
        started = self.store.start() if self.settings.embedded else False
        if not self.settings.embedded:
            await_store(self.queue, within_s=0.0 if self.settings.record else READY_S)
        for warning in check_safety(self.settings.redis_url):
            sys.stderr.write(f"gpuqueue: warning: {warning}\n")
        return "started" if started else "was running"

    def open_queue(self) -> Opened | None:
        """Open the store for gpuqueue, and rebuild lost data from the history. Return None if it was open already.

        A host that records no history waits until another host has opened the store.

        Raises:
            StoreNotOpen: it waited for too long.

        """
        if not self.settings.record:
            await_open(self.queue, within_s=READY_S)
            return None
        from gpuqueue.history.database import HistoryDatabase  # noqa: PLC0415 - lazy import for startup time
        from gpuqueue.recovery import open_queue  # noqa: PLC0415 - lazy import for startup time

        database = HistoryDatabase(self.settings.database_url)
        opened = open_queue(self.queue, database, lease_s=self.settings.lease_s, settings=self.settings)
        database.close()
        return opened

    def host_running(self) -> ProcessIdentity | None:
        """Return the identity of this machine's host process, or None if it does not run."""
        identity = ownership.process_of(self.settings.state_dir, self._pid_file.name)
        return identity if identity is not None and identity.alive() else None

    def served(self, host: ProcessIdentity) -> str | None:
        """Return the ``--devices`` of the host process, or None if they cannot be read."""
        return _option(host, "--devices")

    @staticmethod
    def end_of(host: ProcessIdentity) -> datetime | None:
        """Return when the time of the host process ends, None if it has no end."""
        text = _option(host, UNTIL)
        return None if text is None else from_iso(text)

    @staticmethod
    def is_of_foreground(host: ProcessIdentity) -> bool:
        """Return whether an ``up --foreground`` has started the host process."""
        return NEEDS_STORE in _words_of(host)

    def killed_runs(self) -> str | None:
        """Return a text on the runs that were killed together with the host process or this machine, None without any.

        Runs that live are taken over. Call this before the next host process is started.
        """
        if not any_unsettled(self.settings.runs_dir):
            return None
        runs = json.loads(_run("killed"))
        with_queue = self._pid_file.exists() and self.host_running() is None  # `down` removes the file
        if not with_queue:
            runs = [run for run in runs if not run["in_this_boot"]]
        if not runs:
            return None
        number = f"{len(runs)} run{'s were' if len(runs) > 1 else ' was'} killed"
        if not with_queue:
            return f"{number} when this machine went down"
        last_ms = max(run["seen_ms"] for run in runs)
        return f"{number} about {short_time(from_epoch_ms(last_ms))}, together with the queue"

    def take_name(self) -> None:
        """Take the host name for this machine.

        Raises:
            HostTaken: another machine has it.

        """
        machine = machine_id(self.settings.state_dir)
        self.queue.devices.name_host(self.settings.host, machine, lease_s=self.settings.lease_s)

    def start_host(self, devices: str, *, needs_store: bool = False, until: datetime | None = None) -> DetachedProcess:
        """Start the host process of this machine, detached from this terminal. ``none``: only the recorder.

        At *until*, less the grace of a preemption, it starts ``gpuqueue down --preempt-jobs``.

        With *needs_store* it ends with the exit code of :class:`StoreUnreachable` if the embedded store dies and cannot
        be started again. Otherwise it goes on, because the workers keep the running jobs alive.
        """
        words = [installed("gpuqueue-worker"), "host", "--devices", devices]
        words += [NEEDS_STORE] if needs_store else []
        words += [] if until is None else [UNTIL, until.isoformat()]
        host = DetachedProcess(words, log=self.host_log)
        ownership.write_pid(self._pid_file, host.pid)
        return host

    def wait_ready(
        self, host: DetachedProcess, devices: Collection[Device], since_ms: int
    ) -> tuple[tuple[DeviceStatus, ...], tuple[Device, ...]]:
        """Wait until each of *devices* has a worker that sent a heartbeat after *since_ms*.

        Return them, and those of *devices* whose workers take too long: one bad device does not keep the others back.

        Raises:
            GpuQueueError: the host process ended, or no worker came up in time.

        """
        deadline = time.monotonic() + READY_S
        uuids = {device.uuid for device in devices}
        while True:
            if host.poll() is not None:
                raise GpuQueueError(f"the workers did not start: {last_line(self.host_log)} ({self.host_log})")
            is_late = time.monotonic() >= deadline
            age_s = (self.queue.now_ms() - since_ms) / 1000
            here = self.queue.devices.all(self.settings.host)
            ready = tuple(each for each in here if each.device.uuid in uuids and each.seen_s_ago < age_s)
            if len(ready) == len(uuids) or (is_late and ready):
                known = {each.device.uuid for each in ready}
                return ready, tuple(device for device in devices if device.uuid not in known)
            if is_late:
                why = self.why_not_ready(next(iter(uuids), "host"))
                raise GpuQueueError(f"the workers did not come up within {READY_S:.0f} s: {why}")
            time.sleep(POLL_S)

    def why_not_ready(self, uuid: str) -> str:
        """Return the last line that the worker of the device *uuid* wrote to its log."""
        log = self.settings.logs_dir / f"{uuid}.log"
        return f"{last_line(log)} ({log})" if log.exists() else f"see {self.settings.logs_dir}"

    # ---- status --------------------------------------------------------------------------------------------------

    def status(self) -> MachineStatus:
        """Return the status. If the store does not answer, ``store_answers`` is False."""
        host = self.host_running()
        status = MachineStatus(
            store=self.settings.store_shown,
            store_answers=False,
            host_pid=host.pid if host else None,
            copy_of=self.original,
            store_trouble=StoreTrouble.read(self.settings) if self.settings.embedded else None,
        )
        try:
            waiting, active = self.queue.jobs.counts()
            devices = tuple(self.queue.devices.all())
            unrecorded, unrecorded_s = self.queue.outbox.backlog()
            reserved_idle_device_s = self.queue.maintenance.reserved_idle_device_s()
        except StoreUnreachable:
            return replace(status, history_trouble=None if host is None else self.history_trouble())
        return replace(
            status,
            store_answers=True,
            devices=devices,
            waiting=waiting,
            active=active,
            unrecorded=unrecorded,
            unrecorded_s=unrecorded_s,
            history_trouble=self.history_trouble(),
            reserved_idle_device_s=reserved_idle_device_s,
        )

    def history_trouble(self) -> str | None:
        """Return why the history cannot be read. None if it can be, or if this host has none."""
        if not self.settings.has_history:
            return None
        from gpuqueue.history import sqlite_reader  # noqa: PLC0415 - lazy import for startup time
        from gpuqueue.system.timed_call import CallFailed, TimedCall  # noqa: PLC0415 - as above

        url = self.settings.database_url
        with suppress(sqlite_reader.Shut):
            sqlite_reader.record(url, 0)
            return None

        def read() -> None:
            from gpuqueue.history.database import HistoryDatabase  # noqa: PLC0415 - as above: slow to import

            database = HistoryDatabase(url)
            database.max_job_id()
            database.close()

        try:
            TimedCall(read, HISTORY_S).wait()
        except HistoryUnreachable as error:
            return str(error)
        except CallFailed as error:
            return f"the history database at {without_password(url)} does not answer: {error}"
        return None

    def other_versions(self) -> str | None:
        """Return a text on workers of this host that run another version of gpuqueue, or None if there are none."""
        from gpuqueue.queue.diagnostics import device_facts  # noqa: PLC0415 - lazy import for startup time

        silent_s = SILENT_HEARTBEATS * self.settings.heartbeat_s
        here = [each for each in device_facts(self.settings.redis_url) if each.status.host == self.settings.own_host]
        return of_other_versions(each for each in here if each.status.seen_s_ago <= silent_s)

    # ---- down ----------------------------------------------------------------------------------------------------

    def _own_devices(self) -> list[DeviceStatus]:
        """Return the devices of this machine in the queue; none if another machine has its host name."""
        host, machine = self.settings.host, machine_id(self.settings.state_dir)
        return self.queue.devices.all(host) if self.queue.devices.is_of(host, machine) else []

    def drain(self) -> None:
        """Drain all devices of this machine."""
        here = [each.device.uuid for each in self._own_devices()]
        who = current_account(self.settings.host).name
        self.queue.devices.drain(
            here, origin=DrainOrigin.DOWN, why="this machine is going down (gpuqueue down)", by=who
        )

    def running_jobs(self) -> tuple[int, ...]:
        """Return the ids of the jobs that are allocated a device of this machine."""
        return tuple(sorted({job for each in self._own_devices() for job in each.jobs}))

    def preempt_jobs(self, grace_s: float) -> tuple[int, ...]:
        """Preempt the runs on the devices of this machine, and return the ids of their jobs.

        They have *grace_s* seconds to end. A run that has not started yet is preempted by a later call.
        """
        here = [each.device.uuid for each in self._own_devices()]
        return tuple(sorted(self.queue.devices.preempt(here, grace_s=grace_s)))

    def stop_host(self) -> bool:
        """Stop the host process with its workers and recorder. Return whether it ran. Shims and their jobs continue.

        Raises:
            GpuQueueError: the host process does not stop.

        """
        host = self.host_running()
        if host is None:
            return False
        host.send(stop_signal())
        if not host.wait(LEAVE_S):
            raise GpuQueueError(f"the workers (pid {host.pid}) do not stop: see {self.host_log}")
        self._pid_file.unlink(missing_ok=True)
        return True

    def resume(self) -> None:
        """Remove the drains that ``down`` set on the devices of this machine."""
        here = [each.device.uuid for each in self._own_devices()]
        self.queue.devices.resume(here, origins=[DrainOrigin.DOWN])

    def forget_devices(self) -> None:
        """Withdraw this machine's devices that run no job, so that no memory is allocated on them any more."""
        for each in self._own_devices():
            if not each.jobs:
                self.queue.devices.withdraw(self.settings.host, each.device.uuid)

    def stop_store(self) -> bool:
        """Stop the embedded store, and return whether it ran. Its data stays on disk."""
        return self.store.stop() if self.settings.embedded else False


def any_unsettled(runs: Path) -> bool:
    """Return whether there may be runs below *runs* that no worker has settled (``workers.run.links``)."""
    try:
        return bool(os.listdir(runs / "live"))  # noqa: PTH208 - one call
    except OSError:
        return False


def of_other_versions(devices: Iterable[DeviceFacts]) -> str | None:
    """Return a text on the workers of *devices* that run another version than this one, or None if there are none."""
    others = sorted({device.version or "an older one" for device in devices} - {VERSION})
    return f"{VERSION} is installed, and workers of {', '.join(others)} still run" if others else None


def _option(process: ProcessIdentity, option: str) -> str | None:
    """Return the value of an *option* of *process*, None without one."""
    return next((value for name, value in pairwise(_words_of(process)) if name == option), None)


def _words_of(process: ProcessIdentity) -> list[str]:
    """Return the command line of *process*, empty if it cannot be read."""
    try:
        return Path(f"/proc/{process.pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []


def last_line(path: Path) -> str:
    """Return the last line of a log."""
    lines = path.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "no reason given"


def await_store(queue: JobQueue, *, within_s: float) -> None:
    """Wait until the store answers and has loaded its data, and report a wait.

    Raises:
        StoreUnreachable: it does not answer within *within_s*.
        StoreLoading: it is still loading its data after ``LOADING_S``.

    """
    began_s = time.monotonic()
    reported = set[type[Unreachable]]()
    trouble: Unreachable
    while True:
        try:
            queue.epoch()
        except StoreLoading as error:
            trouble, text, limit_s, silent_s = error, IS_LOADING, LOADING_S, SILENT_S
        except StoreNotReady:
            return
        except StoreUnreachable as error:
            trouble, text, limit_s, silent_s = error, str(error), within_s, 0.0
        else:
            return
        waited_s = time.monotonic() - began_s
        if waited_s >= limit_s:
            raise trouble
        if waited_s >= silent_s and type(trouble) not in reported:
            sys.stderr.write(f"gpuqueue: {text}. Waiting for it, at most {limit_s:.0f} s\n")
            reported.add(type(trouble))
        time.sleep(POLL_S)


def await_open(queue: JobQueue, *, within_s: float) -> None:
    """Wait until a recorder has opened the store.

    Raises:
        StoreNotOpen: none has within *within_s*.

    """
    until_s = time.monotonic() + within_s
    while queue.epoch() is None:
        if time.monotonic() > until_s:
            raise StoreNotOpen(
                "the store is not open: a recorder opens it, on the host of the service. Does gpuqueue run there?"
            )
        time.sleep(POLL_S)


def park_jobs() -> str:
    """Let this machine's jobs continue without workers; return a text with their number and the time limit.

    Raises:
        GpuQueueError: the command failed. The shims will end the jobs when their grace is over.

    """
    return _run("park")


def left_jobs() -> str:
    """Return a text on the jobs of this machine that run without a worker, empty if none does. Needs no store."""
    return _run("left")


def end_left_jobs() -> None:
    """End the jobs of this machine that run without a worker, and wait until they are gone. Needs no store."""
    _run("left", "--end")


def _run(*words: str) -> str:
    """Run ``gpuqueue-worker`` with *words* and return its output.

    Raises:
        GpuQueueError: the program failed. The message is its last line on standard error.

    """
    done = subprocess.run([installed("gpuqueue-worker"), *words], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise as_error(done.returncode, done.stderr.strip().splitlines())
    return done.stdout.strip()


def as_error(code: int, lines: list[str]) -> GpuQueueError:
    """Return the error of ``gpuqueue-worker``, which ended with *code* and wrote *lines* to its standard error."""
    text = (lines or ["the devices could not be found, and no reason was given"])[-1].removeprefix("gpuqueue-worker: ")
    return BadRequest(text) if code == BadRequest.exit_code else GpuQueueError(text)


def prepare_history(database_url: str) -> str:
    """Migrate the history database to this version's tables, and return their revision.

    Raises:
        HistoryUnreachable: the database does not answer.

    """
    from gpuqueue.history import migrate  # noqa: PLC0415 - lazy import: alembic is slow to import, and only ``up`` needs it
    from gpuqueue.history.revision import REVISION  # noqa: PLC0415 - with its package

    migrate.upgrade(database_url)
    return REVISION


def refuse_newer_history(database_url: str) -> None:
    """Check that the history database is not of a newer version. A database that does not answer passes.

    Raises:
        HistoryNewer: the database is of a newer version.

    """
    from gpuqueue.history import migrate  # noqa: PLC0415 - lazy import for startup time

    try:
        migrate.refuse_newer(database_url)
    except HistoryNewer:
        raise
    except HistoryUnreachable:  # prepare decides whether the start needs it
        return


def history_exists(database_url: str) -> bool:
    """Return whether the history database has tables, of any version.

    Raises:
        HistoryUnreachable: the database does not answer.

    """
    from gpuqueue.history import migrate  # noqa: PLC0415 - lazy import for startup time

    return migrate.current(database_url) is not None
