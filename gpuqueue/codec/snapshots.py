"""Stored snapshots as plain values, for ``--json``."""

from __future__ import annotations

from gpuqueue.codec.text import Plain, iso
from gpuqueue.model.code_snapshot import StoredSnapshot


def stored_snapshot_to_plain(found: StoredSnapshot) -> Plain:
    """Return *found* as plain values."""
    return {
        "address": found.address,
        "files": found.files,
        "size_bytes": found.size_bytes,
        "used_at": iso(found.used_at),
        "jobs": list(found.jobs),
    }
