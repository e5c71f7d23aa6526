"""The page's answer to "is there room for this?" counts the runs and the reservations that the queue has."""

from __future__ import annotations

import json
import shutil
import subprocess
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from factories import make_device, make_offer, make_spec, serve, submit

from gpuqueue.clock import from_epoch_ms
from gpuqueue.codec.wire import to_plain
from gpuqueue.model.run import RunDevice
from gpuqueue.queue.drains import DrainOrigin
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.queue.lease import Offer
from gpuqueue.queue.requests import new_nonce
from gpuqueue.service.web.queue_copy import place_of
from gpuqueue.service.web.rows import device_view, rows_of
from gpuqueue.text.units import GIB

ROOT = Path(__file__).parents[3]
HOUR_S = 3600.0


def running(queue: JobQueue, offer: Offer, mem_bytes: int, time_limit_s: float | None) -> int:
    """Start a job on a device."""
    queue.requests.submit(make_spec(mem_bytes=mem_bytes, time_limit_s=time_limit_s))
    found = queue.runs.claim(offer, worker=f"worker-{offer.device.uuid}", lease_s=300, nonce=new_nonce())
    device = RunDevice(uuid=offer.device.uuid, lease_bytes=mem_bytes)
    queue.runs.started(found.job_id, found.token, lease_s=300, log_path="/log", devices=(device,))
    return found.job_id


def answers(queue: JobQueue, *questions: tuple[int, int]) -> list[dict[str, Any]]:
    """Return what the page says of room for a job with so many bytes on so many devices."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("no Node.js to run the page's modules with")
    listing = queue.jobs.some(queue.jobs.ids(limit=99))
    rows = rows_of(listing)
    devices = [device_view(each, rows, listing.at, silent_after_s=99) for each in queue.devices.all()]
    text = json.dumps({"devices": to_plain(devices), "questions": questions})
    script = ROOT / "tests" / "unit" / "service" / "web" / "room_of_the_page.mjs"
    done = subprocess.run([node, script], input=text, capture_output=True, text=True, check=True)
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("time_limit_s", [2 * HOUR_S, None])
def test_a_reserved_job_takes_its_room_first(queue: JobQueue, time_limit_s: float | None) -> None:
    """A job that needs reserved room or several devices goes after it; a small one may start beside it."""
    # Regression: the page named the time at which the reserved job takes the room, here and on the job's own page.
    device = make_device("GPU-1", index=1, total_bytes=80 * GIB)
    large = make_offer("GPU-1", device=device, headroom_bytes=GIB)
    serve(queue, make_offer(headroom_bytes=GIB), large)
    first = running(queue, large, 50 * GIB, 6 * HOUR_S)
    running(queue, large, 18 * GIB, 3 * HOUR_S)
    reserved = submit(queue, mem_bytes=40 * GIB, time_limit_s=time_limit_s)
    assert [reserved] == [each.job_id for each in queue.maintenance.reserve(after_s=0, most=1)]

    whole, twice, beside = answers(queue, (70 * GIB, 1), (18 * GIB, 2), (20 * GIB, 1))

    assert [None, reserved] == [each["after"] for each in whole["rooms"]]
    first_ends = queue.jobs.some([first]).jobs[0].started_at
    assert first_ends is not None
    until = first_ends + timedelta(hours=8)
    known = time_limit_s is not None
    for each in (whole, twice):
        at = each["rooms"][1]["at"]
        assert (at is not None) == known
        assert not known or abs(at / 1000 - until.timestamp()) < 120
        assert f"after job {reserved}, for which a device there is reserved" in each["words"]
    assert 0 == twice["rooms"][0]["at"]
    assert abs(beside["rooms"][1]["at"] / 1000 - (first_ends + timedelta(hours=3)).timestamp()) < 120
    assert "yes" == beside["is"]


def test_the_room_that_the_reserved_job_takes_is_no_room_for_the_jobs_behind_it(queue: JobQueue) -> None:
    offer = make_offer(headroom_bytes=GIB)
    serve(queue, offer)
    running(queue, offer, 20 * GIB, HOUR_S)
    reserved = submit(queue, mem_bytes=15 * GIB, time_limit_s=HOUR_S)
    assert [reserved] == [each.job_id for each in queue.maintenance.reserve(after_s=0, most=1)]
    found = queue.jobs.why(submit(queue, mem_bytes=20 * GIB))
    assert reserved == found.start.behind
    assert (1, (), None) == (place_of(found).ahead, place_of(found).runs, place_of(found).start_at)
    own = queue.jobs.why(reserved)
    assert own is not None
    assert place_of(own).start_at is not None


def test_there_is_no_room_on_a_device_after_its_end(queue: JobQueue) -> None:
    offer = make_offer(headroom_bytes=GIB)
    serve(queue, offer)
    running(queue, offer, 20 * GIB, HOUR_S)
    end_at = from_epoch_ms(queue.now_ms())
    drain = partial(queue.devices.drain, ["GPU-0"], origin=DrainOrigin.PERSON, why="", by="ada")

    drain(begins_at=end_at + timedelta(hours=2))
    before, now = answers(queue, (20 * GIB, 1), (2 * GIB, 1))
    drain(begins_at=end_at + timedelta(minutes=30))
    (after,) = answers(queue, (20 * GIB, 1))

    assert (True, 0, None) == (before["rooms"][0]["at"] > 0, now["rooms"][0]["at"], after["rooms"][0]["at"])
