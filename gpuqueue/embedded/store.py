"""The embedded store: a private, durable server that gpuqueue starts on a machine without a store."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from gpuqueue.embedded import server as servers
from gpuqueue.embedded.server import environment_for, find_server
from gpuqueue.errors import GpuQueueError, StoreLoading, StoreNotReady, StoreUnreachable
from gpuqueue.lazy.imports import later
from gpuqueue.queue.absence import LAST_LINES, MAKE_ROOM
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.settings.settings import Settings
from gpuqueue.system.disk_room import Room
from gpuqueue.system.ownership import STORE_PID, process_of
from gpuqueue.system.process import DetachedProcess, ProcessIdentity, age_s, ending_of, of_ours_with
from gpuqueue.text.sanitize import in_one_line
from gpuqueue.text.units import MIB, format_bytes

if TYPE_CHECKING:
    import ctypes
    import resource
    import subprocess
    import tempfile

    from gpuqueue.queue import host_users
else:  # only scratch_store and a shared store need them
    ctypes = later("ctypes")
    host_users = later("gpuqueue.queue.host_users")
    resource = later("resource")
    subprocess = later("subprocess")
    tempfile = later("tempfile")

#: Longest time without an answer from a starting server, and for its stop, in seconds. A server that reports that it
#: is loading its data counts as answering.
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0
#: Time after which a start reports that it waits for a store that is loading, in seconds, and how. Most load in less.
SILENT_S, IS_LOADING = 1.0, "the store is still loading its data"
#: Age of a server above which a missing socket means that the socket was deleted, in seconds.
UNREACHABLE_S = 5.0
#: Size of the reserve, in bytes. It is the room for the store's log of its writes while a full disk is cleared.
RESERVE_BYTES = 64 * MIB
#: Room below which the store is not started, in bytes, and at most a twentieth of a small disk. A store that cannot
#: write ends at its first write.
ROOM_BYTES = 4 * MIB
#: Size of the file with the pid, in bytes.
PID_BYTES = 128
#: What is added to the score by which the kernel chooses a process to kill when host memory runs out. Jobs get more.
OOM_SCORE_ADJ = -500
#: Number of lines from the end of the store's log that explain its end, and the most bytes that are read for them.
MAX_LAST_LINES, LAST_BYTES = 3, 65536
#: The start of a line in the store's log, up to the mark of its level: the pid and the role, and the time.
_LOG_PREFIX = re.compile(r"^\d+:\S+ (?:\d+ \w+ \d+ [\d:.]+ [.*#-] )?")
#: What the log of a server says that ended by itself, or after a signal that it could handle.
_LAST_WORDS = re.compile(r"exiting|ready to exit|crash|bug report|assert|abort|fatal", re.IGNORECASE)
#: Most connections of a store, and the descriptors that it keeps for other files (as it does by itself).
MAX_CLIENTS, OTHER_FILES = 50_000, 32
PR_SET_PDEATHSIG = 1


def taken(lock: int) -> bool:
    """Take the lock of the store's directory unless a server holds it; return whether it was taken."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class StoreFilesDamaged(GpuQueueError):
    """The store cannot read its files, and was not started. Nothing was changed."""


class StoreDiskFull(GpuQueueError):
    """The disk of the store has no room for its writes, and the store was not started."""


class Reserve:
    """A file without content that occupies room on the disk of the store, to be released when the disk is full."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._file = directory / "reserve"

    def make(self) -> bool:
        """Make the file unless it exists or the disk would be short of room; return whether it was made.

        Raises:
            OSError: the file system cannot allocate room in advance.

        """
        if self._file.exists():
            return False
        room = Room.of(self._directory)
        if room.free_bytes - RESERVE_BYTES < max(RESERVE_BYTES, room.least_bytes(room.size_bytes)):
            return False
        fd = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(fd, 0, RESERVE_BYTES)
        except OSError:
            self._file.unlink(missing_ok=True)
            raise
        finally:
            os.close(fd)
        return True

    def release(self) -> bool:
        """Remove the file, and return whether it existed."""
        with contextlib.suppress(OSError):
            self._file.unlink()
            return True
        return False


class EmbeddedStore:
    """The server that listens on the unix socket of *settings*."""

    def __init__(self, settings: Settings) -> None:
        self._settings, self._url = settings, settings.redis_url
        self._socket = settings.socket_path
        #: Whether workers of another account use the store, too.
        self._is_shared = settings.store_socket is not None
        self._directory = settings.state_dir / "store"
        self._pid_file = settings.state_dir / STORE_PID
        self.log = settings.logs_dir / "store.log"
        self.reserve = Reserve(self._directory)

    def server(self) -> ProcessIdentity | None:
        """Return the identity of the server that was started here last, also if it is gone.

        None if there is none, if it was stopped on purpose, or if it is the server of another directory.
        """
        return process_of(self._settings.state_dir, STORE_PID)

    def has_socket(self) -> bool:
        """Return whether the server's socket is there, so that clients can reach it."""
        return self._socket.exists()

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
        server: DetachedProcess | None = None
        self._end_unreachable()
        for _ in self._until_it_serves():
            if server is None:
                server = self.launch()
            elif server.poll() is not None:
                raise self._why_not_started(server.pid)
        return server is not None

    def launch(self) -> DetachedProcess | None:
        """Start the server, and return before it serves. Return None if a server holds the directory.

        On a full disk the reserve is released first.

        Raises:
            StoreDiskFull: there is no room, also without the reserve.
            GpuQueueError: no server was found that can read the files.
            OSError: the directory cannot be used, or the server cannot be started.

        """
        lock = os.open(self._directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if not taken(lock):
                return None
            self._find_room()
            return self._spawn(lock)
        finally:
            os.close(lock)

    def _find_room(self) -> None:
        """Release the reserve if the disk is full.

        Raises:
            StoreDiskFull: there is no room, also without the reserve.

        """
        if not self.has_room():
            self.reserve.release()
        if not self.has_room():
            room = Room.of(self._directory)
            used, size = format_bytes(room.size_bytes - room.free_bytes), format_bytes(room.size_bytes)
            raise StoreDiskFull(f"the disk of {self._directory} is full: {used} of {size}: {MAKE_ROOM}")

    def has_room(self) -> bool:
        """Return whether the disk has room for the writes of the store.

        Raises:
            OSError: the directory cannot be read.

        """
        room = Room.of(self._directory)
        return room.free_bytes >= room.least_bytes(ROOM_BYTES)

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
        server = DetachedProcess(self._command(program.path), log=self.log, keep=lock, environ=environ)
        with contextlib.suppress(OSError):  # only root may do that
            Path(f"/proc/{server.pid}/oom_score_adj").write_text(str(OOM_SCORE_ADJ), encoding="ascii")
        identity = ProcessIdentity.of(server.pid)
        if identity is not None:  # else it has ended already
            try:
                self._note_pid(identity)
            except OSError:  # nobody would know that it is there
                os.kill(server.pid, signal.SIGKILL)
                server.wait()
                raise
        return server

    def _note_pid(self, identity: ProcessIdentity) -> None:
        """Write the pid file in place: on a full disk it has its block, and an empty one looks like a stop."""
        fd = os.open(self._pid_file, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.pwrite(fd, f"{identity}\n".encode("ascii").ljust(PID_BYTES), 0)
        finally:
            os.close(fd)

    def _why_not_started(self, pid: int) -> GpuQueueError:
        """Return why the server *pid* ended before it served."""
        lines = self._last_lines(pid)
        return self._damage(lines) or GpuQueueError(
            f"the store did not start: {lines[-1] if lines else 'no reason given'} ({self.log})"
        )

    def why_ended(self, pid: int, code: int | None) -> GpuQueueError:
        """Return how the server *pid* ended, with the last lines of its log.

        *code* is its exit code, negative for a signal, or None if the server was the child of another process.
        """
        lines = self._last_lines(pid)
        if code is not None:
            how = ending_of(code)
        elif any(map(_LAST_WORDS.search, lines)):
            how = "ended"
        else:  # every other end leaves a line, and only the parent learns the exit code
            how = "was killed (its log has no last words; dmesg says if the kernel did it)"
        end = f"{LAST_LINES}{' | '.join(lines)}" if lines else ""
        return self._damage(lines) or GpuQueueError(f"the store (pid {pid}) {how}{end}")

    def _damage(self, lines: list[str]) -> StoreFilesDamaged | None:
        """Return the error for damaged files, if the *lines* of the log say so.

        The server's own advice to repair a file would cut off the jobs behind the damage, so it is not passed on.
        """
        if not any("check-aof" in line for line in lines):
            return None
        return StoreFilesDamaged(
            f"the store cannot read its files in {self._directory} and changed nothing: copy that directory before "
            f"you repair anything, because check-aof --fix deletes all that follows the damage ({self.log})"
        )

    def _last_lines(self, pid: int) -> list[str]:
        """Return the last lines that the server *pid* wrote to the log, without their times."""
        try:
            with self.log.open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - LAST_BYTES))
                lines = file.read().decode(errors="replace").splitlines()
        except OSError:
            return []
        # Lines without a pid come from the program's start, such as a wrong option.
        own = [line for line in lines if line.strip() and (line.startswith(f"{pid}:") or not _LOG_PREFIX.match(line))]
        return [in_one_line(_LOG_PREFIX.sub("", line)) for line in own[-MAX_LAST_LINES:]]

    def _command(self, program: Path) -> list[str]:
        # appendfsync always: each submit is on disk before its id is printed. It costs 0.2 ms.
        # noeviction: the server must refuse writes instead of deleting jobs when its memory runs out.
        return [
            str(program),
            *("--port", "0"),
            *("--unixsocket", str(self._socket)),
            # The directory of a shared socket says who may reach it.
            *("--unixsocketperm", "777" if self._is_shared else "700"),
            *(self._users() if self._is_shared else ()),
            *("--dir", str(self._directory)),
            *("--appendonly", "yes"),
            *("--appendfsync", "always"),
            *("--save", ""),
            *("--maxmemory-policy", "noeviction"),
            # The order of users and shapes changes with every claim. In a ziplist each change reads half of the list.
            # This is the option's old name, which newer servers accept too.
            *("--zset-max-ziplist-entries", "32"),
            *("--maxclients", str(_max_clients())),
            *("--daemonize", "no"),
        ]

    def _users(self) -> Iterator[str]:
        """Yield the options for the users of a shared store: the workers of this machine, and the service."""
        digest = host_users.digest_of(host_users.make_secret(self._directory))
        yield from ("--user", "default", "on", "nopass", *host_users.SHARED_RULE)
        yield from ("--user", host_users.SERVICE_USER, "on", digest, *host_users.SERVICE_RULE)

    def _until_it_serves(self) -> Iterator[None]:
        """Yield between two polls until a server answers.

        There is no time limit while it loads its data, because the next start would wait for the same. After
        ``SILENT_S`` that is reported.

        Raises:
            GpuQueueError: no server answers in time.

        """
        began_s = time.monotonic()
        deadline = began_s + START_TIMEOUT_S
        pause_s = 0.005
        is_reported = False
        while time.monotonic() < deadline:
            try:
                if self.running():
                    return
            except StoreLoading:
                deadline = time.monotonic() + START_TIMEOUT_S
                if not is_reported and time.monotonic() - began_s >= SILENT_S:
                    sys.stderr.write(f"gpuqueue: {IS_LOADING}. Waiting for it ({self.log})\n")
                    is_reported = True
            yield
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, 0.1)
        raise GpuQueueError(f"the store does not answer within {START_TIMEOUT_S:.0f} s: see {self.log}")

    def stop(self) -> bool:
        """Stop the server that :meth:`start` started; return whether it ran. Its data stays on disk.

        The file with its pid is removed first, so that nobody takes this for a death and starts it again.

        Raises:
            GpuQueueError: the server does not stop.

        """
        identity = self.server()
        self._pid_file.unlink(missing_ok=True)
        if identity is None or not identity.send(signal.SIGTERM):
            return False
        is_gone = False
        try:
            is_gone = identity.wait(STOP_TIMEOUT_S)
        finally:
            if not is_gone:  # the next attempt must find it
                self._note_pid(identity)
        if not is_gone:
            raise GpuQueueError(f"the store (pid {identity.pid}) does not stop: see {self.log}")
        return True


def _max_clients() -> int:
    """Return how many connections the store may have: as many as its files permit. A worker has nine."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_CLIENTS if most == resource.RLIM_INFINITY else max(1, min(MAX_CLIENTS, most - OTHER_FILES))


@contextlib.contextmanager
def scratch_store() -> Iterator[str]:
    """Start a store, yield its URL, and end the store. The kernel kills the store if this thread dies.

    Raises:
        GpuQueueError: no server was found, or the server did not start.

    """
    libc = ctypes.CDLL(None)
    directory = Path(tempfile.mkdtemp(prefix="gpuqueue-scratch-"))  # short: the length of a socket's path is limited
    where = ("--port", "0", "--unixsocket", str(directory / "s"), "--unixsocketperm", "700", "--dir", str(directory))
    try:
        server = subprocess.Popen(
            [str(find_server().path), *where, "--save", "", "--appendonly", "no", "--maxmemory-policy", "noeviction"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C must not reach the server, which is ended below
            preexec_fn=lambda: libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0),
        )
        try:
            url = f"unix://{directory / 's'}"
            _wait_for(url, server)
            yield url
        finally:
            server.kill()  # no data to save
            server.wait()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _wait_for(url: str, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    queue = JobQueue(url)
    try:
        while server.poll() is None and time.monotonic() < deadline:
            with contextlib.suppress(StoreUnreachable, StoreLoading):
                queue.epoch()
                return
            time.sleep(0.005)
    finally:
        queue.close()
    raise GpuQueueError("the temporary store did not start: is there room in the temporary directory?")
