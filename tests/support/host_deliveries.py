"""A worker host that is not the host of the service, and what it has delivered there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_relay import FakeRelay
from service_fixtures import ServedSite

from gpuqueue.client import Client
from gpuqueue.model.job import Job


@pytest.fixture
def owner(served: ServedSite) -> Iterator[Client]:
    """Return a client of this account. Nothing is open."""
    with served.client("direct") as direct:
        for each in direct.jobs.list():
            direct.jobs.cancel(each.id)
    with served.client("unix") as client:
        yield client


@pytest.fixture
def relay(served: ServedSite, owner: Client) -> FakeRelay:  # noqa: ARG001 - nothing is open
    """Return a worker host that is not the host of the service."""
    return FakeRelay(served)


def submitted(client: Client) -> Job:
    """Submit a job."""
    return client.jobs.submit(["true"], mem="1M", env={})


def delivered(site: ServedSite, job: Job) -> Path:
    """Return the directory with what was delivered of the one run of *job*."""
    (found,) = (site.settings.delivered_dir / str(job.id)).iterdir()
    return found
