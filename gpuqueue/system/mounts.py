"""The file system of a path, and what a network disk means for a state directory."""

from __future__ import annotations

import re
from pathlib import Path

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
