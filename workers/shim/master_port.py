"""Chooses where the processes of one run find each other: ``MASTER_ADDR`` and ``MASTER_PORT``. Standard library only.

Every launcher of training takes the same port by default, so the second run of a host failed. The process that starts
the job chooses, which is its shim, or the run's guard where jobs run as their submitters: no worker can lead a training
elsewhere. It holds an abstract unix socket that is named after the port until it ends, as the last process of the run.
All runs of a network namespace see these names, of whichever account, and the kernel removes one with its process.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import os
import socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

ADDRESS, PORT = "MASTER_ADDR", "MASTER_PORT"
#: The same port for torchrun, which sets MASTER_PORT and does not read it.
OF_TORCHRUN = "PET_MASTER_PORT"
LOOPBACK = "127.0.0.1"
#: Values of MASTER_ADDR for which a port of this host is of use.
LOCAL = frozenset({LOOPBACK, "localhost", "::1"})
#: The variable with what the queue has changed in the submitter's environment: name -> [before, after].
CHANGED = "GPUQUEUE_CHANGED"
#: The ports from which one is chosen: below the default port of torch, which others on the host use.
FIRST, BEHIND_LAST = 20000, 29500
#: The first port for which no account needs a right.
UNPRIVILEGED = 1024
#: The kernel gives ports of this range to connections, and could give away a port between the check and its use.
EPHEMERAL = "/proc/sys/net/ipv4/ip_local_port_range"
#: How many ports are tried. Each try takes some microseconds.
MAX_TRIES = 200


@functools.cache
def candidates() -> range:
    """Return the ports to choose from. Read once, in the process that forks shims or guards."""
    behind = BEHIND_LAST
    with contextlib.suppress(OSError, ValueError, IndexError), open(EPHEMERAL, encoding="ascii") as file:
        behind = min(behind, int(file.read().split()[0]))
    first = min(FIRST, max(UNPRIVILEGED, behind - (BEHIND_LAST - FIRST)))
    return range(first, behind) or range(FIRST, BEHIND_LAST)  # all ports may be ephemeral


def with_master_port(env: Mapping[str, str]) -> dict[str, str]:
    """Return *env* with the address and a free port of this host, kept for this process until it ends.

    What the submitter has set stays. With an address on another host there is no port, and without a free one none.
    """
    if env.get(ADDRESS, LOOPBACK) not in LOCAL:
        return dict(env)
    added = {} if ADDRESS in env else {ADDRESS: LOOPBACK}
    port = reserve() if PORT not in env else None
    if port is not None:
        added.update((name, str(port)) for name in (PORT, OF_TORCHRUN) if name not in env)
    # A job that submits a job does not give it these values (see gpuqueue.system.environment).
    changed = {**_changed(env), **{name: [None, value] for name, value in added.items()}}
    return {**env, **added, CHANGED: json.dumps(changed)} if added else dict(env)


def _changed(env: Mapping[str, str]) -> dict[str, object]:
    """Return what the queue has changed before. A submitter can set the variable to anything."""
    try:
        return dict(json.loads(env.get(CHANGED, "{}")))
    except (ValueError, TypeError, RecursionError):
        return {}


def reserve() -> int | None:
    """Return a free port that no other run has, and keep it for this process until it ends; None if none was found."""
    ports = candidates()
    start = int.from_bytes(os.urandom(4), "little")
    with contextlib.suppress(OSError):  # no descriptor is left
        for number in range(MAX_TRIES):
            port = ports[(start + number) % len(ports)]
            holder = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
            if _is_bound(holder, name_of(port)) and is_free(port):
                holder.detach()  # it stays open
                return port
            holder.close()
    return None


def name_of(port: int) -> str:
    """Return the name of the abstract socket that reserves *port*."""
    return f"\0gpuqueue port {port}"


def is_free(port: int) -> bool:
    """Return whether a process can listen on *port*, at all addresses of both versions of IP, as torch does."""
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as listener:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            return _is_bound(listener, ("::", port))
    except OSError as error:
        if error.errno not in {errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL}:
            raise
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as listener:
        return _is_bound(listener, ("", port))


def _is_bound(unbound: socket.socket, name: str | tuple[str, int]) -> bool:
    try:
        unbound.bind(name)
    except OSError as error:
        if error.errno in {errno.EADDRINUSE, errno.EACCES}:
            return False
        raise
    return True
