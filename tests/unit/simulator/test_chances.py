"""Tests of what a device might get in a replay."""

from __future__ import annotations

from gpuqueue.simulator.ours import Chances, Moments
from gpuqueue.simulator.replay import Placement
from gpuqueue.simulator.site import Site
from gpuqueue.simulator.trace import Request
from gpuqueue.text.units import GIB


def job(number: int, mem: int, *, gpus: int = 1) -> Request:
    """Return a request for *mem* GiB on each device."""
    return Request(number=number, arrival_s=0, user="ann", mem_bytes=mem * GIB, gpus=gpus, duration_s=60)


def asking(chances: Chances) -> list[int]:
    """Return the devices that might get something, and let each get nothing."""
    found = [place for place in range(3) if chances.might_start_any(place)]
    for place in found:
        chances.started_none(place)
    return found


def test_a_device_claims_again_only_if_something_changed() -> None:
    """After a claim that found nothing, a device claims again when a job arrives that fits, or when its run ends."""
    chances = Chances(Site.parse("2x24G,12G", slots=8), has_limits=False)
    large, small = job(0, 20), job(1, 10)
    chances.arrive(large)
    assert [0, 1] == asking(chances)
    assert [] == asking(chances)

    chances.arrive(small)
    assert [0, 1, 2] == asking(chances)
    run = Placement(request=large, cards=(0,), start_s=0)
    chances.start(run, 1)
    chances.leave(run)
    assert [0] == asking(chances)


def test_a_job_on_two_devices_concerns_both() -> None:
    """When one device has room for a job on two, the other one might get it too, unless it is reserved for a job."""
    chances = Chances(Site.parse("2x24G/24G", slots=8), has_limits=False)
    run, pair = Placement(request=job(0, 20), cards=(0,), start_s=0), job(1, 20, gpus=2)
    for request in (run.request, pair):
        chances.arrive(request)
    chances.start(run, 1)
    asking(chances)

    chances.leave(run)
    assert [0, 1] == asking(chances)
    chances.reserve({"sim-host0-1": "9:1:0:"}, {9: job(8, 24)})
    asking(chances)
    chances.leave(Placement(request=job(2, 0), cards=(0,), start_s=0))
    assert [0] == asking(chances)


def test_the_times_of_a_started_job_do_not_matter() -> None:
    """A time matters while its job waits, or if it is of no job."""
    waiting = {1, 2}
    moments = Moments(waiting)
    for moment_s, job_id in ((5.0, 1), (9.0, 2), (11.0, 0)):
        moments.add(moment_s, job_id)
    waiting.remove(1)

    assert not moments.pass_until(8.0)
    assert 9.0 == moments.first_s()
    assert moments.pass_until(9.0)
    assert moments.pass_until(11.0)


def test_with_limits_every_device_with_room_claims_each_time() -> None:
    """With limits a claim can drop a reservation, so none is left out except those of full devices."""
    chances = Chances(Site.parse("2x24G,4G", slots=8), has_limits=True)
    chances.arrive(job(0, 10))

    assert [0, 1] == asking(chances)
    assert [0, 1] == asking(chances)
