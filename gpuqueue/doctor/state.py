"""Checks of the state directory: its owner, its modes, its file system and its free space."""

from __future__ import annotations

import os
import pwd
import re
import stat
import time
from collections.abc import Iterator
from functools import wraps
from pathlib import Path

from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.finding import Check, Findings, note, ok, problem, warning
from gpuqueue.settings.settings import Settings
from gpuqueue.system.logs import LOGS
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
#: Network file systems. Locks may not work on them, sockets never do, and an absent server hangs every access.
NETWORK = re.compile(r"nfs|cifs|smb|afs|ceph|lustre|gpfs|beegfs|glusterfs|sshfs|9p")


@dataclass(frozen=True, kw_only=True, slots=True)
class StateFacts:
    """Facts about the state directory. Only ``path`` is set if the path is absent or not a directory."""

    path: Path
    #: ``absent``, ``no directory`` or ``directory``.
    kind: str
    owner: int = 0
    mode: int = 0
    #: Entries that other users may read, with their modes.
    readable: tuple[str, ...] = ()
    writable: bool = True
    filesystem: str | None = None
    free_bytes: int | None = None
    free_files: int | None = None
    #: Size of gpuqueue's own logs and of the jobs' logs. The second is a lower bound if ``added_up`` is False.
    log_bytes: int = 0
    run_log_bytes: int = 0
    added_up: bool = True


# ---- gathering facts -------------------------------------------------------------------------------------------------


def state_facts(settings: Settings) -> StateFacts:
    """Return the facts about the state directory."""
    path = settings.state_dir
    if not os.path.lexists(path):
        return StateFacts(path=path, kind="absent")
    if not path.is_dir():
        return StateFacts(path=path, kind="no directory")
    about, disk = path.stat(), os.statvfs(path)
    run_log_bytes, added_up = _run_logs(settings.runs_dir)
    return StateFacts(
        path=path,
        kind="directory",
        owner=about.st_uid,
        mode=stat.S_IMODE(about.st_mode),
        readable=tuple(_readable(path)),
        writable=os.access(path, os.W_OK | os.X_OK) and not disk.f_flag & os.ST_RDONLY,
        filesystem=filesystem_of(path),
        free_bytes=disk.f_bavail * disk.f_frsize,
        free_files=disk.f_favail if disk.f_files else None,  # some file systems create inodes on demand
        log_bytes=sum(size for _, size in _files(settings.logs_dir)),
        run_log_bytes=run_log_bytes,
        added_up=added_up,
    )


def free_bytes(path: Path) -> int:
    """Return the bytes that this account may still use on the disk of *path*."""
    disk = os.statvfs(path)
    return disk.f_bavail * disk.f_frsize


def _readable(path: Path) -> Iterator[str]:
    try:
        entries = sorted(os.scandir(path), key=lambda each: each.name)
    except PermissionError:
        return  # another account's private directory, as intended
    for entry in entries:
        mode = stat.S_IMODE(entry.stat(follow_symlinks=False).st_mode)
        if mode & 0o044 and not entry.is_symlink():
            yield f"{entry.name} ({mode:04o})"


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


def filesystem_of(path: Path, mounts: Path = Path("/proc/self/mountinfo")) -> str | None:
    """Return the type of the file system of *path*, from the kernel's mount table (proc(5)), or None if unknown."""
    try:
        lines = mounts.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return None
    real = path.resolve()
    best: tuple[int, str] | None = None
    for line in lines:
        fields, _, rest = line.partition(" - ")
        point = Path(re.sub(r"\\(\d{3})", lambda octal: chr(int(octal[1], 8)), fields.split()[4]))
        if real.is_relative_to(point) and (best is None or len(point.parts) >= best[0]):  # the last mount wins
            best = (len(point.parts), rest.split()[0])
    return best[1] if best else None


# ---- checks ----------------------------------------------------------------------------------------------------------


def directory(facts: StateFacts) -> Findings:
    """Check that the directory exists and belongs to this account."""
    if facts.kind == "absent":
        return note(f"{facts.path} is not there yet", "gpuqueue up makes it, on a machine that is to run jobs")
    if facts.kind == "no directory":
        return problem(f"{facts.path} is no directory", "move it away, or set GPUQUEUE_STATE_DIR to another place")
    if facts.owner == os.getuid():
        return ok(f"{facts.path}")
    owner = _name_of(facts.owner)
    seen = f"{facts.path} belongs to {owner}, and you are {_name_of(os.getuid())}"
    if os.getuid() == 0:
        return note(seen, f"root would own what it starts here: use sudo -u {owner}")
    return warning(seen, f"use sudo -u {owner}, or set GPUQUEUE_STATE_DIR to a place of your own")


def modes(facts: StateFacts) -> Findings:
    """Check that other users can neither read nor replace the jobs' environments and logs."""
    if facts.mode & 0o022:
        seen = f"others may write into it ({facts.mode:04o}), and so run programs as {_name_of(facts.owner)}"
        return problem(seen, f"chmod go-w {facts.path}")
    if facts.mode & 0o055 and facts.readable:
        seen = f"others may read in it ({facts.mode:04o}): {', '.join(facts.readable)}"
        return warning(seen, f"chmod 700 {facts.path}: the environments of jobs, and in them secrets, lie there")
    return ok(f"{facts.mode:04o}")


def writing(facts: StateFacts) -> Findings:
    """Check that the directory is writable."""
    if facts.writable:
        return ok("it can be written")
    return problem(
        "it cannot be written", f"mount it for writing, or give this account the right to: ls -ld {facts.path}"
    )


def disk(facts: StateFacts) -> Findings:
    """Check the free space and the free inodes on the directory's disk."""
    if facts.free_bytes is None:
        return ()
    free = f"{format_bytes(facts.free_bytes)} free"
    remedy = f"free some space on the disk of {facts.path}: jobs' logs and the store's data go there"
    if facts.free_bytes < FULL_BYTES or facts.free_files == 0:
        return problem(free if facts.free_files else f"{free}, but no inode", remedy)
    if facts.free_bytes < LOW_BYTES:
        return warning(free, remedy)
    if facts.free_files is not None and facts.free_files < LOW_FILES:
        return warning(f"{free}, but only {facts.free_files} inodes", remedy)
    return ok(free)


def room(seen: str, free_bytes: int, *, full: str) -> Findings:
    """Check the free space of another disk. *seen* describes the space, *full* the consequence of a full disk."""
    if free_bytes < FULL_BYTES:
        return problem(seen, f"free some space: {full}")
    if free_bytes < LOW_BYTES:
        return warning(seen, "free some space")
    return ok(seen)


def filesystem(facts: StateFacts) -> Findings:
    """Check that the directory is on a local disk."""
    kind = facts.filesystem or "of unknown kind"
    if NETWORK.search(kind):
        return warning(
            f"it is on a network disk ({kind}): locks and sockets may not work, and a server that is away stops all",
            "set GPUQUEUE_STATE_DIR to a local disk while no job runs",
        )
    return ok(kind)


def logs(facts: StateFacts) -> Findings:
    """Check how much space the logs take."""
    more = "" if facts.added_up else "more than "
    seen = f"our own {format_bytes(facts.log_bytes)}, the jobs' {more}{format_bytes(facts.run_log_bytes)}"
    if facts.log_bytes > LARGE_LOGS_BYTES:
        return warning(seen, f"look into {facts.path / 'log'} the message that repeats; truncate -s 0 empties a file")
    if facts.run_log_bytes > LARGE_RUNS_BYTES:
        return note(seen, "GPUQUEUE_KEEP_LOGS deletes them sooner, GPUQUEUE_LOG_LIMIT keeps each smaller")
    return ok(seen)


def _name_of(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def _of_directory(check: Check[StateFacts]) -> Check[StateFacts]:
    """Return *check* without a result if there is no directory."""

    @wraps(check)
    def of_facts(facts: StateFacts) -> Findings:
        return check(facts) if facts.kind == "directory" else ()

    return of_facts


CHECKS = (directory, *map(_of_directory, (modes, writing, disk, filesystem, logs)))
