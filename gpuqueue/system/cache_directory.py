"""The directory for caches of one user: what programs can make again."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def cache_directory(environ: Mapping[str, str] | None = None) -> Path:
    """Return the directory of gpuqueue's caches of this user, whether or not it exists."""
    environ = os.environ if environ is None else environ
    home = environ.get("XDG_CACHE_HOME", "")
    if not home.startswith("/"):  # the rule of XDG for a path that is not absolute
        home = os.path.expanduser("~/.cache")  # noqa: PTH111 - as in the settings
    return Path(home) / "gpuqueue"
