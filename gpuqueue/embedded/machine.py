"""What ``up``, ``status`` and ``down`` do on one machine: the store, the book's tables, the host process."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from gpuqueue.embedded.store import EmbeddedStore
from gpuqueue.errors import BadRequest, GpuQueueError, Refused, StoreUnreachable
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.queue.drains import DrainOrigin
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.queue.safety import check_safety
from gpuqueue.settings.settings import Settings, unusable
from gpuqueue.system.account import current_account
from gpuqueue.system.process import DetachedProcess, ProcessIdentity, installed
from gpuqueue.text.redact import without_password

if TYPE_CHECKING:
    from gpuqueue.queue.lease import DeviceStatus
    from gpuqueue.recovery.reopen import Opened

#: How long the workers may take to announce their devices, in seconds.
READY_S = 60.0
#: How long the host process may take to leave, in seconds.
LEAVE_S = 40.0
#: Time between two looks while waiting, in seconds.
LOOK_S = 0.05


@dataclass(frozen=True, kw_only=True, slots=True)
class MachineStatus:
    """What runs on this machine."""

    store: str
    store_answers: bool
    host_pid: int | None
    devices: tuple[DeviceStatus, ...] = ()
    waiting: int = 0
    active: int = 0
    #: Events that wait for the book, and since when the first of them does.
    unrecorded: int = 0
    unrecorded_s: float | None = None


class Machine:
    """This machine's part of the queue."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._pid_file = settings.state_dir / "host.pid"
        self._log = settings.logs_dir / "host.log"
        self.store = EmbeddedStore(settings)
        self._queue: JobQueue | None = None

    @property
    def queue(self) -> JobQueue:
        """Return the store's side."""
        if self._queue is None:
            self._queue = JobQueue(self.settings.redis_url)
        return self._queue

    # ---- up ------------------------------------------------------------------------------------------------------

    @contextmanager
    def alone(self, *, patient: bool = False) -> Iterator[None]:
        """Keep a second ``up`` or ``down`` out for as long as this one is at work; wait for it if *patient*.

        Raises:
            Refused: one is at work.
            GpuQueueError: the state directory cannot be used.

        """
        try:
            self.settings.state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
            fd = os.open(self.settings.state_dir / "up.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise unusable(self.settings.state_dir, error) from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX if patient else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            raise Refused("another gpuqueue up or down is at work on this machine: wait for it") from None
        try:
            yield
        finally:
            os.close(fd)

    def start_store(self) -> str:
        """Have a safe store that answers; return in words what was done.

        Raises:
            GpuQueueError: the embedded server does not start.
            StoreUnreachable: the store at GPUQUEUE_REDIS_URL does not answer.
            StoreNotReady: it would forget jobs.

        """
        started = self.store.start() if self.settings.embedded else False
        for warning in check_safety(self.settings.redis_url):
            sys.stderr.write(f"gpuqueue: warning: {warning}\n")
        return "started" if started else "was running"

    def prepare_book(self) -> str:
        """Bring the database to this version's tables; return its revision.

        Raises:
            BookUnreachable: the database does not answer.

        """
        from gpuqueue.history import migrate  # noqa: PLC0415 - alembic is a heavy import, and only up needs it

        migrate.upgrade(self.settings.database_url)
        return migrate.head()

    def has_book(self) -> bool:
        """Return whether the book has tables, of whatever version.

        Raises:
            BookUnreachable: the database does not answer.

        """
        from gpuqueue.history import migrate  # noqa: PLC0415 - as in prepare_book

        return migrate.current(self.settings.database_url) is not None

    def open_queue(self) -> Opened | None:
        """Make the store ready; return what that took if it was not. What it lost comes back from the book."""
        from gpuqueue.history.database import Book  # noqa: PLC0415 - as in prepare_book
        from gpuqueue.recovery.reopen import open_queue  # noqa: PLC0415 - as in prepare_book

        book = Book(self.settings.database_url)
        opened = open_queue(self.queue, book, lease_s=self.settings.lease_s, settings=self.settings)
        book.close()
        return opened

    def host_running(self) -> ProcessIdentity | None:
        """Return the host process that serves this machine, or None."""
        try:
            identity = ProcessIdentity.parse(self._pid_file.read_text(encoding="ascii"))
        except OSError:
            return None
        return identity if identity is not None and identity.alive() else None

    def served(self, host: ProcessIdentity) -> str | None:
        """Return which devices the host process was told to serve; None where nobody can see that."""
        try:
            words = Path(f"/proc/{host.pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            return None
        return next((value for name, value in pairwise(words) if name == "--devices"), None)

    def find_devices(self, spec: str) -> tuple[str, ...]:
        """Return the UUIDs of the devices that *spec* means on this machine.

        Raises:
            GpuQueueError: there are none, or *spec* is malformed.

        """
        found = _worker("devices", "--devices", spec, "--json")
        return tuple(each["uuid"] for each in json.loads(found))

    def start_host(self, devices: str) -> DetachedProcess:
        """Start the process that serves this machine, detached from this terminal."""
        host = DetachedProcess([installed("gpuqueue-worker"), "host", "--devices", devices], log=self._log)
        self._pid_file.write_text(f"{ProcessIdentity.of(host.pid)}\n", encoding="ascii")
        return host

    def wait_ready(self, host: DetachedProcess, wanted: Collection[str], since_ms: int) -> tuple[DeviceStatus, ...]:
        """Wait until each of the *wanted* devices has a worker that came up after *since_ms*; return the devices.

        Raises:
            GpuQueueError: the host process ended, or takes too long.

        """
        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline:
            if host.poll() is not None:
                raise GpuQueueError(f"the workers did not start: {_last_line(self._log)} ({self._log})")
            age_s = (self.queue.now_ms() - since_ms) / 1000
            here = self.queue.devices(self.settings.host)
            fresh = tuple(each for each in here if each.device.uuid in wanted and each.seen_s_ago < age_s)
            if len(fresh) == len(wanted):
                return fresh
            time.sleep(LOOK_S)
        raise GpuQueueError(f"the workers did not come up within {READY_S:.0f} s: see {self.settings.logs_dir}")

    # ---- status --------------------------------------------------------------------------------------------------

    def status(self) -> MachineStatus:
        """Return what runs here; a store that does not answer is part of the answer."""
        host = self.host_running()
        store = without_password(self.settings.redis_url)
        pid = host.pid if host else None
        try:
            waiting, active = self.queue.counts()
            devices = tuple(self.queue.devices())
            unrecorded, unrecorded_s = self.queue.backlog()
        except StoreUnreachable:
            return MachineStatus(store=store, store_answers=False, host_pid=pid)
        return MachineStatus(
            store=store,
            store_answers=True,
            host_pid=pid,
            devices=devices,
            waiting=waiting,
            active=active,
            unrecorded=unrecorded,
            unrecorded_s=unrecorded_s,
        )

    # ---- down ----------------------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Let no device of this machine take another job."""
        here = [each.device.uuid for each in self.queue.devices(self.settings.host)]
        who = current_account(self.settings.host).name
        self.queue.drain(here, origin=DrainOrigin.DOWN, why="this machine is going down (gpuqueue down)", by=who)

    def running_jobs(self) -> tuple[int, ...]:
        """Return the jobs that hold a device of this machine."""
        return tuple(sorted({job for each in self.queue.devices(self.settings.host) for job in each.jobs}))

    def stop_host(self) -> bool:
        """Stop the workers and the recorder; running jobs stay with their shims. Return whether any were there.

        Raises:
            GpuQueueError: they do not stop.

        """
        host = self.host_running()
        if host is None:
            return False
        host.send(signal.SIGTERM)
        if not host.wait(LEAVE_S):
            raise GpuQueueError(f"the workers (pid {host.pid}) do not stop: see {self._log}")
        self._pid_file.unlink(missing_ok=True)
        return True

    def park_jobs(self) -> str:
        """Let the jobs of this machine go on without any worker; return in words how many and for how long.

        Raises:
            GpuQueueError: it could not be arranged: the shims will end them when their grace is over.

        """
        return _worker("park")

    def left_jobs(self) -> str:
        """Return in words which jobs of this machine run without a worker, empty if none does. Needs no store."""
        return _worker("left")

    def end_left_jobs(self) -> None:
        """End the jobs of this machine that run without a worker, and wait for it. Needs no store."""
        _worker("left", "--end")

    def resume(self) -> None:
        """Let the devices of this machine take jobs again, as far as it was ``down`` that drained them."""
        here = [each.device.uuid for each in self.queue.devices(self.settings.host)]
        self.queue.resume(here, origins=[DrainOrigin.DOWN])

    def forget_devices(self) -> None:
        """Withdraw this machine's devices that hold no job: nothing is promised on them any more."""
        for each in self.queue.devices(self.settings.host):
            if not each.jobs:
                self.queue.withdraw(self.settings.host, each.device.uuid)

    def stop_store(self) -> bool:
        """Stop the embedded store; its data stays on the disk. Return whether it ran."""
        return self.store.stop() if self.settings.embedded else False


def _worker(*words: str) -> str:
    """Ask the machines' side, installed beside ours and never imported by it; return what it says.

    Raises:
        GpuQueueError: what it says is wrong.

    """
    done = subprocess.run([installed("gpuqueue-worker"), *words], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise _as_error(done.returncode, done.stderr)
    return done.stdout.strip()


def _as_error(code: int, stderr: str) -> GpuQueueError:
    lines = stderr.strip().splitlines() or ["the devices could not be found, and no reason was given"]
    text = lines[-1].removeprefix("gpuqueue-worker: ")
    return BadRequest(text) if code == BadRequest.exit_code else GpuQueueError(text)


def _last_line(path: Path) -> str:
    lines = path.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "no reason given"
