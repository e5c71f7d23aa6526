"""Keeps what the relays of other hosts deliver: the logs and the results of their runs.

:mod:`gpuqueue.system.delivered_layout` describes the directory. No link is followed below its top. The readers are
:mod:`gpuqueue.client.logs` and :mod:`gpuqueue.service.routes.files`; the recorder deletes what is old.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from collections.abc import Iterator

from gpuqueue.errors import BadRequest, Refused, Unreachable
from gpuqueue.model.relay import DeliveredFile
from gpuqueue.service.relay_requests import HostRun
from gpuqueue.service.responses import TooLarge
from gpuqueue.settings.settings import Settings
from gpuqueue.system.delivered_layout import COMPLETE, FAILED, PARTIAL, REMOVED, RESULTS, TOKEN, USER
from gpuqueue.system.disk_room import LEAST_FREE, has_room
from gpuqueue.system.logs import MOST_TIMES_BYTES
from gpuqueue.text.sanitize import brief
from gpuqueue.text.units import format_bytes

#: Bytes of a block in ``st_blocks`` of stat(2), on every file system.
_BLOCK_BYTES = 512
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_LOGS = frozenset({DeliveredFile.LOG, DeliveredFile.STDERR})


class OtherOffset(Refused):
    """The part of a log begins before the end of what was delivered, or the log is whole. ``next`` is that end."""

    def __init__(self, next_offset: int) -> None:
        super().__init__(f"the log was delivered up to byte {next_offset}: go on there")
        self.next = next_offset


class Delivered:
    """The deliveries to one service. Threads and processes may share the directory."""

    def __init__(self, settings: Settings) -> None:
        self._top = settings.delivered_dir
        self._log_limit_bytes, self._results_limit_bytes = settings.log_limit_bytes, settings.results_limit_bytes

    def begin(self, run: HostRun, user: str) -> None:
        """Make the log of *run* if it is missing, so that readers find an empty one. *user* is the job's user."""
        with _storing(), self._folder(run, user) as folder, _file(folder, DeliveredFile.LOG.value):
            pass

    def add(
        self, run: HostRun, user: str, file: DeliveredFile, offset: int, content: bytes, *, from_start: bool = False
    ) -> int:
        """Write *content* at *offset* of a log and return the offset behind it. With *from_start* the log begins anew.

        An *offset* behind the end of what was delivered makes a hole: the host's log has one there.

        Raises:
            OtherOffset: *offset* is before the end, or the log is whole already.
            TooLarge: the log would need more of the disk than the setting ``log_limit`` allows.
            Unreachable: the disk is full or broken.

        """
        with _storing(), self._folder(run, user) as folder, _file(folder, file.value) as fd:
            size = os.fstat(fd).st_size
            if _is_there(folder, COMPLETE) and (content or from_start):
                raise OtherOffset(size)
            if from_start:
                os.ftruncate(fd, 0)
            elif offset < size:
                raise OtherOffset(size)
            self._check_log(fd, file, len(content))
            _write(fd, content, offset)
            return offset + len(content)

    def complete(self, run: HostRun, user: str) -> None:
        """Note that the logs of *run* are whole. They survive a power cut from now on."""
        with _storing(), self._folder(run, user) as folder:
            found = [each.value for each in DeliveredFile if each is DeliveredFile.LOG or _is_there(folder, each.value)]
            for name in (*found, COMPLETE):
                with _file(folder, name) as fd:
                    os.fsync(fd)
            os.fsync(folder)

    def fail_results(self, run: HostRun, user: str, reason: bytes) -> None:
        """Keep the *reason* why the results of *run* could not be kept."""
        with _storing(), self._folder(run, user) as folder, _file(folder, FAILED) as fd:
            os.ftruncate(fd, 0)
            _write(fd, reason, 0)
            os.fsync(fd)
            os.fsync(folder)

    @contextlib.contextmanager
    def results(self, run: HostRun, user: str) -> Iterator[ResultsFile]:
        """Open the file for the results of *run*. Unless they are kept with ``commit``, nothing of them stays.

        Raises:
            Refused: another request sends results of the same run.

        """
        with _storing(), self._folder(run, user) as shared:
            folder = os.open(".", _FOLDER, dir_fd=shared)  # without the lock, which ends with this block
        try:
            results = ResultsFile(folder, self._results_limit_bytes)
            try:
                yield results
            finally:
                results.close()
        finally:
            os.close(folder)

    def _check_log(self, fd: int, file: DeliveredFile, more_bytes: int) -> None:
        limit_bytes = self._log_limit_bytes if file in _LOGS else MOST_TIMES_BYTES
        if limit_bytes is not None and os.fstat(fd).st_blocks * _BLOCK_BYTES + more_bytes > limit_bytes:
            raise TooLarge(
                f"the log would need more than {format_bytes(limit_bytes)} here (setting log_limit of the service): "
                "send what the host has kept of it from the start"
            )
        _check_room(fd, more_bytes)

    @contextlib.contextmanager
    def _folder(self, run: HostRun, user: str) -> Iterator[int]:
        """Open the directory of *run*, and make it if it is missing. Nobody else writes there meanwhile."""
        if not TOKEN.fullmatch(run.token):
            raise BadRequest(f"{brief(run.token)} is no token of a run")
        self._top.mkdir(mode=0o700, exist_ok=True)
        with contextlib.ExitStack() as stack:
            folder = os.open(self._top, _FOLDER & ~os.O_NOFOLLOW)  # the administrator may link it
            stack.callback(os.close, folder)
            for name in (str(int(run.job_id)), run.token):
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, 0o700, dir_fd=folder)
                folder = os.open(name, _FOLDER, dir_fd=folder)
                stack.callback(os.close, folder)
            fcntl.flock(folder, fcntl.LOCK_EX)
            with contextlib.suppress(FileExistsError):
                os.symlink(user or "unknown", USER, dir_fd=folder)
            yield folder


class ResultsFile:
    """The results of a run while they arrive. They are kept by ``commit``; without it nothing of them stays."""

    def __init__(self, folder: int, limit_bytes: int | None) -> None:
        """Begin with an empty file in the open directory *folder*.

        Raises:
            Refused: another request sends results of the same run.

        """
        self._folder, self._limit_bytes = folder, limit_bytes
        self._size_bytes = 0
        self._is_kept = False
        with _storing():
            self._fd = _regular(folder, PARTIAL)
        if not _is_alone(folder, self._fd):
            os.close(self._fd)
            raise Refused("the results of this run are being received already: send them again later")
        os.ftruncate(self._fd, 0)

    def check(self, more_bytes: int) -> None:
        """Check that *more_bytes* may come.

        Raises:
            TooLarge: the results are above the limit.
            Unreachable: the disk would be too full.

        """
        if self._limit_bytes is not None and self._size_bytes + more_bytes > self._limit_bytes:
            raise TooLarge(
                f"the results have more than {format_bytes(self._limit_bytes)} (setting results_limit of the service)"
            )
        _check_room(self._fd, more_bytes)

    def write(self, content: bytes) -> None:
        """Add *content*. Raises what :meth:`check` does."""
        self.check(len(content))
        with _storing():
            _write(self._fd, content, self._size_bytes)
        self._size_bytes += len(content)

    def commit(self) -> None:
        """Keep the results: they are whole, and survive a power cut from now on."""
        with _storing():
            os.fsync(self._fd)
            os.rename(PARTIAL, RESULTS, src_dir_fd=self._folder, dst_dir_fd=self._folder)
            for name in (FAILED, REMOVED):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=self._folder)
            os.fsync(self._folder)
        self._is_kept = True

    def close(self) -> None:
        """Remove what has arrived, unless it was kept."""
        if not self._is_kept:
            with contextlib.suppress(OSError):
                os.unlink(PARTIAL, dir_fd=self._folder)
        os.close(self._fd)


def _is_alone(folder: int, fd: int) -> bool:
    """Lock the open file of partial results; return False if another request has it, or has just kept it."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(fd), os.stat(PARTIAL, dir_fd=folder, follow_symlinks=False))
    except (BlockingIOError, FileNotFoundError):
        return False


@contextlib.contextmanager
def _storing() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise Unreachable(f"the service cannot store what the host delivers: {error.strerror or error}") from error


@contextlib.contextmanager
def _file(folder: int, name: str) -> Iterator[int]:
    fd = _regular(folder, name)
    try:
        yield fd
    finally:
        os.close(fd)


def _regular(folder: int, name: str) -> int:
    """Open the file *name*, and make it if it is missing.

    Raises:
        Refused: there is something else than a file of the service.

    """
    fd = os.open(name, _FILE, 0o600, dir_fd=folder)
    about = os.fstat(fd)
    if stat.S_ISREG(about.st_mode) and about.st_uid == os.geteuid() and about.st_nlink == 1:
        return fd
    os.close(fd)
    raise Refused(f"{name} of this run is no file of the service: see the directory of deliveries")


def _is_there(folder: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _write(fd: int, content: bytes, offset: int) -> None:
    rest = memoryview(content)
    while rest:
        written = os.pwrite(fd, rest, offset)
        rest, offset = rest[written:], offset + written


def _check_room(fd: int, more_bytes: int) -> None:
    """Check that the disk has room.

    Raises:
        Unreachable: too little of it would stay free.

    """
    if not has_room(fd, more_bytes):
        raise Unreachable(
            f"the disk of the service is more than {1 - LEAST_FREE:.0%} full, so it takes no logs and results of other "
            "hosts: its administrator must make room"
        )
