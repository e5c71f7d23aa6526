"""Who calls, and the record of changes: what the service needs from the package that identifies callers."""

from __future__ import annotations

import pwd
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from pathlib import Path
from typing import Protocol

from gpuqueue.errors import NotAuthenticated
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.caller import ALL_SCOPES, Caller, Via


@dataclass(frozen=True, kw_only=True, slots=True)
class Peer:
    """The process at the other end of a unix socket when it connected, as the kernel reports it."""

    pid: int
    uid: int
    gid: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Credentials:
    """What a request brings to prove who calls: the peer of a unix socket, or an ``Authorization`` header."""

    peer: Peer | None
    authorization: str | None
    address: str


class Identity(Protocol):
    """Identifies callers, and records their changes."""

    def caller(self, credentials: Credentials) -> Caller:
        """Return the caller.

        Raises:
            NotAuthenticated: nobody knows who calls.

        """

    def change(self, caller: Caller, action: str, jobs: tuple[str, ...]) -> AbstractContextManager[object]:
        """Return a context in which *caller* changes *jobs*; it is recorded with its outcome."""


class SocketIdentity:
    """Identifies the peers of a unix socket, and nobody else."""

    def caller(self, credentials: Credentials) -> Caller:
        """Return the account of the peer.

        Raises:
            NotAuthenticated: the call came over TCP, or from a user of another user namespace.

        """
        peer = credentials.peer
        if peer is None:
            raise NotAuthenticated("this service knows no access tokens: use its unix socket")
        if peer.uid == overflow_uid():
            raise NotAuthenticated(
                f"uid {peer.uid} stands for every account that this machine does not know: call from outside of the "
                "container"
            )
        try:
            name = pwd.getpwuid(peer.uid).pw_name
        except KeyError:
            name = f"uid{peer.uid}"
        return Caller(
            account=name,
            uid=peer.uid,
            via=Via.SOCKET,
            scopes=ALL_SCOPES,
            superuser=peer.uid == 0,
            address=f"pid {peer.pid}",
        )

    @contextmanager
    def change(self, caller: Caller, action: str, jobs: tuple[str, ...]) -> Iterator[None]:  # noqa: ARG002 - nothing is recorded yet
        """Do not record the change."""
        yield


@cache
def overflow_uid() -> int:
    """Return the uid that the kernel shows for every account that is not in this user namespace."""
    try:
        return int(Path("/proc/sys/kernel/overflowuid").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return 65534
