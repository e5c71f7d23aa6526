"""What the tests of the queue share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from gpuqueue.queue.connect import connect
from gpuqueue.queue.jobqueue import JobQueue


@pytest.fixture
def store(queue: JobQueue) -> Iterator[redis.Redis]:
    """Return a bare connection to the store of the queue."""
    client = connect(queue.url)
    yield client
    client.close()
