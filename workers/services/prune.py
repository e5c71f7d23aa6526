"""Deletes the logs of runs that ended long ago: once an hour, slowly, one worker of a host at a time."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import threading
from collections.abc import Iterator
from datetime import datetime

from gpuqueue.clock import Clock
from gpuqueue.settings.settings import Settings
from gpuqueue.system.logs import LOGS, TIMES

log = logging.getLogger(__name__)

#: Time between two rounds, in seconds.
ROUND_S = 3600.0
#: A round in which the wall clock went by so much more or less than the time that really passed is left out, in
#: seconds: a clock that was set a year ahead must not cost every log.
JUMP_S = 300.0
#: Pause after each deleted log, in seconds: there may be very many of them, and jobs want the disk as well.
PACE_S = 0.01

#: What the shim has made: the logs, and when they were how long.
_LOGS = re.compile(rf"({'|'.join(LOGS)})({re.escape(TIMES)})?")
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Pruner:
    """Prunes the run directories of one host. Each worker has one; a lock lets one at a time do it."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._last: tuple[datetime, float] | None = None

    def loop(self, stopping: threading.Event) -> None:
        """Prune until *stopping* is set; the first time after one round of a clock that can be trusted."""
        self.round(stopping)
        while not stopping.wait(ROUND_S):
            self.round(stopping)

    def round(self, stopping: threading.Event) -> int:
        """Delete what is due, and return how many logs that was."""
        keep_s, now = self._settings.keep_logs_s, self._clock.now()
        if not self._clock_is_steady(now) or keep_s is None:
            return 0
        with self._alone() as alone:
            found = _delete(self._settings.runs_dir, now.timestamp() - keep_s, stopping) if alone else 0
        if found:
            log.info("%d logs of runs that ended more than %.0f s ago were deleted", found, keep_s)
        return found

    def _clock_is_steady(self, now: datetime) -> bool:
        """Return whether the wall clock has gone since the last round as time has."""
        before, self._last = self._last, (now, self._clock.monotonic_s())
        if before is None:
            return False
        return abs((now - before[0]).total_seconds() - (self._last[1] - before[1])) < JUMP_S

    @contextlib.contextmanager
    def _alone(self) -> Iterator[bool]:
        fd = os.open(self._settings.state_dir / "prune.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield True
        except BlockingIOError:
            yield False
        finally:
            os.close(fd)


def _delete(runs: os.PathLike[str], before_s: float, stopping: threading.Event) -> int:
    """Delete the logs below *runs* that nobody has touched since *before_s*, seconds since 1970; return how many.

    Every step goes by a directory that is held open, and none through a link: what lies elsewhere stays.
    """
    found = 0
    with contextlib.suppress(FileNotFoundError), _opened(runs, None) as top:
        for name in sorted(each for each in _names(top) if each.isdigit()):
            with contextlib.suppress(OSError), _opened(name, top) as job:  # a link, or gone: no directory of ours
                untouched = os.fstat(job).st_mtime < before_s
                for token in _names(job):
                    if _delete_one(job, token, before_s):
                        found += 1
                        if stopping.wait(PACE_S):
                            return found
                if untouched:
                    os.rmdir(name, dir_fd=top)  # refused by the kernel unless it is empty
    return found


def _delete_one(job: int, token: str, before_s: float) -> bool:
    """Delete the log of one run, and its directory if the job left nothing there; return whether there was a log."""
    gone = False
    with contextlib.suppress(OSError), _opened(token, job) as run:
        names = _names(run)
        if "claim" in names or os.fstat(run).st_mtime >= before_s:  # not settled, or not for long
            return False
        if "log" in names and os.stat("log", dir_fd=run, follow_symlinks=False).st_mtime < before_s:
            for name in names:
                if _LOGS.fullmatch(name):
                    os.unlink(name, dir_fd=run)
            gone = True
        os.rmdir(token, dir_fd=job)
    return gone


def _names(folder: int) -> list[str]:
    return os.listdir(folder)  # pathlib knows no open directories


@contextlib.contextmanager
def _opened(name: str | os.PathLike[str], parent: int | None) -> Iterator[int]:
    """Hold a directory open; never one that a link leads to, but for the topmost, which is the administrator's."""
    fd = os.open(name, _FOLDER if parent is not None else _FOLDER & ~os.O_NOFOLLOW, dir_fd=parent)
    try:
        yield fd
    finally:
        os.close(fd)
