"""Keeps a part of each disk free of what is kept after runs: running jobs and the store need room."""

from __future__ import annotations

import os
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
