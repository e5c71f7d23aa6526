"""Keeps a part of each disk free of what is kept after runs: running jobs and the store need room."""

from __future__ import annotations

import os
import re
from pathlib import Path

from gpuqueue.lazy.frozen import dataclass

#: Share of a disk that stays free.
LEAST_FREE = 0.05


@dataclass(frozen=True, slots=True)
class Room:
    """The size of a disk, and what is free on it for this account, in bytes."""

    free_bytes: int
    size_bytes: int

    @classmethod
    def of(cls, place: Path | int) -> Room:
        """Return the room on the disk of the file or directory *place*, a path or an open descriptor.

        Raises:
            OSError: it cannot be read.

        """
        about = os.statvfs(place)
        return cls(about.f_bavail * about.f_frsize, about.f_blocks * about.f_frsize)

    def least_bytes(self, most_bytes: int) -> int:
        """Return how much of this disk should stay free: its share, and at most *most_bytes*."""
        return min(int(LEAST_FREE * self.size_bytes), most_bytes)


def has_room(fd: int, more_bytes: int) -> bool:
    """Return whether the disk of the open file *fd* still has its share free after *more_bytes* more."""
    room = Room.of(fd)
    return room.free_bytes - more_bytes >= LEAST_FREE * room.size_bytes


#: Network file systems. Locks may not work on them, sockets never do, and an absent server hangs every access.
NETWORK = re.compile(r"nfs|cifs|smb|afs|ceph|lustre|gpfs|beegfs|glusterfs|sshfs|9p")
#: What to do about a state directory on a network disk.
USE_A_LOCAL_DISK = "set GPUQUEUE_STATE_DIR to a local disk while no job runs"


def filesystem_of(path: Path, mounts: Path = Path("/proc/self/mountinfo")) -> str | None:
    """Return the type of the file system of *path*, from the kernel's mount table (proc(5)), or None if unknown.

    The path need not exist.
    """
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


def network_trouble(kind: str) -> str | None:
    """Return what a directory on a file system of this *kind* has to expect, None on a local disk."""
    if not NETWORK.search(kind):
        return None
    return f"it is on a network disk ({kind}): locks and sockets may not work, and a server that is away stops all"
