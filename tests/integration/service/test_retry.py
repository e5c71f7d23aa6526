"""A retry over the service: its record in the audit log, and the secrets that are gone."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace

import pytest
from bounded import until
from event_stream import events, first
from factories import make_offer, must_claim
from forked_command import command
from service_fixtures import ServedSite

from gpuqueue.client import Client
from gpuqueue.client.connection import Connection
from gpuqueue.errors import JobNotFound, Refused
from gpuqueue.history.database import HistoryDatabase
from gpuqueue.model.audit import AuditEntry, AuditOutcome, AuditQuery
from gpuqueue.model.job import JobState
from gpuqueue.model.job_spec import Account
from gpuqueue.model.run import Ending, RunDevice


@pytest.fixture
def client(served: ServedSite) -> Iterator[Client]:
    """Return a client of this account."""
    with served.client("unix") as opened:
        yield opened


def ended(site: ServedSite, client: Client, **changes: object) -> int:
    """Return a job with two secrets that has failed, and that only the history has."""
    for each in client.jobs.list():
        client.jobs.cancel(each.id)
    env = {"HF_TOKEN": "first", "WANDB_API_KEY": "first", "COLOUR": "blue"}
    job = client.jobs.submit(["true"], **{"mem": "1M", "env": env, **changes})
    claim = must_claim(site.queue)
    device = RunDevice(uuid=make_offer().device.uuid, lease_bytes=2**20)
    site.queue.runs.started(job.id, claim.token, lease_s=300, log_path="/log", devices=(device,))
    site.queue.runs.finish(
        job.id, claim.token, state=JobState.FAILED, ending=Ending.from_status(256), duration_s=1.0, devices=(device,)
    )
    site.record()
    return job.id


def cli(site: ServedSite, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run ``gpuqueue`` over the socket of the service, as a person without any other access."""
    own = {
        "PATH": os.environ["PATH"],
        "HOME": str(site.directory),
        "GPUQUEUE_URL": f"unix://{site.socket_path}",
        "GPUQUEUE_CONFIG": os.devnull,
    }
    return command(words, {**own, **environ})


def test_a_retry_says_which_secrets_are_gone(served: ServedSite, client: Client) -> None:
    """Secrets were removed at the end of the job: those of now are taken, and the line says what to give by --env."""
    job = ended(served, client)

    partly = cli(served, "retry", str(job), HF_TOKEN="now", COLOUR="red")
    fully = cli(served, "retry", str(job), "--env", "WANDB_API_KEY=given", "--env", "HF_TOKEN=given")

    line = (
        f"gpuqueue: the secrets of job {job} were removed at its end; from your environment: HF_TOKEN; missing, give "
        "with --env: WANDB_API_KEY\n"
    )
    assert (0, line) == (partly.returncode, partly.stderr)
    assert (0, "") == (fully.returncode, fully.stderr)
    envs = []
    for each in (partly, fully):
        with served.client("direct") as direct:
            envs.append(direct.jobs.get(int(each.stdout)).spec.env)
    assert ("now", None, "blue") == tuple(envs[0].get(each) for each in ("HF_TOKEN", "WANDB_API_KEY", "COLOUR"))
    assert ("given", "given", "blue") == tuple(envs[1].get(each) for each in ("HF_TOKEN", "WANDB_API_KEY", "COLOUR"))


def entries(site: ServedSite, count: int, *jobs: int) -> list[AuditEntry]:
    """Return the retries in the audit log that name one of *jobs*, the newest first, as soon as there are *count*.

    The site is shared: retries of other tests are in the log too, and may arrive in between.
    """
    names, query = set(map(str, jobs)), AuditQuery(action="retry")
    with closing(HistoryDatabase(site.settings.database_url)) as database:

        def found() -> list[AuditEntry]:
            return [each for each in database.audit_entries(query) if names.intersection(each.jobs)]

        until(lambda: len(found()) >= count, what=f"{count} entries of retries")
        return found()


def test_a_retry_is_recorded_as_one(served: ServedSite, client: Client) -> None:
    """The log says retry, with both jobs, however the client asks for it; also when it was refused."""
    job = ended(served, client)
    new = client.jobs.retry(job, env={"WANDB_API_KEY": "x", "HF_TOKEN": "y"})
    by_spec = client.jobs.submit_spec(client.jobs.spec_again(job))
    with served.client("https", "bobs") as bob, pytest.raises(Refused, match="may retry this job"):
        bob.jobs.retry(job)

    refused, second, whole = entries(served, 3, job)
    assert ((str(job), str(new.id)), AuditOutcome.DONE) == (whole.jobs, whole.outcome)
    assert ((str(job), str(by_spec.id)), AuditOutcome.DONE) == (second.jobs, second.outcome)
    assert ("bob", (str(job),), AuditOutcome.REFUSED) == (refused.account, refused.jobs, refused.outcome)


@contextmanager
def as_bob(site: ServedSite, kind: str) -> Iterator[Client]:
    """Return a client of bob, who is no admin: over the service, or with the store itself."""
    if kind == "service":
        with site.client("https", "bobs") as bob:
            yield bob
        return
    with closing(Connection(site.settings)) as whole:
        account = Account(name="bob", uid=54321, host="here")
        yield Client(connection=whole.acting_for(account, account.name))


@pytest.mark.parametrize("kind", ["service", "store"])
def test_a_job_is_marked_as_retried_only_by_a_retry(served: ServedSite, client: Client, kind: str) -> None:
    """A request that claims to be a retry names a job that exists, has ended, and is the caller's, or it is refused."""
    others = ended(served, client)
    with as_bob(served, kind) as bob:
        waiting = bob.jobs.submit(["true"], mem="1M").spec

        def claim(job: int) -> None:
            bob.jobs.submit_spec(replace(waiting, retry_of=job, env={}))

        with pytest.raises(Refused, match=r"retry this job|may run it again"):
            claim(others)
        with pytest.raises(JobNotFound, match="there is no job 900000"):
            claim(900_000)
        own = bob.jobs.submit(["true"], mem="1M").id
        with pytest.raises(Refused, match=f"job {own} is queued: only a job that has ended can be retried"):
            claim(own)
        bob.jobs.cancel(own)
        claim(own)

    assert others in [each.job.id for each in client.jobs.choose_ended()]
    with served.client("direct") as admin:
        assert others == admin.jobs.submit_spec(replace(waiting, retry_of=others)).spec.retry_of


def test_a_member_that_never_began_is_retried(served: ServedSite, client: Client) -> None:
    """It has no record of its own, so its retry names no first job; the request and the values are its own."""
    array = client.jobs.submit(["true", "{index}"], mem="1M", array="3-4").id
    client.jobs.cancel(array)

    done = cli(served, "retry", f"{array}_4")

    assert (0, "") == (done.returncode, done.stderr)
    spec = client.jobs.get(int(done.stdout)).spec
    assert (("true", "4"), None) == (spec.argv, spec.retry_of)


def test_the_service_does_not_look_into_a_users_directory(
    served: ServedSite, client: Client, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The git checkout of the job's directory is unknown for a retry: the service must not follow what lies there."""
    git = shutil.which("git") or pytest.skip("git is not installed")
    where = tmp_path_factory.mktemp("repository")
    for words in (["init", "-q"], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "x", "--allow-empty"]):
        subprocess.run([git, *words], cwd=where, check=True, env={"PATH": os.environ["PATH"], "HOME": "/nowhere"})
    job = ended(served, client, cwd=where)
    assert client.jobs.get(job).spec.git is not None

    assert client.jobs.retry(job, env={"WANDB_API_KEY": "x", "HF_TOKEN": "y"}).spec.git is None


def test_a_retry_is_seen_by_those_who_watch(served: ServedSite, client: Client) -> None:
    """A retried job is a new one in the stream of all jobs."""
    job = ended(served, client)
    stream = events(client, "/streams/jobs")
    first(stream, "ready")
    new = client.jobs.retry(job)

    assert new.id == first(stream, "job").value["id"]
