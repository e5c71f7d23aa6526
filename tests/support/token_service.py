"""The real service with a fixed table of access tokens, in a process of its own.

python token_service.py SOCKET PORT CERTIFICATE KEY TOKEN=NAME:UID...
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpuqueue.errors import NotAuthenticated
from gpuqueue.model.caller import ALL_SCOPES, Caller, Via
from gpuqueue.service.callers import Credentials, SocketIdentity
from gpuqueue.service.server import Listen, serve
from gpuqueue.settings.settings import Settings


class TableIdentity:
    """Knows the peers of the socket, and the tokens of a table."""

    def __init__(self, table: dict[str, tuple[str, int]]) -> None:
        self._table, self._peers = table, SocketIdentity()

    def caller(self, credentials: Credentials) -> Caller:
        """Return the caller."""
        if credentials.peer is not None:
            return self._peers.caller(credentials)
        token = (credentials.authorization or "").removeprefix("Bearer ")
        if token not in self._table:
            raise NotAuthenticated("no such token")
        name, uid = self._table[token]
        return Caller(
            account=name,
            uid=uid,
            via=Via.TOKEN,
            scopes=ALL_SCOPES,
            superuser=uid == 0,
            token_id=token,
            address=credentials.address,
        )

    @contextmanager
    def change(self, caller: Caller, action: str, jobs: tuple[str, ...]) -> Iterator[None]:
        """Write the change to standard error, where tests may read it."""
        print(f"{caller.account} {action} {' '.join(jobs)}", file=sys.stderr, flush=True)  # noqa: T201
        yield


def main(words: list[str]) -> None:
    """Serve until a signal."""
    path, port, certificate, key, *tokens = words
    table = {}
    for each in tokens:
        token, _, account = each.partition("=")
        name, _, uid = account.partition(":")
        table[token] = (name, int(uid))
    listen = Listen(path=Path(path), host="127.0.0.1", port=int(port), certificate=Path(certificate), key=Path(key))
    serve(Settings.load(), TableIdentity(table), listen, lambda: print("ready", flush=True))  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1:])
