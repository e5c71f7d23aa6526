"""A site in system mode with real accounts: jobs run as alice and bob, and every promise holds there."""

from __future__ import annotations

import os
import signal

import pytest
from bounded import until
from service_site import ServiceSite

from gpuqueue.model.job import JobState
from gpuqueue.model.run import EndingKind

pytestmark = pytest.mark.full


@pytest.fixture(autouse=True)
def _empty_homes(service_site: ServiceSite) -> None:
    """Remove what the jobs of an earlier test have written."""
    for account in (service_site.people.alice, service_site.people.bob):
        service_site.people.shell(account, f"rm -rf {account.pw_dir}/*")


def test_two_people_work_as_themselves_and_cannot_meet(service_site: ServiceSite) -> None:
    """Each job runs as its submitter in a private home; the job of one reaches neither the other nor the service."""
    site, people = service_site, service_site.people
    alice, bob = people.alice, people.bob
    hers = site.submit(alice, "umask; id -G; echo mine > here; until [ -e go ]; do sleep 0.1; done; exit 5")
    run = site.running(hers)
    pids = [each.pid for each in run.processes() if each is not None]
    state = site.settings.state_dir
    tries = [
        f"cat {alice.pw_dir}/here",
        f"cat {run.path}/log",
        f"cat {run.path}/spec",
        f"ls {run.path}",
        f"cat /proc/{pids[1]}/environ",
        *(f"kill -9 {pid}" for pid in [*pids, *site.workers()]),
        f"ls {state}",
        f"cat {state}/history.db",
        f"echo > {site.settings.launcher}",
        f"cat /proc/{pids[0]}/environ /proc/{site.workers()[0]}/environ",
        f"ln -s /etc/passwd {run.path}/exit",
    ]
    his = site.submit(bob, "; ".join(f"({each}) > got 2>&1 && echo REACHED '{each}'; cat got" for each in tries))

    site.ended(his)
    assert "REACHED" not in site.log(his)
    assert "mine" not in site.log(his)
    assert len(tries) <= len(site.log(his).splitlines())  # each of them said why not
    people.shell(alice, f"touch {alice.pw_dir}/go")
    record = site.ended(hers)
    assert 5 == record.last_run.ending.exit_code
    assert (record.last_run.devices[0].peak.bytes or 0) > 100_000  # measured, although the processes are another's
    assert [people.groups_of(alice)] == [set(map(int, line.split())) for line in site.log(hers).splitlines()[1:]]
    assert site.log(hers) == people.shell(alice, f"cat {run.path}/log").stdout
    assert alice.pw_uid == os.stat(f"{alice.pw_dir}/here").st_uid  # noqa: PTH116


def test_a_killed_worker_is_followed_by_another(service_site: ServiceSite) -> None:
    """After kill -9 of the worker the next one adopts the run, and the exit code is kept (promise P4)."""
    site, alice = service_site, service_site.people.alice
    job = site.submit(alice, "until [ -e go ]; do sleep 0.1; done; exit 6")
    site.running(job)
    before = set(site.workers())

    for pid in before:
        os.kill(pid, signal.SIGKILL)
    until(lambda: set(site.workers()) - before, what="the next worker", timeout_s=60)
    site.people.shell(alice, f"touch {alice.pw_dir}/go")

    record = site.ended(job)
    assert (1, 6) == (len(record.runs), record.last_run.ending.exit_code)


def test_worker_and_shim_killed_leave_nothing_and_the_job_runs_again(service_site: ServiceSite) -> None:
    """After kill -9 of worker and shim nothing is left of the run, and the job runs a second time (P1, P5)."""
    site, alice = service_site, service_site.people.alice
    job = site.submit(alice, "echo x >> runs; setsid sleep 1000 & until [ -e go ]; do sleep 0.1; done")
    run = site.running(job)
    pids = [each.pid for each in run.processes() if each is not None]

    for pid in [*site.workers(), pids[0]]:
        os.kill(pid, signal.SIGKILL)
    until(lambda: pids[1] not in site.people.running(alice), what="the end of the first process")
    until(
        lambda: (site.client.queue.jobs.get(job) or pytest.fail("gone")).attempt == 2, what="a second run", timeout_s=60
    )
    site.people.shell(alice, f"touch {alice.pw_dir}/go")

    record = site.ended(job)
    assert [EndingKind.LOST, EndingKind.EXITED] == [each.ending.kind for each in record.runs if each.ending is not None]
    assert [] == site.people.running(alice)


def test_a_cancel_reaches_daemons_and_reports_reach_the_worker(service_site: ServiceSite) -> None:
    """A cancel ends daemons. A report that the job wrote with a strict umask is read and removed by the service."""
    site, alice = service_site, service_site.people.alice
    words = "umask 077; echo '{\"v\":1}' >> $GPUQUEUE_RUN_DIR/reports; echo up; setsid sleep 1000 & sleep 1000"
    job = site.submit(alice, words)
    run = site.running(job)
    until(lambda: site.log(job) == "up\n", what="its report")

    assert '{"v":1}\n' == site.command("cat", f"{run.path}/reports").stdout
    site.client.jobs.cancel(job)

    assert JobState.CANCELLED is site.ended(job).job.state
    until(lambda: not (run.path / "reports").exists(), what="the settlement", timeout_s=60)
    assert [] == site.people.running(alice)


def test_jobs_wait_while_the_launcher_is_away(service_site: ServiceSite) -> None:
    """Without a launcher the claim is released and the device says why. When it is back, the job runs its first run."""
    site = service_site
    site.launcher.kill()
    job = site.submit(site.people.alice, "true")

    def trouble() -> bool:
        return any("the launcher" in str(status.trouble) for status in site.client.queue.devices.all())

    until(trouble, what="the trouble of the device", timeout_s=60)
    site.launcher.start()

    record = site.ended(job)
    assert (JobState.SUCCEEDED, 1) == (record.job.state, len(record.runs))


def test_forged_accounts_and_warm_interpreters(service_site: ServiceSite) -> None:
    """A job with a forged account is held with the reason. A job with --warm starts cold, and says why."""
    site, people = service_site, service_site.people
    forged = people.alice.__class__((people.bob.pw_name, "x", people.alice.pw_uid, 0, "", "/", "/bin/sh"))
    as_service = site.submit(site.service, "true", cwd="/")

    held = [site.held(site.submit(forged, "true", cwd="/")), site.held(as_service)]
    warm = site.ended(site.submit(people.bob, "true", warm=True))

    assert f"on this host {people.bob.pw_name} has the user id {people.bob.pw_uid}" in held[0]
    assert "account of the queue itself" in held[1]
    assert JobState.SUCCEEDED is warm.job.state
    shown = site.command("gpuqueue", "show", str(warm.job.id)).stdout
    assert "started cold: jobs run as their submitters here" in shown
