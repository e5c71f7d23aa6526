"""The snapshots of one site: where they are kept, and how large they may be."""

from __future__ import annotations

from pathlib import Path

from gpuqueue.settings.settings import Settings
from gpuqueue.snapshot.blob_store import BlobStore
from gpuqueue.snapshot.limits import Limits


def directory_of(settings: Settings) -> Path:
    """Return the directory of this host's snapshots."""
    return settings.state_dir / "snapshots"


def blob_store_of(settings: Settings) -> BlobStore:
    """Return the blob store of this host's snapshots.

    Raises:
        GpuQueueError: its directory belongs to another account, or cannot be made.

    """
    return BlobStore(directory_of(settings))


def limits_of(settings: Settings) -> Limits:
    """Return the limits that the settings give."""
    return Limits(
        total_bytes=settings.snapshot_limit_bytes,
        file_bytes=settings.snapshot_file_limit_bytes,
        files=settings.snapshot_files,
    )
