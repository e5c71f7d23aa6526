"""Checks an access token with the service that it is for, before it is stored."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from gpuqueue.errors import NotAuthenticated, Refused, Unreachable, Unreadable
from gpuqueue.lazy.imports import later
from gpuqueue.settings.credentials import origin_of
from gpuqueue.text.json_fields import Fields
from gpuqueue.text.sanitize import brief

if TYPE_CHECKING:
    from http import client as http
else:
    http = later("http.client")

#: Path of the answer to who the caller is, below the address of the service.
WHOAMI = "/api/v1/me"
_TIMEOUT_S = 10.0
_MOST_BYTES = 65536
_OK, _UNAUTHORIZED = 200, 401


def account_of(url: str, token: str) -> str:
    """Return the account for which the service at *url* takes *token*. No redirection is followed.

    Raises:
        NotAuthenticated: the service does not accept the token.
        Refused: its certificate is not trusted.
        Unreachable: it does not answer.
        Unreadable: something else answers.

    """
    parts = urlsplit(origin_of(url))
    opened = http.HTTPSConnection if parts.scheme == "https" else http.HTTPConnection
    connection = opened(parts.hostname or "", parts.port, timeout=_TIMEOUT_S)
    try:
        connection.request("GET", urlsplit(url).path.rstrip("/") + WHOAMI, headers={"Authorization": f"Bearer {token}"})
        answer = connection.getresponse()
        content = answer.read(_MOST_BYTES)
    except (OSError, http.HTTPException) as error:
        if type(error).__name__ == "SSLCertVerificationError":
            from gpuqueue.client.remote.link import certificate_trouble  # noqa: PLC0415 - only for a bad certificate

            raise Refused(f"{certificate_trouble(origin_of(url), error)}. Nothing was stored") from error
        raise Unreachable(f"the service at {origin_of(url)} does not answer: {brief(str(error))}") from error
    finally:
        connection.close()
    if answer.status == _UNAUTHORIZED:
        raise NotAuthenticated(f"{origin_of(url)} does not accept this token: it is unknown, expired or revoked")
    try:
        found = Fields(json.loads(content if answer.status == _OK else b"null"), "the answer").text("account")
    except (ValueError, Unreadable):
        raise Unreadable(f"{origin_of(url)} is no gpuqueue service: it answers {answer.status}") from None
    return found
