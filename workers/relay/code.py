"""Fetches the code that came with a job from the service, for a worker on another host."""

from __future__ import annotations

import os
import threading
from contextlib import closing
from pathlib import Path
from typing import IO

from gpuqueue.settings.settings import Settings
from gpuqueue.snapshot.errors import InvalidManifest, UnpackFailed
from gpuqueue.snapshot.manifest import ACCEPTED_BEFORE, address_of, read_manifest
from gpuqueue.snapshot.stream import StreamReader
from workers.relay.link import CHUNK_BYTES, Download, Link

#: Longest silence of the service while it sends the code, and longest time for all of it, in seconds. The device is
#: reserved for the job meanwhile.
SILENCE_S, TOTAL_S = 20.0, 600.0


class Stopped(Exception):
    """The worker is to stop before the code has arrived."""


def fetch_code(settings: Settings, job_id: int, address: str, path: Path, stopping: threading.Event) -> None:
    """Write the code of the job *job_id* into the new file *path*: the stream of the snapshot at *address*.

    The manifest is checked here, and the length of the whole stream. The contents of the files are checked by the
    job's first process.

    Raises:
        Refusal: The service has no code for this job and host.
        ServiceAway: The service does not answer, or sends too slowly.
        BadRequest: The token or the certificate on this host cannot be used.
        InvalidManifest: The manifest is that of another snapshot.
        UnpackFailed: The stream is too short or too long.
        Stopped: *stopping* is set.
        OSError: The file cannot be written.

    """
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)  # other accounts may enter
    with (
        open(fd, "wb", buffering=CHUNK_BYTES) as file,  # noqa: PTH123 - a descriptor
        closing(Link(settings, silence_s=SILENCE_S)) as link,
        link.download(f"/jobs/{job_id}/code", total_s=TOTAL_S) as download,
    ):
        source = _Copied(download, file, stopping)
        text = StreamReader(source).text
        if address_of(text) != address:
            raise InvalidManifest("the service sends the code of another job")
        left_bytes = sum(read_manifest(text, ACCEPTED_BEFORE).blobs().values())
        while left_bytes:
            part = source.read(min(left_bytes, CHUNK_BYTES))
            if not part:
                raise UnpackFailed("the snapshot was cut short on its way")
            left_bytes -= len(part)
        if source.read(1):
            raise UnpackFailed("the service sends more than the snapshot has")


class _Copied:
    """A download whose bytes are written into a file as they are read."""

    def __init__(self, download: Download, file: IO[bytes], stopping: threading.Event) -> None:
        self._download = download
        self._file = file
        self._stopping = stopping

    def read(self, size: int, /) -> bytes:
        """Return at most *size* bytes, none at the end."""
        if self._stopping.is_set():
            raise Stopped
        part = self._download.read(size)
        self._file.write(part)
        return part
