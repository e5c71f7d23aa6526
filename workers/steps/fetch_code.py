"""The third step: puts the code that came with the job into the run directory, where the first process unpacks it."""

from __future__ import annotations

import logging
import os
import threading
from contextlib import closing
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from gpuqueue.errors import GpuQueueError
from gpuqueue.model.code_snapshot import CodeSnapshot
from gpuqueue.queue.evidence import NO_EVIDENCE
from gpuqueue.settings.settings import Settings
from workers.measure.active_runs import LiveRun
from workers.shim.code import BUNDLE
from workers.steps.conclusion import NotStarted

if TYPE_CHECKING:
    from workers.relay.link import Download

log = logging.getLogger(__name__)

#: Longest silence of the service while it sends the code, and longest time for all of it, in seconds. The device is
#: reserved for the job meanwhile.
SILENCE_S, TOTAL_S = 20.0, 600.0


class FetchCode:
    """Fetches the code of one worker's runs."""

    def __init__(self, settings: Settings, stopping: threading.Event) -> None:
        self._settings = settings
        self._stopping = stopping

    def fetch(self, run: LiveRun) -> LiveRun:
        """Return *run* once its code is in its directory.

        Raises:
            NotStarted: This host cannot get the code, or has no room for it.

        """
        if run.spec is None or run.spec.snapshot is None:
            return run
        snapshot = CodeSnapshot.parse(run.spec.snapshot)
        try:
            if self._settings.service_url is None:
                self._copy(snapshot.address, run.directory.path / BUNDLE)
            else:
                self._fetch(run.held.job_id, snapshot.address, run.directory.path / BUNDLE)
        except OSError as error:
            raise NotStarted(f"the job's code cannot be copied: {error.strerror}", host_failed=True) from error
        return run

    def _fetch(self, job_id: int, address: str, path: Path) -> None:
        """Fetch the code from the service. If that fails for another reason than the job, this host is in trouble.

        The manifest is checked here, and the length of the whole stream. The contents of the files are checked by the
        job's first process.
        """
        # These take a while to import, and few jobs need them.
        from gpuqueue.files.errors import InvalidManifest, UnpackFailed  # noqa: PLC0415
        from gpuqueue.files.manifest import ACCEPTED_BEFORE, StreamReader, address_of, read_manifest  # noqa: PLC0415
        from workers.relay.link import CHUNK_BYTES, Link, Refusal  # noqa: PLC0415

        try:
            with (
                open(_new_file(path), "wb", buffering=CHUNK_BYTES) as file,
                closing(Link(self._settings, silence_s=SILENCE_S)) as link,
                link.download(f"/jobs/{job_id}/code", total_s=TOTAL_S) as download,
            ):
                source = _Copied(download, file, self._stopping)
                stream = StreamReader(source)
                if address_of(stream.text) != address:
                    raise InvalidManifest("the service sends the code of another job")
                for _ in stream.blob(sum(read_manifest(stream.text, ACCEPTED_BEFORE).blobs().values())):
                    pass
                if source.read(1):
                    raise UnpackFailed("the service sends more than the snapshot has")
        except Refusal as error:
            raise NotStarted(f"the service has no code for this host: {error}", host_lacks=NO_EVIDENCE) from error
        except GpuQueueError as error:
            raise NotStarted(f"the job's code cannot be fetched: {error}", host_failed=True) from error

    def _copy(self, address: str, path: Path) -> None:
        """Write the code from the snapshots of this host."""
        try:
            self._write(address, path)
        except GpuQueueError as error:
            log.info("the code at %s is not here: %s", address, error)
            reason = "this host has no copy of the job's code, and no service to fetch it from (gpuqueue join)"
            raise NotStarted(reason, host_lacks=NO_EVIDENCE) from error

    def _write(self, address: str, path: Path) -> None:
        # These take a while to import, and few jobs need them.
        from gpuqueue.files.blob_store import blob_store_of  # noqa: PLC0415
        from gpuqueue.files.manifest import ACCEPTED_BEFORE, read_manifest, write_stream  # noqa: PLC0415

        store = blob_store_of(self._settings)
        manifest = read_manifest(store.manifest_text(address), ACCEPTED_BEFORE)
        with open(_new_file(path), "wb") as file:
            file.writelines(write_stream(manifest, store.content))


def _new_file(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)  # other accounts may enter


class _Copied:
    """A download whose bytes are written into a file as they are read."""

    def __init__(self, download: Download, file: IO[bytes], stopping: threading.Event) -> None:
        self._download = download
        self._file = file
        self._stopping = stopping

    def read(self, size: int, /) -> bytes:
        """Return at most *size* bytes, none at the end."""
        if self._stopping.is_set():
            raise NotStarted("the worker stops")
        part = self._download.read(size)
        self._file.write(part)
        return part


def unpacking(snapshot: CodeSnapshot, directory: Path) -> dict[str, Any]:
    """Return how the shim unpacks *snapshot* into *directory*: the arguments of :func:`workers.shim.code.unpack`."""
    return {"directory": str(directory), "address": snapshot.address, "cwd": snapshot.directory}
