"""Checks an access token with the service that it is for, before it is stored."""

from __future__ import annotations

from gpuqueue.client.first_call import ServiceAddress, ask, no_service
from gpuqueue.errors import NotAuthenticated, Refused, Unreadable
from gpuqueue.text.json_fields import Fields

#: Path of the answer to who the caller is, below that of the API.
WHOAMI = "/me"
_UNAUTHORIZED = 401


def account_of(url: str, token: str) -> str:
    """Return the account for which the service at *url* takes *token*. No redirection is followed.

    Raises:
        NotAuthenticated: the service does not accept the token.
        Refused: its certificate is not trusted.
        Unreachable: it does not answer.
        Unreadable: something else answers.

    """
    service = ServiceAddress(url=url, token=token)
    try:
        reply = ask(service, WHOAMI)
    except Refused as error:
        raise Refused(f"{error}. Nothing was stored") from error
    if reply.status == _UNAUTHORIZED:
        raise NotAuthenticated(f"{service.origin} does not accept this token: it is unknown, expired or revoked")
    try:
        return Fields(reply.content if reply.is_ok else None, "the answer").text("account")
    except Unreadable:
        raise no_service(service, reply) from None
