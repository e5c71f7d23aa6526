"""What the devices of a site can give a job that is alone there, for ``--mem auto``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
from factories import make_device, make_offer, make_spec, serve

from gpuqueue.client.connection import Connection
from gpuqueue.client.memory import most_for
from gpuqueue.model.device import DeviceFilter, DeviceKind
from gpuqueue.model.placement import Placement
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.queue.lease import ExternalProcess, Offer
from gpuqueue.settings.settings import Settings
from gpuqueue.text.units import GIB

NOTEBOOK = ExternalProcess(pid=1, held_bytes=3 * GIB, user="eve", command="python", counted_bytes=4 * GIB)


def card(uuid: str, gib: int, kind: DeviceKind = DeviceKind.GPU, **changes: Any) -> Offer:
    """Return the offer of a card of so many GiB."""
    return make_offer(uuid, device=replace(make_device(uuid, total_bytes=gib * GIB), kind=kind), **changes)


@pytest.fixture
def connection(queue: JobQueue) -> Iterator[Connection]:
    """Return a connection to a site with five cards and a CPU."""
    serve(
        queue,
        card("GPU-0", 8, pool="main", headroom_bytes=GIB // 2),
        card("GPU-1", 8, pool="main", headroom_bytes=GIB // 2),
        card("GPU-2", 24, pool="main", host="nodeB", external_bytes=5 * GIB, external_processes=(NOTEBOOK,)),
        card("GPU-3", 4, pool="main", host="nodeB"),
        card("GPU-4", 80, host="nodeC", pool="big"),
        card("cpu-nodeC", 500, DeviceKind.CPU, host="nodeC"),
    )
    with closing(Connection(Settings.load({"GPUQUEUE_REDIS_URL": queue.url}))) as opened:
        yield opened


@pytest.mark.parametrize(
    ("wanted", "most_gib"),
    [
        ({}, 80),
        ({"pool": "main"}, 23),  # an external process may end; the other GiB of nodeB's card is the driver's own
        ({"gpus": 2}, 7.5),  # of the host whose second largest card is larger
        ({"placement": Placement(devices=("GPU-0",)), "device": DeviceFilter.ANY}, 7.5),
        ({"gpus": 3}, None),
        ({"device": DeviceFilter.CPU}, None),
        ({"placement": Placement(models=("b200",))}, None),
    ],
)
def test_it_is_what_the_best_host_gives(connection: Connection, wanted: dict[str, Any], most_gib: float | None) -> None:
    """Counted are the devices that the job may use, on the host that gives most. A CPU has no device memory."""
    most_bytes = most_for(connection, make_spec(**wanted))

    assert most_bytes == (None if most_gib is None else most_gib * GIB)


def test_a_store_that_does_not_answer_gives_no_number_and_no_error() -> None:
    assert most_for(Connection(Settings.load({"GPUQUEUE_REDIS_URL": "unix:///nowhere"})), make_spec()) is None
