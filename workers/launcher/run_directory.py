"""Opens run directories by their names, below the directory that root has named. Standard library only.

The run directories belong to the account of the workers. In a mount namespace of its own, a process of that account can
mount any directory over one, and a descriptor from there leads to whatever is mounted. So the launcher takes no
descriptor of a directory: it takes a name, opens it in its own namespace, follows no link and crosses no mount. (In the
namespace of the host, a user can still mount a FUSE file system on a directory of their own.)
"""

from __future__ import annotations

import contextlib
import os
import re

from workers.launcher.account import Refused, Rules

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

#: The name of a run directory: the id of the job, and the token of the run.
_NAME = re.compile(r"[0-9]{1,18}/[0-9]{1,9}\.[0-9a-z]{1,64}")
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
#: Opens a place without asking the file system that may be mounted on it.
_PLACE = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def checked(name: str) -> str:
    """Return the name of a run directory.

    Raises:
        Refused: *name* is none.

    """
    if not _NAME.fullmatch(name):
        raise Refused("the request names no run directory")
    return name


def open_run(name: str, rules: Rules) -> int:
    """Open the run directory *name*, as in ``17/1.a4``, below ``rules.runs``, and return its descriptor.

    Raises:
        Refused: that is no name of a run directory, or the directory does not belong to the account of the workers.
        OSError: it cannot be opened.

    """
    job, token = checked(name).split("/")
    try:
        with _opened(os.open(rules.runs, _FOLDER)) as top:
            if rules.runs_mount not in {None, mount_of(top)}:
                raise Refused(f"something was mounted over {rules.runs} after the launcher had started: restart it")
            with _opened(open_below(top, job)) as above:
                fd = open_below(above, token)
    except OSError as error:
        raise OSError(error.errno, f"{error.strerror}: the run directory {name} below {rules.runs}") from error
    if os.fstat(fd).st_uid != rules.service_uid:
        os.close(fd)
        raise Refused("the run directory does not belong to the account of the queue")
    return fd


def open_below(directory: int, name: str) -> int:
    """Open the directory *name* in the open *directory*, and return its descriptor. Both are on one mount.

    Raises:
        Refused: something is mounted there.
        OSError: there is no directory of that name; a symbolic link is none.

    """
    place = os.open(name, _PLACE, dir_fd=directory)
    try:
        if mount_of(place) != mount_of(directory):
            raise Refused(f"{name} in the run directory is a mount point")
        return os.open(".", _FOLDER, dir_fd=place)
    finally:
        os.close(place)


@contextlib.contextmanager
def _opened(fd: int) -> Iterator[int]:
    try:
        yield fd
    finally:
        os.close(fd)


def mount_of(fd: int) -> str:
    """Return the id of the mount that the open file *fd* is on; see proc_pid_fdinfo(5)."""
    with open(f"/proc/self/fdinfo/{fd}", encoding="ascii") as file:
        return next(line.split()[1] for line in file if line.startswith("mnt_id:"))
