"""The embedded store: a private, durable server that gpuqueue starts on a machine without a store."""

from __future__ import annotations

import fcntl
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from gpuqueue.embedded import server as servers
from gpuqueue.embedded.allocator import environment_for
from gpuqueue.errors import GpuQueueError, StoreLoading, StoreNotReady, StoreUnreachable
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.settings.settings import Settings
from gpuqueue.system.process import DetachedProcess, ProcessIdentity, age_s, of_ours_with

#: Longest time without an answer from a starting server, and for its stop, in seconds. A server that reports that it
#: is loading its data counts as answering.
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0
#: Age of a server above which a missing socket means that the socket was deleted, in seconds.
UNREACHABLE_S = 5.0
#: The access rule of a store that other accounts use: all that gpuqueue needs, and no administration of the server. The
#: documentation has the same for a store of one's own (docs/explanation/identity.md).
SHARED_RULE = (
    *("~{gq}:*", "&{gq}:*", "&{gq}:celery:/0.celery.pidbox", "&{gq}:celery:/0.celeryev/*"),
    *("+@all", "-@admin", "-@dangerous", "+info"),
)


def taken(lock: int) -> bool:
    """Take the lock of the store's directory unless a server holds it; return whether it was taken."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class EmbeddedStore:
    """The server that listens on the unix socket of *settings*."""

    def __init__(self, settings: Settings) -> None:
        self._url = settings.redis_url
        self._socket = settings.socket_path
        #: Whether workers of another account use the store, too.
        self._is_shared = settings.store_socket is not None
        self._directory = settings.state_dir / "store"
        self._pid_file = self._directory / "pid"
        self._log = settings.logs_dir / "store.log"

    def running(self) -> bool:
        """Return whether a server answers on the socket.

        Raises:
            StoreLoading: a server answers, and is still loading its data.

        """
        queue = JobQueue(self._url)
        try:
            queue.epoch()
        except StoreLoading:
            raise
        except StoreNotReady:
            return True
        except StoreUnreachable:
            return False
        finally:
            queue.close()
        return True

    def start(self) -> bool:
        """Start the server unless it runs; return whether it was started now.

        The server holds a lock on its directory while it lives. If a server is still loading its data or hangs, this
        method waits and never starts a second one, because two servers on the same files would each acknowledge jobs
        that the other does not have. A killed server holds its lock until its last thread is gone, so the lock is
        tried repeatedly.

        Raises:
            GpuQueueError: no server was found that can read the files, or the server did not start.

        """
        for directory in (self._directory, self._socket.parent):
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not self._is_shared:
            self._socket.parent.chmod(0o700)
        lock = os.open(self._directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        server: DetachedProcess | None = None
        self._end_unreachable()
        try:
            for _ in self._until_it_serves():
                if server is None and taken(lock):
                    server = self._spawn(lock)
                elif server is not None and server.poll() is not None:
                    raise GpuQueueError(self._why_not_started())
        finally:
            os.close(lock)
        return server is not None

    def _end_unreachable(self) -> None:
        """End a server of this account whose socket was deleted, perhaps together with its data.

        Such a server would continue to serve its open connections beside the new server: two stores for the same
        jobs. The new server reads the data that is still on disk. Other data is rebuilt as after any loss of data.

        Raises:
            GpuQueueError: the server does not end.

        """
        if self._socket.exists():
            return
        for pid in of_ours_with(f"unixsocket:{self._socket}"):
            if (age_s(pid) or 0.0) < UNREACHABLE_S:
                continue  # it is still starting
            server = ProcessIdentity.of(pid)
            if server is not None and server.send(signal.SIGTERM) and not server.wait(STOP_TIMEOUT_S):
                raise GpuQueueError(f"a store whose socket was deleted (pid {pid}) does not end: kill -9 {pid}")

    def _spawn(self, lock: int) -> DetachedProcess:
        """Start a server that can read the files of the directory, and record it as their writer."""
        program = servers.server_for(self._directory)
        servers.write_record(self._directory, program)
        environ = environment_for(program.path, os.environ)
        server = DetachedProcess(self._command(program.path), log=self._log, keep=lock, environ=environ)
        self._pid_file.write_text(f"{ProcessIdentity.of(server.pid)}\n", encoding="ascii")
        return server

    def _why_not_started(self) -> str:
        """Return in one line why the server ended. Its own advice to repair a file would cut off the jobs behind it."""
        lines = self._log.read_text(errors="replace").strip().splitlines()
        last = lines[-1] if lines else "no reason given"
        if "check-aof" in last:
            return (
                f"the store cannot read its files in {self._directory} and changed nothing: copy that directory before "
                f"you repair anything, because check-aof --fix deletes all that follows the damage ({self._log})"
            )
        return f"the store did not start: {last} ({self._log})"

    def _command(self, program: Path) -> list[str]:
        # appendfsync always: each submit is on disk before its id is printed. It costs 0.2 ms.
        # noeviction: the server must refuse writes instead of deleting jobs when its memory runs out.
        return [
            str(program),
            *("--port", "0"),
            *("--unixsocket", str(self._socket)),
            # The directory of a shared socket says who may reach it.
            *("--unixsocketperm", "777" if self._is_shared else "700"),
            *(("--user", "default", "on", "nopass", *SHARED_RULE) if self._is_shared else ()),
            *("--dir", str(self._directory)),
            *("--appendonly", "yes"),
            *("--appendfsync", "always"),
            *("--save", ""),
            *("--maxmemory-policy", "noeviction"),
            # The order of users and shapes changes with every claim. In a ziplist each change reads half of the list.
            # This is the option's old name, which newer servers accept too.
            *("--zset-max-ziplist-entries", "32"),
            *("--daemonize", "no"),
        ]

    def _until_it_serves(self) -> Iterator[None]:
        """Yield between two polls until a server answers. There is no time limit while it loads its data.

        Raises:
            GpuQueueError: no server answers in time.

        """
        deadline = time.monotonic() + START_TIMEOUT_S
        pause_s = 0.005
        while time.monotonic() < deadline:
            try:
                if self.running():
                    return
            except StoreLoading:
                deadline = time.monotonic() + START_TIMEOUT_S
            yield
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, 0.1)
        raise GpuQueueError(f"the store does not answer within {START_TIMEOUT_S:.0f} s: see {self._log}")

    def stop(self) -> bool:
        """Stop the server that :meth:`start` started; return whether it ran. Its data stays on disk.

        Raises:
            GpuQueueError: the server does not stop.

        """
        try:
            identity = ProcessIdentity.parse(self._pid_file.read_text(encoding="ascii"))
        except OSError:
            return False
        if identity is None or not identity.send(signal.SIGTERM):
            return False
        if not identity.wait(STOP_TIMEOUT_S):
            raise GpuQueueError(f"the store (pid {identity.pid}) does not stop: see {self._log}")
        self._pid_file.unlink(missing_ok=True)
        return True
