"""Parses the URL of a store. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

#: Host and port if the URL does not name them.
HOST, PORT = "localhost", 6379
#: Maximum number of digits of a database number.
MOST_DIGITS = 9

#: URL parameters that this client supports: for all connections, and for TLS only.
_PLAIN = frozenset({"db", "username", "password", "client_name"})
_TLS = frozenset({"ssl_ca_certs", "ssl_ca_path", "ssl_certfile", "ssl_keyfile", "ssl_password"})
#: A host name that needs no encoding before the lookup.
_HOST_NAME = r"[A-Za-z0-9_.:-]{1,253}"


class Address(NamedTuple):
    """The address of a store, and the credentials. One of ``path`` (of a unix socket) and ``host`` is empty."""

    path: str
    host: str
    port: int
    user: str
    password: str
    database: int
    client_name: str
    #: The TLS parameters of the URL; None without TLS.
    tls: Mapping[str, str] | None


def parsed(url: str) -> Address | None:
    """Return the address in *url*, or None if *url* has anything that this client does not support."""
    try:
        parts = urlsplit(url)
        port = parts.port or PORT
        given = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError:
        return None
    words = dict(given)
    tls = parts.scheme == "rediss"
    known = _PLAIN | _TLS if tls else _PLAIN
    path = unquote(parts.path)
    database = words.get("db", "0" if parts.scheme == "unix" else path.strip("/") or "0")
    if (
        parts.scheme not in {"redis", "rediss", "unix"}
        or not known.issuperset(words)
        or len(words) < len(given)  # a repeated parameter
        or not all(words.values())
        or parts.fragment
        or not (database.isascii() and database.isdecimal() and len(database) <= MOST_DIGITS)
    ):
        return None
    user = unquote(parts.username or "") or words.get("username", "")
    password = unquote(parts.password or "") or words.get("password", "")
    is_local = parts.scheme == "unix"
    host = "" if is_local else unquote(parts.hostname or HOST)
    if (user and not password) or (is_local and not path) or not (is_local or re.fullmatch(_HOST_NAME, host)):
        return None
    return Address(
        path=path if is_local else "",
        host=host,
        port=port,
        user=user,
        password=password,
        database=int(database),
        client_name=words.get("client_name", ""),
        tls={name: words[name] for name in _TLS & set(words)} if tls else None,
    )
