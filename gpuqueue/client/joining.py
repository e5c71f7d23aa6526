"""What a worker host asks the service of its site: whether it may join, and the settings that they have in common."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, TypeVar

from gpuqueue.client.first_call import Reply, ServiceAddress, ask, no_service
from gpuqueue.errors import NotAuthenticated, Refused, Unreadable
from gpuqueue.lazy.imports import later
from gpuqueue.model.joining import HostSettings, Joined, JoinRequest, fit
from gpuqueue.version import VERSION

if TYPE_CHECKING:
    from gpuqueue.codec import wire
else:
    wire = later("gpuqueue.codec.wire")

T = TypeVar("T", HostSettings, Joined)

_UNAUTHORIZED, _FORBIDDEN = 401, 403
_MAKE = "make one with gpuqueue token create --host NAME, on the machine of the service"


def settings_of(service: ServiceAddress) -> HostSettings:
    """Return the settings that this host must have in common with its site.

    Raises:
        NotAuthenticated: the service does not accept the token.
        Refused: the token is no host's, or the certificate of the service is not trusted.
        Unreachable: the service does not answer.
        Unreadable: something else answers.

    """
    reply = ask(service, "/host/settings")
    return _read(HostSettings, service, reply)


def join(service: ServiceAddress, *, dry_run: bool) -> Joined:
    """Return what this host needs to join. A dry run returns no password, and is not in the audit log.

    Raises:
        Refused: the token is no host's, the versions do not fit, or other machines cannot reach the store of the site.
        NotAuthenticated, Unreachable, Unreadable: as above.

    """
    body = asdict(JoinRequest(version=VERSION, dry_run=dry_run))
    reply = ask(service, "/host/join", body)
    found = _read(Joined, service, reply)
    if not fit(found.settings.version, VERSION):  # the service checks it, too
        raise Refused(
            f"this host has gpuqueue {VERSION} and the service {found.settings.version}: install the same minor version"
        )
    return found


def _read(kind: type[T], service: ServiceAddress, reply: Reply) -> T:
    if service.is_local and reply.status in {_UNAUTHORIZED, _FORBIDDEN}:
        raise Refused(
            f"the service at {service.origin} does not know this account as that of its workers: "
            "set workers_account in its settings, and restart it"
        )
    if reply.status == _UNAUTHORIZED:
        raise NotAuthenticated(f"{service.origin} does not accept this token: {_MAKE}")
    if reply.status == _FORBIDDEN:
        raise Refused(f"this is no token of a worker host: {_MAKE}")
    if not reply.is_ok:
        raise reply.error or no_service(service, reply)
    try:
        found: T = wire.from_plain(kind, reply.content)
    except Unreadable:
        raise no_service(service, reply) from None
    return found


def leave(service: ServiceAddress) -> None:
    """Leave the site: the service revokes the token of this host.

    Raises:
        NotAuthenticated: the service does not accept the token; it was revoked, or has expired.
        Refused, Unreachable, Unreadable: as above.

    """
    reply = ask(service, "/host/leave", {})
    if not reply.is_ok:
        _read(Joined, service, reply)
