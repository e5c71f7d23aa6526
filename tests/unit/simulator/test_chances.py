"""Tests of what a device might get in a replay."""

from __future__ import annotations

from gpuqueue.simulator.chances import Chances
from gpuqueue.simulator.moments import Moments
from gpuqueue.simulator.replay import Placement
from gpuqueue.simulator.site import Site
from gpuqueue.simulator.trace import Request
from gpuqueue.text.units import GIB


def job(number: int, mem: int, *, gpus: int = 1) -> Request:
    """Return a request for *mem* GiB on each device."""
    return Request(number=number, arrival_s=0, user="ann", mem_bytes=mem * GIB, gpus=gpus, duration_s=60)


def asking(chances: Chances) -> list[int]:
    """Return the devices that might get something, and let each get nothing."""
    found = [place for place in range(3) if chances.might_get_something(place)]
    for place in found:
        chances.got_nothing(place)
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


def test_the_times_of_a_started_job_are_forgotten() -> None:
    """A time counts while its job waits."""
    waiting = {1, 2}
    moments = Moments(waiting)
    moments.add(5.0, 1)
    moments.add(9.0, 2)
    waiting.remove(1)

    assert 9.0 == moments.first_s()
    assert not moments.pass_until(8.0)
    assert moments.pass_until(9.0)


def test_with_limits_every_run_concerns_every_device() -> None:
    """A run that begins can put a reservation in vain, and one that ends gives its user's limit room anywhere."""
    chances = Chances(Site.parse("3x24G", slots=8), has_limits=True)
    run = Placement(request=job(0, 2), cards=(0,), start_s=0)
    for request in (run.request, job(1, 4)):
        chances.arrive(request)
    asking(chances)

    chances.start(run, 1)
    assert [0, 1, 2] == asking(chances)
    chances.leave(run)
    assert [0, 1, 2] == asking(chances)
