"""Which directory a state directory is, so that a copy of it is known; and which processes are those of a directory.

``up`` records the directory in ``directory-id``, with facts about the empty file ``directory-mark`` beside it. A copy
has a mark of its own: no copy of a file keeps the time of its last change of status (ctime). The rule is in
docs/internals/lost-data.md#copies-of-a-state-directory.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from gpuqueue.lazy.frozen import dataclass
from gpuqueue.lazy.imports import later
from gpuqueue.system.process import ProcessIdentity, boot_id, has_own_pids

if TYPE_CHECKING:
    import json
else:  # only up and status read the record
    json = later("json")

#: The names of the files in the state directory.
RECORD, MARK = "directory-id", "directory-mark"
#: The file that says why this host cannot reach the store through the service.
TUNNEL_TROUBLE = "tunnel-trouble"
#: The pid file of the server of the embedded store.
STORE_PID = "store/pid"
#: The pid files by which the original of a directory without a record is found, if its processes run.
_PID_FILES = ("host.pid", STORE_PID)
#: What to do in a copy.
IN_A_COPY = "gpuqueue up says what can be done"


@dataclass(frozen=True, kw_only=True, slots=True)
class DirectoryId:
    """The record of a state directory: where it is, and its mark."""

    id: str
    path: str
    #: The machine, or in a container the container: within it, one path is one directory.
    place: str
    #: The name of the machine, for people.
    host: str
    inode: int
    ctime_ns: int
    #: The id of the file system, 0 if it has none.
    volume: int

    @classmethod
    def read(cls, state_dir: Path) -> DirectoryId | None:
        """Return the record in *state_dir*, or None if there is none that can be read."""
        try:
            plain = json.loads((state_dir / RECORD).read_bytes())
            return cls(
                id=str(plain["id"]),
                path=str(plain["path"]),
                place=str(plain["place"]),
                host=str(plain["host"]),
                inode=int(plain["inode"]),
                ctime_ns=int(plain["ctime_ns"]),
                volume=int(plain["volume"]),
            )
        except (OSError, ValueError, KeyError, TypeError):
            return None

    @classmethod
    def of(cls, state_dir: Path, name: str) -> DirectoryId:
        """Return the record that *state_dir* with the id *name* should have here and now.

        Raises:
            OSError: it has no mark.

        """
        mark = os.stat(state_dir / MARK, follow_symlinks=False)  # noqa: PTH116 - all facts of one moment
        return cls(
            id=name,
            path=str(state_dir.resolve()),
            place=_place(),
            host=os.uname().nodename,
            inode=mark.st_ino,
            ctime_ns=mark.st_ctime_ns,
            volume=os.statvfs(state_dir).f_fsid,
        )

    def is_same_directory(self, now: DirectoryId) -> bool:
        """Return whether two of three agree: the mark's inode, the time of its last change, and its place on disk.

        A move keeps the first two, ``chown`` the first and the last, and a remount of some network disks the others.
        """
        facts = (
            self.inode == now.inode,
            self.ctime_ns == now.ctime_ns,
            (self.path, self.volume) == (now.path, now.volume),
        )
        return sum(facts) >= 2  # noqa: PLR2004 - the rule above


def _place() -> str:
    if has_own_pids():
        return f"{boot_id()} {Path('/proc/self/ns/pid').readlink()}"
    try:
        return Path("/etc/machine-id").read_text(encoding="ascii").strip() or os.uname().nodename
    except (OSError, ValueError):
        return os.uname().nodename


def original_of(state_dir: Path) -> str | None:
    """Return the path of what *state_dir* is a copy of, and its machine if it is another one; None for no copy."""
    recorded = DirectoryId.read(state_dir)
    if recorded is None:
        return lives_elsewhere(state_dir)
    try:
        now = DirectoryId.of(state_dir, recorded.id)
    except OSError:  # a copy without the mark
        now = None
    is_here, here = recorded.place == _place(), str(state_dir.resolve())
    if is_here and recorded.path == here:
        return None  # also if it was restored from a backup, or its disk was replaced
    words = recorded.path if is_here else f"{recorded.path} on {recorded.host}"
    original = Path(recorded.path)
    is_there = None if recorded.path == here else _has(original, recorded.id)
    if is_there:
        return None if _is_one(original / MARK, state_dir / MARK) else words
    if is_there is None and recorded.path != here:
        is_moved = now is not None and (now.inode, now.ctime_ns) == (recorded.inode, recorded.ctime_ns)
    else:
        is_moved = is_here or (now is not None and recorded.is_same_directory(now))
    return None if is_moved else words


def copy_words(state_dir: Path, original: str) -> str:
    """Return in words that *state_dir* is a copy of *original*."""
    return f"{state_dir} is a copy of {original}"


def lives_elsewhere(state_dir: Path) -> str | None:
    """Return the directory of the processes that the pid files in *state_dir* name, if it is another one.

    Also of no copy: a directory that was moved to another disk while its processes ran.
    """
    for name in _PID_FILES:
        process = _parsed(state_dir / name)
        logs = None if process is None or not process.alive() else _logs_of(process)
        if logs is not None and not _is_log_of(state_dir, logs):
            return str(logs.parent)
    return None


def living_pids(state_dir: Path) -> list[int]:
    """Return the pids of the living processes that the pid files in *state_dir* name."""
    named = (_parsed(state_dir / name) for name in _PID_FILES)
    return [process.pid for process in named if process is not None and process.alive()]


def _has(directory: Path, name: str) -> bool | None:
    """Return whether *directory* has the id *name*, or an id that cannot be read; None if it cannot be entered."""
    try:
        (directory / RECORD).stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return None
    there = DirectoryId.read(directory)
    return there is None or there.id == name


def _is_one(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return False


def record(state_dir: Path, *, is_new: bool = False) -> None:
    """Record that *state_dir* is no copy. With *is_new* it gets another id, so that it is a copy no more.

    Without the record, for lack of space, a copy is known only while the original runs.
    """
    before = DirectoryId.read(state_dir)
    with contextlib.suppress(OSError):
        os.close(os.open(state_dir / MARK, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))  # `touch` would change it
        name = os.urandom(8).hex() if before is None or is_new else before.id
        now = DirectoryId.of(state_dir, name)
        if now != before:
            write_whole(state_dir / RECORD, json.dumps({each: getattr(now, each) for each in now.__slots__}) + "\n")


def process_of(state_dir: Path, pid_file: str) -> ProcessIdentity | None:
    """Return the process that *pid_file* names, also if it is gone. None: none, or it is not of *state_dir*.

    A process of gpuqueue writes its output to a file in ``log`` of its own state directory. Where that cannot be read,
    because the process is of another account, the pid file is trusted.
    """
    process = _parsed(state_dir / pid_file)
    if process is None or not process.alive():
        return process
    logs = _logs_of(process)
    return process if logs is None or _is_log_of(state_dir, logs) else None


def _is_log_of(state_dir: Path, logs: Path) -> bool:
    """Return whether *logs* is the directory of the logs, which may be a link, or was until somebody renamed it."""
    return _is_one(logs, state_dir / "log") or _is_one(logs.parent, state_dir)


def _parsed(pid_file: Path) -> ProcessIdentity | None:
    try:
        return ProcessIdentity.parse(pid_file.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


def _logs_of(process: ProcessIdentity) -> Path | None:
    """Return the directory of the file that *process* writes its output to, or None if that cannot be read."""
    try:
        return Path(f"/proc/{process.pid}/fd/1").readlink().parent
    except OSError:
        return None


def write_pid(pid_file: Path, pid: int) -> None:
    """Write the identity of the process *pid*, in one step.

    Raises:
        OSError: the file cannot be written.

    """
    write_whole(pid_file, f"{ProcessIdentity.of(pid)}\n")


def write_whole(path: Path, text: str) -> None:
    """Write a file in one step, readable only by its owner.

    Raises:
        OSError: the file cannot be written. The old one is unchanged.

    """
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "w") as file:
            file.write(text)
        draft.replace(path)
    except OSError:
        draft.unlink(missing_ok=True)
        raise
