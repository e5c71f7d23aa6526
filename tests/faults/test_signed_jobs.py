"""A site in system mode whose launcher starts only what the service has signed. The tests sign in its place."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
from bounded import until
from factories import make_spec
from service_site import ServiceSite
from signed_runs import KEY
from submitters import Launcher, People

from gpuqueue.client.signing import Signer
from gpuqueue.model.array import Array, Indexes
from gpuqueue.model.job import JobState
from gpuqueue.model.job_spec import Account, JobSpec
from gpuqueue.model.retries import Retries
from gpuqueue.text.units import MIB

pytestmark = pytest.mark.full

SIGNER = Signer(KEY)


@pytest.fixture(scope="module")
def site(people: People) -> Iterator[ServiceSite]:
    """Return a site whose launcher has the key."""
    if shutil.which("setpriv") is None or shutil.which("unshare") is None:
        pytest.skip("setpriv and unshare are not installed")
    folder = Path(mkdtemp(prefix="gpuqueue-signed-"))
    folder.chmod(0o755)
    key = folder / "key"
    key.touch(0o400)
    key.write_text(KEY.hex())
    launcher = Launcher(folder, people, "--ticket-key", str(key))
    made = ServiceSite(folder, people, launcher)
    try:
        made.up()
        yield made
    finally:
        made.stop()
        launcher.kill()
        shutil.rmtree(folder, ignore_errors=True)


def submit(site: ServiceSite, words: str, **changes: Any) -> int:
    """Submit a signed shell command as alice."""
    alice = site.people.alice
    account = Account(name=alice.pw_name, uid=alice.pw_uid, host=site.settings.host)
    fields = {"argv": ("/bin/sh", "-c", words), "cwd": alice.pw_dir, "account": account, "mem_bytes": 64 * MIB}
    return site.client.queue.requests.submit(make_spec(**{**fields, **changes}), sign=SIGNER.signed).id


def test_signed_jobs_edited_jobs_and_members_start(site: ServiceSite) -> None:
    """An edit renews the ticket, and members of arrays start with that of their array, before and after it."""
    job = submit(site, "exit 4")
    held = submit(site, "exit 5", waits=replace(make_spec().waits, hold=True))
    array = submit(site, "exit {index}", array=Array(indexes=Indexes.parse("0-2")))

    site.client.queue.requests.edit(held, lambda spec: SIGNER.renewed(replace(spec, mem_bytes=65 * MIB), held))
    site.client.jobs.release(held)

    assert 4 == site.ended(job).last_run.ending.exit_code
    assert 5 == site.ended(held).last_run.ending.exit_code
    assert [0, 1, 2] == [site.ended(array + 1 + index).last_run.ending.exit_code for index in range(3)]


def test_a_job_runs_again_with_the_same_ticket(site: ServiceSite) -> None:
    """A retry after a failure is another run of the same job."""
    job = submit(site, "echo x >> tries; test $(wc -l < tries) = 2", retries=Retries(times=1))

    record = site.ended(job)
    assert (JobState.SUCCEEDED, 2) == (record.job.state, len(record.runs))


def test_a_run_goes_on_after_kill_9_of_its_worker(site: ServiceSite) -> None:
    """The next worker adopts the run, which was started once and needs no ticket for that (P4)."""
    alice = site.people.alice
    job = submit(site, "until [ -e go ]; do sleep 0.1; done; exit 6")
    site.running(job)
    before = set(site.workers())

    for pid in before:
        os.kill(pid, signal.SIGKILL)
    until(lambda: set(site.workers()) - before, what="the next worker", timeout_s=60)
    site.people.shell(alice, f"touch {alice.pw_dir}/go")

    record = site.ended(job)
    assert (1, 6) == (len(record.runs), record.last_run.ending.exit_code)


@pytest.mark.parametrize("how", ["unsigned", "changed"])
def test_a_job_that_a_worker_has_put_into_the_store_is_held(site: ServiceSite, how: str) -> None:
    """It starts nowhere, is held with the reason, and nothing of it is lost. So is a job from before the key."""
    alice = site.people.alice
    if how == "unsigned":
        job = site.submit(alice, "touch evil")
        says = "was not signed by the service, and this host starts no other: submit it again"
    else:
        job = submit(site, "true", waits=replace(make_spec().waits, hold=True))
        site.client.queue.requests.edit(job, _evil)
        site.client.jobs.release(job)
        says = "differs from what the service has signed: its command"

    assert f"job {job} {says}" in site.held(job)
    assert "evil" not in site.people.shell(alice, f"ls {alice.pw_dir}").stdout


def _evil(spec: JobSpec) -> JobSpec:
    return replace(spec, argv=("/bin/sh", "-c", "touch evil"))
