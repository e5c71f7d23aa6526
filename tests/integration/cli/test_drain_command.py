"""The ``drain`` and ``resume`` commands, and the same in Python."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from bounded import until
from factories import make_device, make_offer, serve
from site_of_one import Site

from gpuqueue.cli.output.devices import going_on
from gpuqueue.errors import BadRequest
from gpuqueue.model.job import JobState
from gpuqueue.system.account import current_account

ME = current_account("h").name


@pytest.fixture
def two(store_url: str, tmp_path: Path) -> Iterator[Site]:
    """Return a site with two small devices and no worker."""
    made = Site(tmp_path / "state", store_url, GPUQUEUE_DEVICES="sim:2x1G")
    yield made
    made.stop()


def announce(site: Site) -> None:
    """Register two devices of this host and one of another host."""
    for index in (0, 1):
        device = make_device(f"sim-{site.settings.host}-{index}", index=index)
        serve(site.queue, make_offer(device.uuid, device=device, host=site.settings.host))
    serve(site.queue, make_offer("GPU-far", host="far"))


@pytest.mark.parametrize(("jobs", "words"), [((), ""), ((4,), "; job 4 goes on"), ((4, 5), "; jobs 4, 5 go on")])
def test_running_jobs_are_named(jobs: tuple[int, ...], words: str) -> None:
    """The running jobs are listed with correct grammar. The text used to be "job 94, 95, 96 goes on"."""
    assert words == going_on(jobs, {})


def test_a_drained_device_takes_no_new_job_and_its_running_one_goes_on(two: Site, tmp_path: Path) -> None:
    """With a real worker a drained device finishes its job and takes no other until it is resumed.

    The worker's log reports both changes.
    """
    two.start_recorder()
    two.start_worker("0")
    gate = tmp_path / "gate"
    wait = f"while [ ! -e {gate} ]; do sleep 0.02; done"
    running = int(two.cli("submit", "--mem", "1M", "--", "sh", "-c", wait).stdout)
    two.until_state(running, JobState.RUNNING)

    printed = two.cli("drain", "0", "--reason", "the fan\x1b[31m\n is broken").stdout
    waiting = int(two.cli("submit", "--mem", "1M", "--", "true").stdout)

    uuid = f"sim-{two.settings.host}-0"
    assert f"device 0 of {two.settings.host} ({uuid}): takes no new job; job {running} goes on\n" == printed
    until(lambda: f"{uuid} takes no new job, drained by {ME}: the fan" in two.log(), what="the worker's word")
    table = two.cli("gpus").stdout
    assert f"drained by {ME}\n" in table
    assert f"drained: {two.settings.host} device 0 since 20" in table
    assert f" by {ME}: the fan\ufffd[31m is broken\n" in table
    (device,) = json.loads(two.cli("gpus", "--json").stdout)
    drain = ("person", "the fan\ufffd[31m is broken", ME)
    assert [drain] == [(each["origin"], each["why"], each["by"]) for each in device["drains"]]
    gate.touch()
    assert JobState.SUCCEEDED is two.until_recorded(running).job.state
    assert JobState.QUEUED is two.client.jobs.get(waiting).state  # although the end of the run triggers a claim

    assert f"device 0 of {two.settings.host} ({uuid}): takes jobs again\n" == two.cli("resume", uuid).stdout

    assert JobState.SUCCEEDED is two.until_recorded(waiting).job.state
    until(lambda: f"{uuid} takes jobs again" in two.log(), what="the worker's word")


def test_a_python_program_can_do_the_same(site: Site) -> None:
    """`Client.drain` and `Client.resume` return the changed devices in the order of the names."""
    announce(site)

    drained = site.client.devices.drain("far:0", "1", reason="bytes \udce9 of a wrong encoding")

    assert ["GPU-far", f"sim-{site.settings.host}-1"] == [each.device.uuid for each in drained]
    assert ["bytes \ufffd of a wrong encoding"] * 2 == [each.drained for each in drained]
    assert [None] * 2 == [each.drained for each in site.client.devices.resume("far:0", "1")]
    with pytest.raises(BadRequest):
        site.client.devices.drain("nobody's")
