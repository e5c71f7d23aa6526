"""The caller at the other end of a unix socket, as the kernel reports it."""

from __future__ import annotations

import pwd
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from gpuqueue.errors import BadRequest, NotAuthenticated
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.caller import ALL_SCOPES, Caller, CallerKind, Via
from gpuqueue.system.account import groups_of

if TYPE_CHECKING:
    from gpuqueue.settings.settings import Settings

_OVERFLOW_UID = Path("/proc/sys/kernel/overflowuid")


@dataclass(frozen=True, slots=True)
class Workers:
    """The account of the workers on the machine of the service. At the socket it is the worker host of this name."""

    uid: int
    host: str

    @classmethod
    def of(cls, settings: Settings) -> Workers | None:
        """Return the workers of the machine with *settings*, None if they have the account of the service.

        Raises:
            BadRequest: there is no such account.

        """
        name = settings.workers_account
        if name is None:
            return None
        try:
            return cls(pwd.getpwnam(name).pw_uid, settings.host)
        except KeyError:
            raise BadRequest(f"setting workers_account: this machine has no account {name!r}") from None


def caller_of_peer(uid: int, pid: int, *, with_groups: bool = True, workers: Workers | None = None) -> Caller:
    """Return the caller for a peer's *uid* and *pid*, those of SO_PEERCRED. *workers* are a worker host, and no person.

    The kernel translates the uid into the user namespace of this process, so root of a container is not root here.

    Raises:
        NotAuthenticated: the uid does not exist in the user namespace of this process, so it identifies no account.

    """
    if uid == _overflow_uid():
        raise NotAuthenticated(
            f"uid {uid} stands for every account that this machine does not know: call from outside of the container"
        )
    if workers is not None and uid == workers.uid:
        return Caller(account=workers.host, uid=None, via=Via.SOCKET, kind=CallerKind.HOST, address=f"pid {pid}")
    name, gid = name_of(uid)
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
    found, gid = name_of(uid)
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


def name_of(uid: int) -> tuple[str, int | None]:
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
