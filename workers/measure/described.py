"""Describes an external process for people: its user, its command and its age."""

from __future__ import annotations

import os
import pwd
import time
from datetime import datetime, timedelta, timezone
from functools import cache, lru_cache
from pathlib import Path

from gpuqueue.queue.lease import ExternalProcess
from gpuqueue.system.process import start_time

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def described(pid: int, held_bytes: int | None, counted_bytes: int | None = None) -> ExternalProcess:
    """Return the external process *pid*. What cannot be read is None: it has ended, or is in another pid namespace."""
    process = Path(f"/proc/{pid}")
    try:
        user = _user(process.stat().st_uid)
    except (OSError, KeyError):
        user = None
    try:
        words = (process / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
        command = b" ".join(words).decode(errors="replace")[:200] or None
        ticks = start_time(pid)
    except OSError:
        command, ticks = None, None
    return ExternalProcess(
        pid=pid,
        held_bytes=held_bytes,
        counted_bytes=counted_bytes,
        user=user,
        command=command,
        started_at=None if ticks is None else _moment(pid, ticks),
    )


@cache
def _user(uid: int) -> str:
    return pwd.getpwuid(uid).pw_name


@lru_cache(maxsize=1024)
def _moment(_pid: int, ticks: int) -> datetime:
    """Return the time of *ticks* after the boot, in whole seconds.

    It is cached by process: the clock may be adjusted, and a time that changes would be sent again and again.
    """
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / _TICKS_PER_S
    return (datetime.now(timezone.utc) - timedelta(seconds=age_s)).replace(microsecond=0)
