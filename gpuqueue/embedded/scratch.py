"""A store for as long as one computes with it: on no disk, and gone with whoever started it."""

from __future__ import annotations

import contextlib
import ctypes
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from gpuqueue.embedded.store import START_TIMEOUT_S, find_server
from gpuqueue.errors import GpuQueueError, StoreLoading, StoreUnreachable
from gpuqueue.queue.jobqueue import JobQueue

PR_SET_PDEATHSIG = 1


@contextlib.contextmanager
def scratch_store() -> Iterator[str]:
    """Start a store, yield its address, and end it. It dies with this thread, however that ends.

    Raises:
        GpuQueueError: no server was found, or it did not come up.

    """
    libc = ctypes.CDLL(None)
    directory = Path(tempfile.mkdtemp(prefix="gpuqueue-scratch-"))  # short: it holds a socket
    where = ("--port", "0", "--unixsocket", str(directory / "s"), "--unixsocketperm", "700", "--dir", str(directory))
    try:
        server = subprocess.Popen(
            [str(find_server()), *where, "--save", "", "--appendonly", "no", "--maxmemory-policy", "noeviction"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for us: we end it
            preexec_fn=lambda: libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0),  # noqa: PLW1509 - one call of C
        )
        try:
            url = f"unix://{directory / 's'}"
            _wait_for(url, server)
            yield url
        finally:
            server.kill()  # there is nothing to save
            server.wait()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _wait_for(url: str, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    queue = JobQueue(url)
    try:
        while server.poll() is None and time.monotonic() < deadline:
            with contextlib.suppress(StoreUnreachable, StoreLoading):
                queue.epoch()
                return
            time.sleep(0.005)
    finally:
        queue.close()
    raise GpuQueueError("a store to compute with did not come up: is there room in the temporary directory?")
