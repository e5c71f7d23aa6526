"""The ``drain`` and ``resume`` commands, and the same in Python."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
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


def test_a_device_with_a_planned_drain_takes_short_jobs_until_then(two: Site) -> None:
    """All see the end, and the job that it keeps waiting names it. At the end the device is drained."""
    two.start_recorder()
    two.start_worker("0")
    uuid = f"sim-{two.settings.host}-0"

    printed = two.cli("drain", two.settings.host, "--at", "90m", "--reason", "new fans").stdout
    short = int(two.cli("submit", "--mem", "1M", "--time", "10m", "--", "true").stdout)
    long = int(two.cli("submit", "--mem", "1M", "--time", "100m", "--", "true").stdout)

    assert printed.startswith(f"device 0 of {two.settings.host} ({uuid}): ends at ")
    assert printed.endswith(", and takes only jobs that are over by then\n")
    assert JobState.SUCCEEDED is two.until_recorded(short).job.state
    table = two.cli("gpus").stdout
    assert "  ends at " in table
    assert f"ends: {two.settings.host} device 0 at 20" in table
    assert f" by {ME}: new fans\n" in table
    (device,) = json.loads(two.cli("gpus", "--json").stdout)
    assert [] == device["drains"]
    assert device["planned_drains"][0]["begins_at"] == device["ends_at"]
    assert "end" == json.loads(two.cli("queue", "--json").stdout)["jobs"][0]["reason"]
    why = two.cli("why", str(long)).stdout
    assert f"not on {two.settings.host}:0: its end comes before the job would be over" in why
    assert "; its time limit is 1:40:00, counted as 2:00:00" in why

    two.cli("drain", uuid, "--at", "1s")
    until(lambda: f"drained by {ME}" in two.cli("gpus").stdout, what="the end")
    assert "drained" == json.loads(two.cli("queue", "--json").stdout)["jobs"][0]["reason"]
    two.cli("resume", two.settings.host)
    assert JobState.SUCCEEDED is two.until_recorded(long).job.state


@pytest.mark.parametrize("at", ["2020-01-01", "yesterday", "now"])
def test_an_end_that_is_over_is_refused(site: Site, at: str) -> None:
    announce(site)

    done = site.cli("drain", "0", "--at", at, check=False)

    assert (BadRequest.exit_code, 1) == (done.returncode, done.stderr.count("\n"))
    assert all(each.ends_at is None and not each.drains for each in site.client.devices.list())


def test_a_reservation_that_cannot_be_used_as_it_is_says_so(site: Site) -> None:
    """A drained device is reserved all the same: it may be resumed. A start that is over is now."""
    announce(site)
    site.cli("drain", "1", "--reason", "the fan")

    made = site.cli("reserve", "0", "1", "--from", "2020-01-01", "--until", "2h")

    (reservation,) = site.client.devices.reservations()
    assert timedelta(hours=2) == reservation.ends_at - reservation.begins_at
    here = site.settings.host
    assert (
        "gpuqueue: '2020-01-01' is over: it is reserved from now on\n"
        f"gpuqueue: not usable as it is now: {here} 1: drained by {ME}\n"
    ) == made.stderr
    assert site.cli("reserve", "list").stdout.endswith(f"; {here} 1: drained by {ME}\n")
