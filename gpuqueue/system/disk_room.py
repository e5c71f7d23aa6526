"""Keeps a part of each disk free of what is kept after runs: running jobs need room for their logs."""

from __future__ import annotations

import os

#: Share of a disk that stays free.
LEAST_FREE = 0.05


def has_room(fd: int, more_bytes: int) -> bool:
    """Return whether the disk of the open file *fd* still has its share free after *more_bytes* more."""
    about = os.fstatvfs(fd)
    return about.f_bavail * about.f_frsize - more_bytes >= LEAST_FREE * about.f_blocks * about.f_frsize
