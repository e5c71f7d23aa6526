"""Pilots in a fake cluster of Kubernetes, with the official client: jobs run on them, and no end of a pod loses one."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from bounded import until
from fake_cluster import FakeCluster, running_cluster
from forked_command import BIN
from pilot_site import PilotSite, borrowing_site, settings_of
from service_fixtures import ServedSite

from gpuqueue.client import Client
from gpuqueue.model.job import JobState
from gpuqueue.model.run import EndingKind

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]

#: Prints a line each fifth of a second until it is told to end, then says so. An argument names a file that ends it.
LOOP = 'trap "echo saved; exit 1" TERM; n=0; until [ -e "$0" ]; do n=$((n + 1)); echo "line $n"; sleep 0.2; done'


class KubernetesSite(PilotSite):
    """A site that borrows from a fake cluster."""

    engine = "kubernetes"

    def __init__(self, served: ServedSite, cluster: FakeCluster, place: Path, client: Client) -> None:
        self.served, self.cluster, self.place, self.client = served, cluster, place, client
        self.environ, self.cwd = {"no_proxy": "*"}, cluster.place
        own = {"image": "gpuqueue:1", "namespace": "lab", "kubeconfig": str(cluster.kubeconfig)}
        self.settings = {**settings_of(served, place), **own}

    def is_listed(self, host: str) -> bool:
        """Return whether the Job of a pilot has not ended."""
        job = self.cluster.api.objects.get(("jobs", job_of(host)))
        return job is not None and not job["status"].get("conditions")

    def unfinished(self) -> int:
        """Return how many Jobs have not ended."""
        return sum(not job["status"].get("conditions") for job in self.cluster.api.of_kind("jobs"))

    def log(self, host: str) -> str:
        """Return what a pilot has written."""
        return self.cluster.log(job_of(host))


def job_of(host: str) -> str:
    """Return the name of the Job of a pilot."""
    return f"gpuqueue-{host.partition('-')[2]}"


@pytest.fixture(scope="module")
def site() -> Iterator[KubernetesSite]:
    """Return a site that borrows from a cluster with four GPUs."""
    place, files = Path(tempfile.mkdtemp(prefix="gqk-")), Path(tempfile.mkdtemp(prefix="gqp-"))
    environ = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}"}
    try:
        with running_cluster(place, environ) as cluster, borrowing_site() as (served, client):
            yield KubernetesSite(served, cluster, files, client)
            cluster.clear()
    finally:
        shutil.rmtree(place, ignore_errors=True)
        shutil.rmtree(files, ignore_errors=True)


def test_jobs_are_packed_on_a_pilot_and_their_history_is_complete(site: KubernetesSite, tmp_path: Path) -> None:
    """Three jobs share two devices. Log, peak and ending are there after the pilot is gone, and nothing else."""
    host = site.burst()
    go = tmp_path / "go"
    jobs = [site.submit("--", "bash", "-c", LOOP, str(go)) for _ in range(3)]
    site.until_running(*jobs)
    until(lambda: "line 3" in site.cli("logs", str(jobs[0])).stdout, what="its output")
    shown = site.cli("burst", "list").stdout
    assert f"{host}  2 GPUs" in shown
    assert "running  node-1  in " in shown
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


@pytest.mark.parametrize("how", ["cancelled", "deleted", "preempted by Kueue"])
def test_a_pilot_that_the_cluster_ends_requeues_its_jobs(site: KubernetesSite, how: str) -> None:
    """The script gets SIGTERM. The runs are preempted, not lost and not failed, and nothing is left."""
    host = site.burst()
    quick, saving = site.submit("--", "sleep", "600"), site.submit("--", "bash", "-c", LOOP, "/nowhere")
    site.until_running(quick, saving)
    until(lambda: "line 2" in site.cli("logs", str(saving)).stdout, what="its output")
    if how == "cancelled":
        site.cli("burst", "cancel", host)
    elif how == "deleted":
        site.cluster.delete(job_of(host))
    else:
        site.cluster.change(job_of(host), suspend=True)
        until(lambda: site.cluster.pod_of(job_of(host)) is None, what="the end of its pod", timeout_s=120)
    site.until_gone(host, in_slurm="Kueue" not in how)

    for job in (quick, saving):
        found = site.client.jobs.newest(str(job))
        assert (JobState.QUEUED, 0) == (found.job.state, found.job.losses)
        (run,) = found.runs
        assert run.ending is not None
        assert EndingKind.PREEMPTED is run.ending.kind
        site.cli("cancel", str(job))
    assert "saved" in site.cli("logs", str(saving)).stdout


def test_a_pilot_that_was_killed_is_settled_by_the_list(site: KubernetesSite) -> None:
    """Nothing could hand back. The Job says that it has failed, and ``burst list`` queues its job again."""
    host = site.burst()
    job = site.submit("--", "sleep", "600")
    site.until_running(job)
    site.cluster.kill(job_of(host))
    until(lambda: not site.is_listed(host), what="the end of its Job")
    assert f"job {job} was on a pilot that has ended" in site.cli("burst", "list").stderr

    assert JobState.QUEUED is site.client.jobs.get(job).state
    site.cli("cancel", str(job))
    assert "no pilots" in site.cli("burst", "list").stdout


def test_a_pilot_that_kueue_starts_after_it_was_given_up_never_joins(site: KubernetesSite) -> None:
    """The API did not answer when it was given up: its token is not valid any more, and its Job ends at once."""
    host = site.burst(queue="team-a")
    assert "waits for Kueue in team-a" in site.cli("burst", "list").stdout
    site.cluster.api.faults += [("DELETE", "jobs", 503)]
    done = site.cli("burst", "cancel", host, code=4)
    assert "Kubernetes has an error" in done.stderr
    site.cluster.change(job_of(host), suspend=False)

    words = "nothing was started: the token of this pilot was revoked or has expired, so nobody needs it any more"
    until(lambda: words in site.log(host), what="its last words", timeout_s=90)
    site.until_gone(host)


def test_an_idle_pilot_gives_back(site: KubernetesSite) -> None:
    """Also one that starts after nobody needs it."""
    host = site.burst(idle="1s")
    site.until_gone(host)
    assert "no job ran for 1.0s: the pilot gives back" in site.log(host)


def test_the_rule_borrows_as_much_as_is_needed_and_gives_it_back(
    site: KubernetesSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two jobs, each for a whole device: from no Job to two, one after the other, and back to none."""
    monkeypatch.setenv("no_proxy", "*")
    go, most = tmp_path / "go", 0
    jobs = [site.submit("--mem", "7G", "--", "bash", "-c", LOOP, str(go)) for _ in range(2)]
    with site.rule(devices="sim:1x8G", when_waiting="1s", hours="1", idle="20s") as burster:

        def run() -> bool:
            nonlocal most
            burster.turn()
            most = max(most, site.unfinished())
            return all(site.client.jobs.get(job).state is JobState.RUNNING for job in jobs)

        until(run, what="two pilots", timeout_s=150)
        assert 2 == most
        go.touch()
        until(lambda: burster.turn() or not site.unfinished(), what="no pilot", timeout_s=90)

    hosts = {run.host for job in jobs for run in site.client.jobs.newest(str(job)).runs}
    assert 2 == len(hosts)
    for host in hosts:
        site.until_gone(str(host))


def test_what_a_person_does_wrong_is_one_line(site: KubernetesSite) -> None:
    """Nothing is left in the cluster, and no token."""
    words = ("burst", "kubernetes", "--gpus", "1", "--hours", "1")
    for changed, code, said in (
        ({"image": ""}, 2, "a pilot needs a container image: set image in [burst.kubernetes]"),
        ({"kubeconfig": "/no/where"}, 4, "there is no usable configuration of Kubernetes: "),
        ({"namespace": "other"}, 5, 'Kubernetes has refused: namespaces "other" not found'),
        ({"pod": '{"hostPid": true}'}, 2, "this is no Job for Kubernetes"),
    ):
        done = site.cli(*words, code=code, **changed)
        assert said in done.stderr
        assert 1 == len(done.stderr.strip().splitlines())
    assert "no pilots" in site.cli("burst", "list").stdout
