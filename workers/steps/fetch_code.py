"""The third step: puts the code that came with the job into the run directory, where the first process unpacks it."""

from __future__ import annotations

import logging
import os
import threading
from pathlib import Path
from typing import Any

from gpuqueue.errors import GpuQueueError
from gpuqueue.model.code_snapshot import CodeSnapshot
from gpuqueue.queue.evidence import NO_EVIDENCE
from gpuqueue.settings.settings import Settings
from workers.measure.active_runs import LiveRun
from workers.shim.code import BUNDLE
from workers.steps.conclusion import NotStarted

log = logging.getLogger(__name__)


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
        """Fetch the code from the service. If that fails for another reason than the job, this host is in trouble."""
        from workers.relay.code import Stopped, fetch_code  # noqa: PLC0415 - few jobs need it, and it imports ssl
        from workers.relay.link import Refusal  # noqa: PLC0415 - as above

        try:
            fetch_code(self._settings, job_id, address, path, self._stopping)
        except Stopped:
            raise NotStarted("the worker stops") from None
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
        from gpuqueue.snapshot.manifest import ACCEPTED_BEFORE, read_manifest  # noqa: PLC0415
        from gpuqueue.snapshot.site import blob_store_of  # noqa: PLC0415
        from gpuqueue.snapshot.stream import write_stream  # noqa: PLC0415

        store = blob_store_of(self._settings)
        manifest = read_manifest(store.manifest_text(address), ACCEPTED_BEFORE)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)  # other accounts may enter
        with open(fd, "wb") as file:  # noqa: PTH123 - a descriptor
            file.writelines(write_stream(manifest, store.content))


def unpacking(snapshot: CodeSnapshot, directory: Path) -> dict[str, Any]:
    """Return how the shim unpacks *snapshot* into *directory*: the arguments of :func:`workers.shim.code.unpack`.

    The limits are not those of the site: the service has accepted the manifest, and the address is its hash.
    """
    from gpuqueue.snapshot.manifest import ACCEPTED_BEFORE  # noqa: PLC0415 - few jobs need it

    return {
        "directory": str(directory),
        "address": snapshot.address,
        "cwd": snapshot.directory,
        "limits": {
            "total_bytes": ACCEPTED_BEFORE.total_bytes,
            "file_bytes": ACCEPTED_BEFORE.file_bytes,
            "files": ACCEPTED_BEFORE.files,
        },
    }
