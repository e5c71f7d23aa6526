"""What the tests of all plug-ins share: a real queue that this process uses, as a user's program does."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from own_store import running_store
from site_of_one import Site


@pytest.fixture(scope="module")
def queue_of_module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Return a queue with a recorder and a worker of one simulated GPU, for all tests of a file."""
    with pytest.MonkeyPatch.context() as clean, running_store() as store:
        for name in [each for each in os.environ if each.startswith("GPUQUEUE_")]:
            clean.delenv(name)
        clean.setenv("GPUQUEUE_CONFIG", os.devnull)
        site = Site(tmp_path_factory.mktemp("queue") / "state", store.url)
        try:
            site.start_recorder()
            site.start_worker()
            yield site
        finally:
            site.stop()


@pytest.fixture
def running_queue(queue_of_module: Site, monkeypatch: pytest.MonkeyPatch) -> Site:
    """Return the queue of the file. ``Client()`` in this process uses it, and so do programs that it starts."""
    for name, value in queue_of_module.environ.items():
        if name.startswith("GPUQUEUE_"):
            monkeypatch.setenv(name, value)
    return queue_of_module
