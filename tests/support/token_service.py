"""The real service in a process of its own, which says on standard output when it is ready.

python token_service.py SOCKET PORT CERTIFICATE KEY [MODULE:CONSTANT=VALUE...]
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path

import known_accounts

from gpuqueue.service.identity.site_identity import SiteIdentity
from gpuqueue.service.server import Listen, serve
from gpuqueue.settings.settings import Settings


def main(words: Sequence[str], ready: Callable[[], None]) -> None:
    """Serve until a signal. *ready* is called once connections are accepted."""
    path, port, certificate, key, *constants = words
    for each in constants:
        place, _, value = each.partition("=")
        module, _, name = place.partition(":")
        setattr(import_module(module), name, _constant(value))
    listen = Listen(path=Path(path), host="127.0.0.1", port=int(port), certificate=Path(certificate), key=Path(key))
    settings = Settings.load()
    known_accounts.know()
    serve(settings, SiteIdentity(settings), listen, ready)


def _constant(text: str) -> float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


if __name__ == "__main__":
    main(sys.argv[1:], lambda: print("ready", flush=True))  # noqa: T201
