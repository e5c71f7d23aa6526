"""A temporary store without persistence. It ends with the thread that starts it."""

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

from gpuqueue.embedded.server import find_server
from gpuqueue.embedded.store import START_TIMEOUT_S
from gpuqueue.errors import GpuQueueError, StoreLoading, StoreUnreachable
from gpuqueue.queue.jobqueue import JobQueue

PR_SET_PDEATHSIG = 1


@contextlib.contextmanager
def scratch_store() -> Iterator[str]:
    """Start a store, yield its URL, and end the store. The kernel kills the store if this thread dies.

    Raises:
        GpuQueueError: no server was found, or the server did not start.

    """
    libc = ctypes.CDLL(None)
    directory = Path(tempfile.mkdtemp(prefix="gpuqueue-scratch-"))  # short: the length of a socket's path is limited
    where = ("--port", "0", "--unixsocket", str(directory / "s"), "--unixsocketperm", "700", "--dir", str(directory))
    try:
        server = subprocess.Popen(
            [str(find_server().path), *where, "--save", "", "--appendonly", "no", "--maxmemory-policy", "noeviction"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C must not reach the server, which is ended below
            preexec_fn=lambda: libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0),  # noqa: PLW1509 - a single C call
        )
        try:
            url = f"unix://{directory / 's'}"
            _wait_for(url, server)
            yield url
        finally:
            server.kill()  # no data to save
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
    raise GpuQueueError("the temporary store did not start: is there room in the temporary directory?")
