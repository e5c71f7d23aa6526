"""The parsers of the settings that are addresses of services and stores."""

from __future__ import annotations

from gpuqueue.errors import BadRequest
from gpuqueue.text.sanitize import brief, without_password

#: The forms of the setting ``url``.
_SERVICES = "write unix:///PATH or https://HOST:PORT"


def service(raw: str) -> str:
    """Return the URL of the HTTP service. Plain HTTP is accepted only on this machine: a token must not be readable.

    Raises:
        BadRequest: *raw* is no such URL.

    """
    from urllib.parse import urlsplit  # noqa: PLC0415 - only for a client of the service

    try:
        parts = urlsplit(raw)
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise BadRequest(f"{brief(without_password(raw))} is no URL of a service: {_SERVICES}") from None
    if parts.username is not None or parts.query or parts.fragment:
        raise BadRequest(f"the URL of a service has no password and no parameters: {_SERVICES}")
    if parts.scheme == "unix" and not parts.netloc and parts.path.startswith("/"):
        return raw
    if parts.scheme == "https" and host:
        return raw.rstrip("/")
    if parts.scheme == "http" and host in {"localhost", "127.0.0.1", "::1"}:
        return raw.rstrip("/")
    if parts.scheme == "http":
        raise BadRequest("plain HTTP shows the access token to the network: write https://")
    other = ". The address of a store belongs in redis_url" if parts.scheme in {"redis", "rediss"} else ""
    raise BadRequest(f"{brief(without_password(raw))} is no URL of a service: {_SERVICES}{other}")


def store_of_hosts(raw: str) -> str:
    """Return the URL of the store as other hosts reach it. No message shows its password.

    Raises:
        BadRequest: *raw* is no such URL.

    """
    from urllib.parse import urlsplit  # noqa: PLC0415 - only on the host of the service

    shown = brief(without_password(raw))
    try:
        parts = urlsplit(raw)
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise BadRequest(f"{shown} is no address of a store: write rediss://USER:PASSWORD@HOST:PORT/0") from None
    if parts.scheme not in {"redis", "rediss"} or not host:
        raise BadRequest(f"other hosts cannot reach a store at {shown}: write rediss://USER:PASSWORD@HOST:PORT/0")
    return raw
