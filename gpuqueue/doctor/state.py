"""Checks of the state directory: its owner, its modes, its file system and its free space."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator
from functools import wraps
from pathlib import Path

from gpuqueue.doctor.site import Site
from gpuqueue.model.finding import Check, Finding, Findings, note, ok, problem, warning
from gpuqueue.settings.settings import Settings
from gpuqueue.system.account import name_of
from gpuqueue.system.disk_room import USE_A_LOCAL_DISK, filesystem_of, network_trouble
from gpuqueue.system.logs import LOGS
from gpuqueue.system.ownership import IN_A_COPY, original_of
from gpuqueue.system.timed_call import CallFailed
from gpuqueue.text.units import GIB, MIB, format_bytes

#: Free disk space below which writes will fail soon, and below which they fail now.
LOW_BYTES = GIB
FULL_BYTES = 100 * MIB
#: Number of free inodes that is low. Each run needs about ten files.
LOW_FILES = 10_000
#: Size of gpuqueue's own logs above which some message must be repeating.
LARGE_LOGS_BYTES = GIB
#: Size of the jobs' logs above which the report suggests a limit.
LARGE_RUNS_BYTES = 20 * GIB
#: Time limit for adding up the jobs' logs, in seconds. A site with a million runs gets a lower bound.
ADD_UP_S = 0.5


def away(settings: Settings, why: CallFailed) -> Finding:
    """Return a finding on why the directory cannot be checked."""
    return problem(f"{settings.state_dir} cannot be checked: {why}", "is its disk there, and may this account read it?")


def directory(site: Site) -> Findings:
    """Check that the directory exists and belongs to this account."""
    path = site.settings.state_dir
    if not os.path.lexists(path):
        return note(f"{path} is not there yet", "gpuqueue up makes it, on a machine that is to run jobs")
    if not path.is_dir():
        return problem(f"{path} is no directory", "move it away, or set GPUQUEUE_STATE_DIR to another place")
    uid = path.stat().st_uid
    if uid == os.getuid():
        return ok(f"{path}")
    owner = name_of(uid)
    seen = f"{path} belongs to {owner}, and you are {name_of(os.getuid())}"
    if os.getuid() == 0:
        return note(seen, f"root would own what it starts here: use sudo -u {owner}")
    return warning(seen, f"use sudo -u {owner}, or set GPUQUEUE_STATE_DIR to a place of your own")


def original(site: Site) -> Findings:
    """Check that the directory is no copy of another one, whose jobs would run a second time."""
    path = original_of(site.settings.state_dir)
    if path is None:
        return ok("it is no copy")
    return warning(f"it is a copy of {path}, and gpuqueue up does not start it", IN_A_COPY)


def modes(site: Site) -> Findings:
    """Check that other users can neither read nor replace the jobs' environments and logs."""
    path = site.settings.state_dir
    about = path.stat()
    mode = stat.S_IMODE(about.st_mode)
    if mode & 0o022:
        seen = f"others may write into it ({mode:04o}), and so run programs as {name_of(about.st_uid)}"
        return problem(seen, f"chmod go-w {path}")
    readable = list(_readable(path)) if mode & 0o055 else []
    if readable:
        seen = f"others may read in it ({mode:04o}): {', '.join(readable)}"
        return warning(seen, f"chmod 700 {path}: the environments of jobs, and in them secrets, lie there")
    return ok(f"{mode:04o}")


def _readable(path: Path) -> Iterator[str]:
    try:
        entries = sorted(os.scandir(path), key=lambda each: each.name)
    except PermissionError:
        return  # another account's private directory, as intended
    for entry in entries:
        mode = stat.S_IMODE(entry.stat(follow_symlinks=False).st_mode)
        if mode & 0o044 and not entry.is_symlink():
            yield f"{entry.name} ({mode:04o})"


def writing(site: Site) -> Findings:
    """Check that the directory is writable."""
    path = site.settings.state_dir
    if os.access(path, os.W_OK | os.X_OK) and not os.statvfs(path).f_flag & os.ST_RDONLY:
        return ok("it can be written")
    return problem("it cannot be written", f"mount it for writing, or give this account the right to: ls -ld {path}")


def disk(site: Site) -> Findings:
    """Check the free space and the free inodes on the directory's disk."""
    disk = os.statvfs(site.settings.state_dir)
    bytes_left = disk.f_bavail * disk.f_frsize
    files_left = disk.f_favail if disk.f_files else None  # some file systems create inodes on demand
    free = f"{format_bytes(bytes_left)} free"
    remedy = f"free some space on the disk of {site.settings.state_dir}: jobs' logs and the store's data go there"
    if bytes_left < FULL_BYTES or files_left == 0:
        return problem(f"{free}, but no inode" if files_left == 0 else free, remedy)
    if bytes_left < LOW_BYTES:
        return warning(free, remedy)
    if files_left is not None and files_left < LOW_FILES:
        return warning(f"{free}, but only {files_left} inodes", remedy)
    return ok(free)


def room(path: Path, *, full: str, where: str = "") -> Findings:
    """Check the free space on the disk of *path*, another one. *full* is the consequence of a full disk."""
    disk = os.statvfs(path)
    bytes_left = disk.f_bavail * disk.f_frsize
    seen = f"{format_bytes(bytes_left)} free{where}"
    if bytes_left < FULL_BYTES:
        return problem(seen, f"free some space: {full}")
    if bytes_left < LOW_BYTES:
        return warning(seen, "free some space")
    return ok(seen)


def filesystem(site: Site) -> Findings:
    """Check that the directory is on a local disk."""
    kind = filesystem_of(site.settings.state_dir) or "of unknown kind"
    trouble = network_trouble(kind)
    return ok(kind) if trouble is None else warning(trouble, USE_A_LOCAL_DISK)


def logs(site: Site) -> Findings:
    """Check how much space the logs take."""
    directory = site.settings.logs_dir
    own_bytes = sum(size for _, size in _files(directory))
    run_bytes, is_whole = _run_logs(site.settings.runs_dir)
    seen = f"our own {format_bytes(own_bytes)}, the jobs' {'' if is_whole else 'more than '}{format_bytes(run_bytes)}"
    if own_bytes > LARGE_LOGS_BYTES:
        return warning(seen, f"look into {directory} the message that repeats; truncate -s 0 empties a file")
    if run_bytes > LARGE_RUNS_BYTES:
        return note(seen, "GPUQUEUE_KEEP_LOGS deletes them sooner, GPUQUEUE_LOG_LIMIT keeps each smaller")
    return ok(seen)


def _files(directory: Path) -> Iterator[tuple[str, int]]:
    try:
        entries = list(os.scandir(directory))
    except OSError:
        return
    for entry in entries:
        if entry.is_file(follow_symlinks=False):
            yield entry.name, entry.stat(follow_symlinks=False).st_size


def _run_logs(runs: Path) -> tuple[int, bool]:
    """Return the total bytes of the jobs' logs, and whether all of them were added up in time."""
    deadline_s = time.monotonic() + ADD_UP_S
    total_bytes = 0
    for job in _directories(runs):
        for run in _directories(Path(job)):
            total_bytes += sum(size for name, size in _files(Path(run)) if name in LOGS)
        if time.monotonic() > deadline_s:
            return total_bytes, False
    return total_bytes, True


def _directories(path: Path) -> list[str]:
    try:
        return [entry.path for entry in os.scandir(path) if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []


def _of_directory(check: Check[Site]) -> Check[Site]:
    """Return *check* without a result if there is no directory."""

    @wraps(check)
    def of_site(site: Site) -> Findings:
        path = site.settings.state_dir
        return check(site) if os.path.lexists(path) and path.is_dir() else ()

    return of_site


CHECKS = (directory, *map(_of_directory, (original, modes, writing, disk, filesystem, logs)))
