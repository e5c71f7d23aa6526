"""The identity of a machine: a random id in its state directory. Two machines may have one name, but not one id."""

from __future__ import annotations

import os
import re
from pathlib import Path

from gpuqueue.errors import GpuQueueError, unusable

#: The name of the file in the state directory.
FILE = "machine-id"
_ID = re.compile(r"[0-9a-f]{16}")


def machine_id(state_dir: Path) -> str:
    """Return the id of this machine. The first call writes it. Calls at the same time return the same id.

    Raises:
        GpuQueueError: the file cannot be read or written, or is damaged.

    """
    path = state_dir / FILE
    try:
        if not os.path.lexists(path):
            _write(path)
        # Root reads it too, in the directory of another account: no link is followed, and no pipe waited for.
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(fd, "rb") as file:
            text = file.read(64).decode("ascii", "replace").strip()
    except OSError as error:
        raise unusable(state_dir, error) from error
    if not _ID.fullmatch(text):
        raise GpuQueueError(f"{path} holds no machine id: delete it, then gpuqueue up (it gets a new one)")
    return text


def _write(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = path.with_name(f"{FILE}.{os.urandom(4).hex()}")
    draft.write_text(f"{os.urandom(8).hex()}\n", encoding="ascii")
    try:
        os.link(draft, path)  # atomic, and the first one wins
    except FileExistsError:
        pass
    finally:
        draft.unlink()


def address_towards(url: str) -> str:
    """Return the name and the address of this machine as the store at *url* sees it, for people."""
    import socket  # noqa: PLC0415 - lazy import for startup time
    from urllib.parse import urlsplit  # noqa: PLC0415 - as above

    name, parts = os.uname().nodename, urlsplit(url)
    if parts.hostname is None:
        return name
    try:
        family, _, _, _, where = socket.getaddrinfo(parts.hostname, parts.port or 6379, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(where)  # sends nothing, only chooses the route
            return f"{name}, {probe.getsockname()[0]}"
    except OSError:
        return name
