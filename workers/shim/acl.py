"""Shares a file of the account of the workers with one submitter, by an access control list. Standard library only.

See acl(5) and linux/posix_acl_xattr.h. A file system without such lists shares nothing: the job still writes its log,
through the descriptor that it was started with.

After the end of the run the submitter may only read. But another process of theirs can still have the file open, and
they can have given it a second name (link(2)). So a shared file is emptied before it is removed, and it stays, where
all can count it, while a process has it open for writing.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

READ, WRITE = 4, 2
ACCESS = "system.posix_acl_access"
#: The file to which the processes of a job append their reports (see :mod:`workers.run.torch_report`).
REPORTS = "reports"
#: The file to which a job appends its metrics (see :mod:`workers.measure.job_values`).
METRICS = "metrics"
REPORTED = (REPORTS, METRICS)
#: The files that a job may write, and that count on the disk of its user. None is a directory: a job could make others
#: in it that nobody else can enter.
WRITTEN = ("log", "stderr", *REPORTED)
#: Tags of the entries: the owner, a named user, the group, the mask that limits all but the owner, all others.
OWNER, USER, GROUP, MOST, OTHERS = 0x01, 0x02, 0x04, 0x10, 0x20
VERSION, NO_ID = 2, 0xFFFFFFFF


def share(name: str, uid: int, rights: int) -> None:
    """Give the account *uid* these *rights* to the file *name* of this account, and no rights to others."""
    with contextlib.suppress(OSError, struct.error):  # struct.error: a user id out of range; the launcher refuses it
        os.setxattr(name, ACCESS, entries(rights | READ | WRITE, uid, rights))


def end_writing(run_dir: str | os.PathLike[str]) -> None:
    """Let the submitter only read the files of :data:`WRITTEN` in *run_dir*."""
    for name in WRITTEN:
        with contextlib.suppress(OSError), _opened(os.path.join(run_dir, name), os.O_RDONLY) as fd:
            if _is_shared(fd):
                os.fchmod(fd, 0o640)  # in a list, the rights of the group limit those of all but the owner


def is_held(name: str | os.PathLike[str], directory: int | None = None) -> bool:
    """Return whether a process has the shared file *name* open for writing. This account must own it."""
    try:
        with _opened(name, os.O_RDONLY, directory) as fd:
            if not _is_shared(fd):
                return False
            fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)  # ignored; the default would end this process
            fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)  # refused while it is open for writing, see fcntl(2)
    except BlockingIOError:
        return True
    except OSError:  # none is there, or the file system has no leases
        pass
    return False


def remove(name: str, directory: int | None = None) -> bool:
    """Remove the file *name*, emptied before if it is shared. Return False for one that is held: then it stays.

    Raises:
        OSError: it cannot be removed.

    """
    with contextlib.suppress(OSError), _opened(name, os.O_WRONLY, directory) as fd:
        if _is_shared(fd):
            times = os.fstat(fd)
            os.ftruncate(fd, 0)
            os.utime(fd, ns=(times.st_atime_ns, times.st_mtime_ns))  # it stays due
    if is_held(name, directory):
        return False
    os.unlink(name, dir_fd=directory)
    return True


@contextlib.contextmanager
def _opened(name: str | os.PathLike[str], flags: int, directory: int | None = None) -> Iterator[int]:
    fd = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
    try:
        yield fd
    finally:
        os.close(fd)


def _is_shared(fd: int) -> bool:
    """Return whether the open file has an access control list."""
    try:
        return bool(os.getxattr(fd, ACCESS))
    except OSError:
        return False


def entries(owner: int, uid: int, rights: int) -> bytes:
    """Return the access control list: *owner* are the rights of the owner, *rights* those of the account *uid*."""
    plain = [(OWNER, owner, NO_ID), (USER, rights, uid), (GROUP, 0, NO_ID), (MOST, rights, NO_ID), (OTHERS, 0, NO_ID)]
    return struct.pack("<I", VERSION) + b"".join(struct.pack("<HHI", *entry) for entry in plain)
