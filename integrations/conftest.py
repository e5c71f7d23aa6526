"""What the tests of all plug-ins share: a real queue that this process uses, as a user's program does."""

from __future__ import annotations

import pytest
from site_of_one import Site


@pytest.fixture
def running_queue(site: Site, monkeypatch: pytest.MonkeyPatch) -> Site:
    """Return a queue with a recorder and a worker of one simulated GPU. ``Client()`` in this process uses it."""
    for name, value in site.environ.items():
        if name.startswith("GPUQUEUE_"):
            monkeypatch.setenv(name, value)
    site.start_recorder()
    site.start_worker()
    return site
