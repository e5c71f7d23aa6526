"""The account that this process runs as."""

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


#: What the queue calls the superuser, who may change any job.
ROOT = "root"


def current_account(host: str) -> Account:
    """Return who runs this process on *host*: by its uid, since ``$USER`` can say anything."""
    uid = os.getuid()
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:  # a container's uid may have no name
        name = f"uid{uid}"
    return Account(name=name, uid=uid, host=host)


def current_umask(status: Path = Path("/proc/self/status")) -> int:
    """Return the umask of this process without changing it; 022 where the kernel does not tell (before 4.7)."""
    try:
        lines = status.read_text(encoding="ascii", errors="replace").splitlines()
        return next(int(line.split()[1], 8) for line in lines if line.startswith("Umask:"))
    except (OSError, ValueError, IndexError, StopIteration):
        return 0o022
