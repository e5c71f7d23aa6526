"""The group whose members may run jobs on this machine, as ``gpuqueue install`` has recorded it."""

from __future__ import annotations

import json
from pathlib import Path

#: The record of what ``gpuqueue install`` or ``gpuqueue join`` has made. Everybody may read it.
INSTALLED = Path("/etc/gpuqueue/installed.json")


def users_group() -> str | None:
    """Return the group, or None if gpuqueue was not installed here with one, or the record is damaged."""
    try:
        found = json.loads(INSTALLED.read_text(encoding="utf-8"))["group"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found if isinstance(found, str) else None
