"""Placement of jobs on devices, with the real command line and real workers."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from bounded import until
from site_of_one import Site

from gpuqueue.model.job import JobState

SLEEP = ("--", "sleep", "60")


@pytest.fixture
def cards(store_url: str, tmp_path: Path) -> Iterator[Site]:
    """Return a site with two cards of 4G and one of 8G, each with a worker."""
    site = Site(tmp_path / "cards", store_url, GPUQUEUE_DEVICES="sim:2x4G+8G", GPUQUEUE_SLOTS_ON="8G=1")
    site.start_recorder()
    for index in range(3):
        site.start_worker(str(index))
    yield site
    for job in site.queue.jobs.live():
        if not job.state.is_end:
            site.queue.jobs.cancel(job.id)
    until(
        lambda: not any(job.state.is_active for job in site.queue.jobs.live()), timeout_s=30, what="the end of all jobs"
    )
    site.stop()


def submitted(site: Site, *words: str) -> int:
    """Submit a long job and return its id."""
    return int(site.cli("submit", *words, *SLEEP).stdout)


def place_of(site: Site, job_id: int) -> list[int]:
    """Wait until a job runs, and return the indexes of its devices."""
    job = site.until_state(job_id, JobState.RUNNING)
    index = {each.device.uuid: each.device.index for each in site.queue.devices.all()}
    return [index[uuid] for uuid in job.devices]


@pytest.mark.full
def test_jobs_run_where_they_were_put(cards: Site) -> None:
    """Jobs run on the device named by type, index or UUID.

    An exclusive job shares its device with no other, and ``why`` names it to jobs that wait for the device.
    """
    host = cards.settings.host
    assert [2] == place_of(cards, submitted(cards, "--mem", "1G", "--device-type", "8g"))
    assert [1] == place_of(cards, submitted(cards, "--mem", "1G", "--device", "1"))
    alone = submitted(cards, "--exclusive", "--device", f"{host}:0")
    assert [0] == place_of(cards, alone)

    third = submitted(cards, "--mem", "1M", "--device", "2")
    assert "it runs its maximum number of jobs: 1" in cards.cli("why", str(third)).stdout
    assert "1/1" in cards.cli("gpus").stdout

    waiting = submitted(cards, "--mem", "1M", "--device", f"sim-{host}-0")
    output = cards.cli("why", str(waiting)).stdout
    assert f"job {alone} (" in output
    assert "it has the device for itself" in output
    assert "not named by the job" in output
    assert (
        "exclusive"
        == json.loads(cards.cli("why", str(waiting), "--json").stdout)["explanation"]["devices"][0]["obstacle"]
    )
    crowded = submitted(cards, "--exclusive", "--mem", "1G", "--device", "1")
    assert "the job wants it for itself: job 2 (" in cards.cli("why", str(crowded)).stdout
    wanted = json.loads(cards.cli("show", str(alone), "--json").stdout)["job"]["spec"]
    assert {"exclusive": True, "whole": True, "models": [], "preference": None} == {
        key: wanted["placement"][key] for key in ("exclusive", "whole", "models", "preference")
    }
    assert [f"sim-{host}-0"] == wanted["placement"]["devices"]
    story = cards.cli("show", str(alone)).stdout
    assert f"all on 1 device, alone there, only sim-{host}-0" in story
    assert "lease 4G" in story
    (first, *_) = json.loads(cards.cli("gpus", "--json").stdout)
    assert (True, 0) == (first["exclusive"], first["free_bytes"])

    cards.cli("cancel", str(alone))
    assert [0] == place_of(cards, waiting)


@pytest.mark.full
def test_a_worker_that_hangs_keeps_no_job_waiting(store_url: str, tmp_path: Path) -> None:
    """A device that left a job to another device claims it soon if that one hangs, long before its next poll."""
    site = Site(tmp_path / "hung", store_url, GPUQUEUE_DEVICES="sim:4G+8G", GPUQUEUE_POLL="120s")
    try:
        site.start_recorder()
        site.start_worker("0")
        hung = site.start_worker("1")
        hung.send_signal(signal.SIGSTOP)
        job_id = submitted(site, "--mem", "1G")
        assert [0] == place_of(site, job_id)
        hung.send_signal(signal.SIGCONT)
        site.cli("cancel", str(job_id))
        site.until_state(job_id, JobState.CANCELLED)
    finally:
        site.stop()
