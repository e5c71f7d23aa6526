"""Pilots in a real Slurm: jobs run on them as on any host, and whatever ends an allocation loses no job."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from bounded import until
from pilot_site import PilotSite, pilot_site
from private_slurm import PrivateSlurm, running_slurm

from gpuqueue.model.job import JobState
from gpuqueue.model.run import EndingKind

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]

#: Prints a line each fifth of a second until it gets SIGTERM, then says so. An argument names a file that ends it.
LOOP = 'trap "echo saved; exit 1" TERM; n=0; until [ -e "$0" ]; do n=$((n + 1)); echo "line $n"; sleep 0.2; done'


@pytest.fixture(scope="module")
def slurm() -> Iterator[PrivateSlurm]:
    """Return a Slurm with one node of four GPUs."""
    place = Path(tempfile.mkdtemp(prefix="gq-slurm-"))
    try:
        with running_slurm(place) as made:
            yield made
    finally:
        shutil.rmtree(place, ignore_errors=True)


@pytest.fixture(scope="module")
def site(slurm: PrivateSlurm) -> Iterator[PilotSite]:
    """Return a site that borrows from it."""
    place = Path(tempfile.mkdtemp(prefix="gqp-"))
    try:
        with pilot_site(slurm, place) as made:
            yield made
            made.cli("burst", "cancel", "--all", "--now")
    finally:
        shutil.rmtree(place, ignore_errors=True)


def test_jobs_are_packed_on_a_pilot_and_their_history_is_complete(site: PilotSite, tmp_path: Path) -> None:
    """Three jobs share two devices. Log, peak and ending are there after the pilot is gone, and nothing else."""
    host = site.burst()
    go = tmp_path / "go"
    jobs = [site.submit("--", "bash", "-c", LOOP, str(go)) for _ in range(3)]
    site.until_running(*jobs)
    until(lambda: "line 3" in site.cli("logs", str(jobs[0])).stdout, what="its output")
    shown = site.cli("burst", "list").stdout
    assert host in shown
    assert "running" in shown
    assert "ends at" in site.cli("gpus").stdout
    go.touch()
    for job in jobs:
        until(lambda job=job: site.client.jobs.get(job).state is JobState.SUCCEEDED, what=f"job {job}")
    site.cli("burst", "cancel", host)
    site.until_gone(host)

    for job in jobs:
        (run,) = site.client.jobs.newest(str(job)).runs
        assert (host, EndingKind.EXITED) == (run.host, run.ending.kind if run.ending else None)
        assert run.devices[0].peak.bytes
        assert "line 3" in site.cli("logs", str(job)).stdout
    assert "no pilots" in site.cli("burst", "list").stdout


@pytest.mark.parametrize("how", ["cancelled", "preempted"])
def test_a_pilot_that_slurm_ends_requeues_its_jobs(site: PilotSite, slurm: PrivateSlurm, how: str) -> None:
    """Each process gets SIGTERM at once. The runs are preempted, not lost and not failed, and nothing is left."""
    host = site.burst()
    quick, saving = site.submit("--", "sleep", "600"), site.submit("--", "bash", "-c", LOOP, "/nowhere")
    site.until_running(quick, saving)
    until(lambda: "line 2" in site.cli("logs", str(saving)).stdout, what="its output")
    ref = slurm.command("squeue", "--noheader", "--format=%i", f"--name=gpuqueue-{host.partition('-')[2]}")
    if how == "cancelled":
        slurm.command("scancel", ref)
    else:
        slurm.command("sbatch", "--partition=high", "--gres=gpu:4", "--time=1", stdin="#!/bin/sh\ntrue\n")
    site.until_gone(host)

    for job in (quick, saving):
        found = site.client.jobs.newest(str(job))
        assert (JobState.QUEUED, 0) == (found.job.state, found.job.losses)
        (run,) = found.runs
        assert run.ending is not None
        assert EndingKind.PREEMPTED is run.ending.kind
        site.cli("cancel", str(job))
    assert "saved" in site.cli("logs", str(saving)).stdout


def test_a_pilot_that_was_killed_is_settled_by_the_list(site: PilotSite) -> None:
    """Nothing could hand back. `burst list` queues the job again, and the next pilot removes what is left on disk."""
    host = site.burst()
    job = site.submit("--", "sleep", "600")
    site.until_running(job)
    site.kill(host)
    until(lambda: not site.is_listed(host), what="its end in Slurm")
    assert f"job {job} was on a pilot that has ended" in site.cli("burst", "list").stderr

    assert JobState.QUEUED is site.client.jobs.get(job).state
    assert [] != [*site.place.glob(f"gpuqueue-{host.partition('-')[2]}-*")]
    second = site.burst()
    site.until_running(job)
    site.until_gone(host)
    site.cli("cancel", str(job))
    site.cli("burst", "cancel", second)
    site.until_gone(second)


def test_two_pilots_of_one_node_serve_side_by_side(site: PilotSite) -> None:
    """Each has a host name, a directory and a store tunnel of its own."""
    done = site.cli("burst", "slurm", "--gpus", "2", "--hours", "1", "--count", "2", "--pool", "cluster")
    hosts = done.stdout.split()
    site.until_serving(*hosts)
    jobs = [site.submit("--pool", "cluster", "--", "sleep", "600") for _ in range(4)]
    site.until_running(*jobs)

    assert {*hosts} == {run.host for job in jobs for run in site.client.jobs.newest(str(job)).runs}
    for job in jobs:
        site.cli("cancel", str(job))
    site.cli("burst", "cancel", "--all")
    for host in hosts:
        site.until_gone(host)


def test_an_idle_pilot_gives_back(site: PilotSite) -> None:
    """Also one that starts after nobody needs it."""
    host = site.burst(idle="1s")
    site.until_gone(host)
    assert "no job ran for 1.0s: the pilot gives back" in site.log(host)


def test_a_pilot_that_was_given_up_while_it_waited_never_joins(site: PilotSite, slurm: PrivateSlurm) -> None:
    """Slurm did not answer when it was given up, and starts it later: its token is not valid any more."""
    slurm.command("scontrol", "update", "PartitionName=low", "State=DOWN")
    host = site.burst()
    (token,) = (each for each in site.client.access.tokens(everybody=True) if each.account == host)
    site.client.access.revoke_token(token.id)
    slurm.command("scontrol", "update", "PartitionName=low", "State=UP")

    words = "nothing was started: the token of this pilot was revoked or has expired, so nobody needs it any more"
    until(lambda: "\n" in site.log(host), what="its last words", timeout_s=90)
    assert words in site.log(host)
    site.until_gone(host)


def test_a_node_that_cannot_reach_the_service_says_which_address(site: PilotSite) -> None:
    """The line is in the log of the allocation, which ends."""
    host = site.burst(prepare="export https_proxy= no_proxy=*", service_url="https://127.0.0.1:9")
    until(
        lambda: "cannot reach the service: the service at https://127.0.0.1:9 does not answer" in site.log(host),
        what="its last words",
        timeout_s=120,
    )


def test_a_pilot_ends_by_slurms_time_if_that_is_less(site: PilotSite) -> None:
    """The site's options say one minute, which leaves no time for a job."""
    host = site.burst(options="--time=1")
    site.until_gone(host)
    assert "this is host" not in site.log(host)


def test_a_token_of_a_pilot_is_short_lived(site: PilotSite) -> None:
    """It expires an hour after the latest end. Nobody but an admin starts a pilot."""
    host = site.burst(wait="1h")
    (token,) = (each for each in site.client.access.tokens(everybody=True) if each.account == host)
    assert token.expires_at is not None
    assert timedelta(hours=3) == token.expires_at - token.made_at
    site.cli("burst", "cancel", host, "--now")
    site.until_gone(host)


def test_the_rule_borrows_as_much_as_is_needed_and_gives_it_back(
    site: PilotSite, slurm: PrivateSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two jobs, each for a whole device: from no pilot to two, one after the other, and back to none."""
    for name in ("PATH", "SLURM_CONF"):
        monkeypatch.setenv(name, slurm.environ[name])
    go, most = tmp_path / "go", 0
    jobs = [site.submit("--mem", "7G", "--", "bash", "-c", LOOP, str(go)) for _ in range(2)]
    with site.rule(devices="sim:1x8G", when_waiting="1s", hours="1", idle="20s") as burster:

        def run() -> bool:
            nonlocal most
            burster.turn()
            most = max(most, len(slurm.listed("--states=PENDING,RUNNING,CONFIGURING")))
            return all(site.client.jobs.get(job).state is JobState.RUNNING for job in jobs)

        until(run, what=f"two pilots\n{site.logs()}", timeout_s=150)
        assert 2 == most
        go.touch()
        until(lambda: burster.turn() or not slurm.listed("--states=PENDING,RUNNING"), what="no pilot", timeout_s=90)

    hosts = {run.host for job in jobs for run in site.client.jobs.newest(str(job)).runs}
    assert 2 == len(hosts)
    for host in hosts:
        site.until_gone(str(host))
