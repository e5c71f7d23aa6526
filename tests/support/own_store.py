"""A store of the test's own, which may be killed and lose its data. conftest.py names it in ``pytest_plugins``."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from site_of_one import Site

from gpuqueue.embedded.store import EmbeddedStore
from gpuqueue.queue.connect import connect
from gpuqueue.settings.settings import Settings
from gpuqueue.system.process import ProcessIdentity


class OwnStore:
    """The server that users get, with its data in a directory of the test's own."""

    def __init__(self, home: Path) -> None:
        self.settings = Settings.load({"GPUQUEUE_STATE_DIR": str(home), "GPUQUEUE_CONFIG": os.devnull})
        self.url = self.settings.redis_url
        self._server = EmbeddedStore(self.settings)

    def start(self) -> None:
        """Start the server on the data that is there."""
        self._server.start()

    def kill(self) -> None:
        """Send it SIGKILL and wait for its end."""
        identity = ProcessIdentity.parse((self.settings.state_dir / "store" / "pid").read_text())
        assert identity is not None
        assert identity.send(signal.SIGKILL)
        assert identity.wait(30)

    def remove_data(self) -> None:
        """Delete all data that it has written."""
        shutil.rmtree(self.settings.state_dir / "store")

    def listen(self) -> str:
        """Make it reachable over the network too, and return that address."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        client = connect(self.url)
        client.config_set("port", port)
        client.close()
        return f"redis://127.0.0.1:{port}/0"

    def empty(self) -> None:
        """Delete all keys of the running server."""
        client = connect(self.url)
        client.flushall()
        client.close()

    def stop(self) -> None:
        """Stop it, if it runs."""
        self._server.stop()


@contextmanager
def running_store() -> Iterator[OwnStore]:
    """Run a store, and remove it with its data."""
    home = Path(tempfile.mkdtemp(prefix="gpuqueue-own-"))
    store = OwnStore(home)
    store.start()
    try:
        yield store
    finally:
        store.stop()
        shutil.rmtree(home, ignore_errors=True)


@pytest.fixture
def own_store() -> Iterator[OwnStore]:
    """Return a running store of the test's own."""
    with running_store() as store:
        yield store


@pytest.fixture
def own_site(own_store: OwnStore, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Site]:
    """Return a site whose store may lose its data.

    Its leases are long, so that no run is lost because this machine is busy. A test that waits for the end of a lease
    passes a shorter one as the fixture's parameter.
    """
    made = Site(tmp_path / "state", own_store.url, GPUQUEUE_HOST_LOST_AFTER=getattr(request, "param", "90s"))
    yield made
    made.stop()
