"""Callers: who calls the service, and how the caller was authenticated. Pure.

:mod:`gpuqueue.model.access` says what a caller may do.
"""

from __future__ import annotations

from enum import Enum

from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.job_spec import Account


class Scope(str, Enum):
    """A part of an account's rights. An access token has some of them, a user of the socket has all."""

    #: To look at things.
    READ = "read"
    #: To submit jobs, and to change those of one's own account.
    SUBMIT = "submit"
    #: To use the rights of an admin, if the account is one.
    ADMIN = "admin"

    def __str__(self) -> str:
        return self.value


ALL_SCOPES = frozenset(Scope)


class Via(str, Enum):
    """How a caller was authenticated."""

    #: The kernel reports the uid of the process at the other end of a unix socket.
    SOCKET = "socket"
    #: An access token.
    TOKEN = "token"  # noqa: S105 - the word, and no token
    #: A session of a browser, which one of the two above has begun.
    SESSION = "session"
    #: The caller's own process reaches the store and the history without the service.
    DIRECT = "direct"
    #: A time of a repeating job has come, which one of the first two has added.
    CRON = "cron"
    #: Not at all.
    ANONYMOUS = "anonymous"

    def __str__(self) -> str:
        return self.value


class CallerKind(str, Enum):
    """What kind of account calls."""

    PERSON = "person"
    #: A worker host, which serves jobs and has no rights of a person.
    HOST = "host"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, kw_only=True, slots=True)
class Caller:
    """One authenticated caller, or an anonymous one. All fields come from the kernel or from the row of a token.

    - ``account`` is the account's name, or the name of a worker host. Empty for an anonymous caller.
    - ``uid`` is None for an anonymous caller and for a host.
    - ``groups`` are the account's Unix groups.
    - ``superuser``: the kernel of this machine says that the caller is root, in no user namespace.
    - ``token_id`` is the public part of the access token, None without one.
    - ``address`` is where the call comes from: a network address, or ``pid 123`` for a socket.
    """

    account: str
    uid: int | None
    via: Via
    groups: frozenset[str] = frozenset()
    scopes: frozenset[Scope] = frozenset()
    kind: CallerKind = CallerKind.PERSON
    superuser: bool = False
    token_id: str | None = None
    address: str = ""

    def owns(self, owner: Account | None) -> bool:
        """Return whether *owner* is this account: the same name and the same uid."""
        return owner is not None and self.uid is not None and (self.account, self.uid) == (owner.name, owner.uid)


def anonymous(address: str) -> Caller:
    """Return a caller that is not authenticated."""
    return Caller(account="", uid=None, via=Via.ANONYMOUS, address=address)
