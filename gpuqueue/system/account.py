"""The account and the umask of this process."""

from __future__ import annotations

import os
import pwd
from pathlib import Path
from typing import TYPE_CHECKING

from gpuqueue.lazy.imports import later
from gpuqueue.model.job import Account

if TYPE_CHECKING:
    import shutil
else:
    shutil = later("shutil")


#: The name of the superuser in the queue. This account may change any job.
ROOT = "root"


def current_account(host: str) -> Account:
    """Return the account of this process on *host*. Its name comes from the uid, since ``$USER`` is not reliable."""
    uid = os.getuid()
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:  # a container's uid may have no name
        name = f"uid{uid}"
    return Account(name=name, uid=uid, host=host)


def current_umask(status: Path = Path("/proc/self/status")) -> int:
    """Return the umask of this process without changing it, or 022 if the kernel (before 4.7) does not report it."""
    try:
        lines = status.read_text(encoding="ascii", errors="replace").splitlines()
        return next(int(line.split()[1], 8) for line in lines if line.startswith("Umask:"))
    except (OSError, ValueError, IndexError, StopIteration):
        return 0o022
