"""The caller at the other end of a unix socket, as the kernel reports it."""

from __future__ import annotations

import pwd
from functools import cache
from pathlib import Path

from gpuqueue.errors import NotAuthenticated
from gpuqueue.model.caller import ALL_SCOPES, Caller, Via
from gpuqueue.system.account import groups_of

_OVERFLOW_UID = Path("/proc/sys/kernel/overflowuid")


def caller_of_peer(uid: int, pid: int, *, with_groups: bool = True) -> Caller:
    """Return the caller for a peer's *uid* and *pid*, those of SO_PEERCRED.

    The kernel translates the uid into the user namespace of this process, so root of a container is not root here.

    Raises:
        NotAuthenticated: the uid does not exist in the user namespace of this process, so it identifies no account.

    """
    if uid == _overflow_uid():
        raise NotAuthenticated(
            f"uid {uid} stands for every account that this machine does not know: call from outside of the container"
        )
    name, gid = _name_of(uid)
    return Caller(
        account=name,
        uid=uid,
        via=Via.SOCKET,
        groups=groups_of(name, gid) if with_groups else frozenset(),
        scopes=ALL_SCOPES,
        superuser=uid == 0,
        address=f"pid {pid}",
    )


def caller_of_account(name: str, uid: int, address: str, *, with_groups: bool = True) -> Caller | None:
    """Return the caller for a session of an account of this machine, None if the account is there no more."""
    found, gid = _name_of(uid)
    if found != name:
        return None
    return Caller(
        account=name,
        uid=uid,
        via=Via.SESSION,
        groups=groups_of(name, gid) if with_groups else frozenset(),
        scopes=ALL_SCOPES,
        superuser=uid == 0,
        address=address,
    )


def _name_of(uid: int) -> tuple[str, int | None]:
    """Return the name and the main group of *uid*. The uid of a container may have no name: it is ``uid1234`` then."""
    try:
        found = pwd.getpwuid(uid)
    except KeyError:
        return f"uid{uid}", None
    return found.pw_name, found.pw_gid


@cache
def _overflow_uid() -> int:
    """Return the uid that the kernel shows for all accounts of other user namespaces. It is read once."""
    try:
        return int(_OVERFLOW_UID.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return 65534
