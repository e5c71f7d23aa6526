"""A service with a key signs the jobs that are submitted to it, and nothing that it reads in the queue."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from factories import make_offer, make_spec, must_claim
from service_fixtures import ServedSite, ask, mine, serving
from signed_runs import KEY

from gpuqueue.client import Client
from gpuqueue.errors import Refused
from gpuqueue.model import ticket
from gpuqueue.model.job import JobState
from gpuqueue.model.job_spec import JobSpec
from gpuqueue.model.run import Ending, RunDevice
from gpuqueue.system.account import current_account

ENV = {"HF_TOKEN": "first", "COLOUR": "blue", "PATH": "/usr/bin"}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedSite]:
    """Return a site whose service has a key."""
    key: Path = tmp_path_factory.mktemp("key") / "ticket-key"
    key.write_text(KEY.hex())
    with serving(GPUQUEUE_TICKET_KEY_FILE=str(key)) as made:
        yield made


@pytest.fixture
def client(site: ServedSite) -> Iterator[Client]:
    """Return a client of this account. The queue is empty."""
    with site.client("unix") as opened:
        for each in opened.jobs.list():
            opened.jobs.cancel(each.id)
        yield opened


def stored(site: ServedSite, job_id: int) -> JobSpec:
    """Return the spec of a job in the store."""
    job = site.queue.jobs.get(job_id)
    assert job is not None
    return job.spec


def statement(site: ServedSite, job_id: int) -> dict[str, Any]:
    """Return what the service has signed for a job in the store."""
    return ticket.opened(KEY, stored(site, job_id).ticket or "") or pytest.fail("it has no genuine ticket")


def fail(site: ServedSite, *, is_recorded: bool = True) -> int:
    """Claim the next job and end it as failed; return its id. Once it is recorded, only the history has it."""
    claim = must_claim(site.queue)
    devices = (RunDevice(uuid=make_offer().device.uuid, lease_bytes=2**20),)
    site.queue.runs.started(claim.job_id, claim.token, lease_s=300, log_path="/log", devices=devices)
    site.queue.runs.finish(
        claim.job_id,
        claim.token,
        state=JobState.FAILED,
        ending=Ending.from_status(256),
        duration_s=1.0,
        devices=devices,
    )
    if is_recorded:
        site.record()
    return claim.job_id


def test_each_way_to_a_job_signs_it(site: ServedSite, client: Client) -> None:
    """A submit, an edit, a retry in both ways of a client, and an array and its members."""
    job = client.jobs.submit(["train", "x"], mem="1M", env=ENV, cwd="/")
    assert (job.id, ["train", "x"], "/") == tuple(statement(site, job.id)[name] for name in ("job", "argv", "cwd"))
    client.jobs.edit(job.id, mem="2M", name="other")
    assert (job.id, 2 * 2**20) == (statement(site, job.id)["job"], stored(site, job.id).mem_bytes)

    assert job.id == fail(site)
    again = client.jobs.retry(job.id, env={"HF_TOKEN": "second"})
    by_spec = client.jobs.submit_spec(client.jobs.spec_again(job.id, env={"COLOUR": "red"}))
    for each in (again, by_spec):
        assert (each.id, ["train", "x"]) == tuple(statement(site, each.id)[name] for name in ("job", "argv"))
    assert ("second", "blue") == tuple(stored(site, again.id).env[name] for name in ("HF_TOKEN", "COLOUR"))

    for each in client.jobs.list():
        client.jobs.cancel(each.id)
    array = client.jobs.submit(["train", "{index}"], mem="1M", env=ENV, array="3-4")
    member = fail(site)
    assert (array.id + 4, array.id) == (member, statement(site, array.id)["job"])
    retried = client.jobs.retry(member)
    assert ["train", "3"] == statement(site, retried.id)["argv"]


def test_nobody_sees_a_ticket_or_sets_one(site: ServedSite, client: Client) -> None:
    """It is for launchers, and holds the arguments, which not everybody may see."""
    job = client.jobs.submit(["train"], mem="1M", env=ENV)
    statement(site, job.id)

    for path in (f"/jobs/{job.id}", f"/jobs/{job.id}/record", "/jobs"):
        assert "HF_TOKEN" not in str(ask(site, path, mine(site))[1])
    assert (None, None) == (job.spec.ticket, client.jobs.get(job.id).spec.ticket)
    body = {"argv": ["true"], "cwd": "/", "mem_bytes": 2**20, "ticket": "x"}
    status, answer = ask(site, "/jobs", mine(site), method="POST", body=body)
    assert (400, True) == (status, "there is no field 'ticket'" in str(answer)), answer


@pytest.mark.parametrize("how", ["unsigned", "another command", "another variable"])
def test_what_a_worker_has_put_into_the_queue_is_not_signed(site: ServedSite, client: Client, how: str) -> None:
    """Neither by an edit nor by a retry of the person whose job it seems to be."""
    account = current_account(site.settings.host)
    if how == "unsigned":
        job_id = site.queue.requests.submit(make_spec(account=account, mem_bytes=2**20, argv=("evil",), env=ENV)).id
    else:
        job_id = client.jobs.submit(["train"], mem="1M", env=ENV).id
        change: dict[str, Any] = (
            {"argv": ("evil",)} if how == "another command" else {"env": {**ENV, "LD_PRELOAD": "x"}}
        )
        site.queue.requests.edit(job_id, lambda spec: replace(spec, **change))
    before = stored(site, job_id).ticket

    client.jobs.edit(job_id, name="edited")
    assert ("edited", before) == (stored(site, job_id).name, stored(site, job_id).ticket)
    assert job_id == fail(site, is_recorded=how != "another variable")  # an edit changes no environment in the history
    says = "was submitted before this service" if how == "unsigned" else "is not what its submitter asked for"
    for retry in (client.jobs.retry, client.jobs.spec_again):
        with pytest.raises(Refused, match=f"job {job_id} {says}|what the queue has of job {job_id} {says}"):
            retry(job_id, env={"HF_TOKEN": "x"})
