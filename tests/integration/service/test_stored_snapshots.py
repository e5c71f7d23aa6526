"""What a service says about the code that it has: the difference from its commit, the list, and deleting."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bounded import until
from forked_command import command
from service_fixtures import ServedSite, serving

from gpuqueue.client import Client
from gpuqueue.client.remote.link import Link
from gpuqueue.errors import JobNotFound, Refused
from gpuqueue.files.blob_store import blob_store_of
from gpuqueue.files.collect import RECENT_S
from gpuqueue.files.take import take_snapshot
from gpuqueue.model.api import NewSnapshot, SnapshotState
from gpuqueue.model.code_snapshot import CodeSnapshot
from gpuqueue.model.job import Job
from gpuqueue.text.units import MIB


@pytest.fixture(scope="module")
def served() -> Iterator[ServedSite]:
    """Return a site whose users may have 4 MiB of code."""
    with serving(GPUQUEUE_SNAPSHOT_USER_LIMIT="4M") as site:
        yield site


@pytest.fixture
def client(served: ServedSite) -> Iterator[Client]:
    """Return a client on another machine, as far as it can tell, whose user has no job and no snapshot."""
    with opened(served) as found:
        for job in found.jobs.list():
            found.jobs.cancel(job.id)
        for each in found.snapshots.list():
            found.snapshots.delete(each.address)
        yield found


def opened(served: ServedSite, token: str = "mine") -> Client:
    """Return a client with one of the site's tokens."""
    return Client(replace(served.client("https", token).settings, snapshot=True))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return a git work tree with a script that has changed since its commit."""
    root = tmp_path / "project"
    root.mkdir()
    (root / "train.py").write_text(f"# {root}\nlr = 1\n")
    (root / "secret.pem").write_text("password\n")
    git(root, "init", "-q")
    git(root, "add", "-A")
    git(root, "commit", "-qm", "one")
    (root / "secret.pem").unlink()
    (root / "train.py").write_text(f"# {root}\nlr = 2\n")
    return root


def git(root: Path, *words: str) -> str:
    """Run git, and return its output."""
    made = ["git", "-C", str(root), "-c", "user.name=a", "-c", "user.email=a@b", *words]
    return subprocess.run(made, check=True, capture_output=True, text=True).stdout.strip()


def submitted(client: Client, directory: Path, **changes: Any) -> Job:
    """Submit the script of the project."""
    return client.jobs.submit("train.py", **{"mem": "1M", "cwd": directory, **changes})


def address_of(job: Job) -> str:
    """Return the address of the job's snapshot."""
    assert job.spec.snapshot is not None
    return CodeSnapshot.parse(job.spec.snapshot).address


def age(served: ServedSite) -> None:
    """Make everything that the service has stored so old that no submit can need it."""
    for each in blob_store_of(served.settings).root.rglob("*"):
        if each.is_file():
            at = each.stat().st_mtime - RECENT_S - 1
            os.utime(each, (at, at))


# ---- show --diff -----------------------------------------------------------------------------------------------------


def test_the_difference_is_that_of_the_submit(client: Client, project: Path) -> None:
    """Without the repository, and after later edits, it says what the job runs; a retry has the same."""
    commit = git(project, "rev-parse", "HEAD")
    job = submitted(client, project)
    swept = submitted(client, project, sweep={"lr": [1, 2]}, args=["{lr}"])
    (project / "train.py").write_text("later\n")
    git(project, "commit", "-qam", "later")
    project.rename(project.with_name("gone"))

    text = client.snapshots.diff(job.id).decode()

    assert text.startswith(f"difference to commit {commit}: 1 modified, 1 deleted\nD  secret.pem\nM  train.py\n\ndiff")
    assert text.endswith("\n-lr = 1\n+lr = 2\n")
    assert text.encode() == client.snapshots.diff(f"{swept.id}_1")
    client.jobs.cancel(job.id)
    again = client.jobs.retry(job.id)
    assert (job.spec.snapshot, job.spec.git) == (again.spec.snapshot, again.spec.git)
    assert text.encode() == client.snapshots.diff(again.id)


def test_a_file_that_does_not_travel_is_not_in_the_difference(
    served: ServedSite, client: Client, project: Path
) -> None:
    """A deleted secret of the commit is named, and its content does not reach the service."""
    job = submitted(client, project)

    assert b"D  secret.pem\n" in client.snapshots.diff(job.id)
    stored = [each.read_bytes() for each in blob_store_of(served.settings).blobs.rglob("*") if each.is_file()]
    assert stored
    assert not [each for each in stored if b"password" in each]


def test_nobody_else_reads_the_difference(served: ServedSite, client: Client, project: Path) -> None:
    """It is refused as the arguments of the job are, and the hash of the text gives nothing."""
    job = submitted(client, project)

    with opened(served, "bobs") as bob:
        with pytest.raises(Refused, match=r"only .* may see the command of this job"):
            bob.snapshots.diff(job.id)
        assert bob.jobs.get(job.id).spec.snapshot is None
        with pytest.raises(Refused, match="you have no snapshot"):
            bob.jobs.submit_spec(replace(job.spec, retry_of=None))
        own = submitted(bob, project)
        with pytest.raises(Refused):
            bob.jobs.submit_spec(
                replace(own.spec, snapshot=str(CodeSnapshot(address_of(own), ".", address_of(job)[::-1])))
            )


def test_jobs_without_one_say_why(client: Client, project: Path, tmp_path: Path) -> None:
    """A job without a snapshot, one whose code was taken without git, and one without changes."""
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain/train.py").touch()
    git(project, "commit", "-qam", "clean")
    stays, plain = submitted(client, project, snapshot=False), submitted(client, tmp_path / "plain")
    clean = submitted(client, project)

    with pytest.raises(Refused, match=rf"job {stays.id} has no copy of its code"):
        client.snapshots.diff(stays.id)
    with pytest.raises(Refused, match=rf"the code of job {plain.id} was taken without git"):
        client.snapshots.diff(plain.id)
    with pytest.raises(JobNotFound):
        client.snapshots.diff(10**9)
    assert f"no difference to commit {git(project, 'rev-parse', 'HEAD')}\n".encode() == client.snapshots.diff(clean.id)


def test_a_difference_that_is_there_already_is_not_sent_again(client: Client, project: Path) -> None:
    """The service asks for it as for a file: from each account once."""
    taken = take_snapshot(project)
    offer = NewSnapshot(manifest=taken.text.decode(), diff=taken.diff_sha256)
    assert client.service is not None
    with closing(Link(client.settings, client.service)) as link:
        missing = link.send("POST", "/snapshots", offer, kind=SnapshotState).missing
        submitted(client, project)
        again = link.send("POST", "/snapshots", offer, kind=SnapshotState).missing

    assert (True, ()) == (taken.diff_sha256 in missing, again)


# ---- the list --------------------------------------------------------------------------------------------------------


def test_the_list_has_each_snapshot_with_its_jobs(served: ServedSite, client: Client, project: Path) -> None:
    """The last used first, and only those of the caller."""
    first = submitted(client, project)
    (project / "train.py").write_text("lr = 3\n")
    second, third = submitted(client, project), submitted(client, project)
    client.jobs.cancel(third.id)

    with opened(served, "bobs") as bob:
        submitted(bob, project)
        assert [address_of(second)] == [each.address for each in bob.snapshots.list()][:1]
    found = client.snapshots.list()

    assert [(address_of(second), (str(second.id),)), (address_of(first), (str(first.id),))] == [
        (each.address, each.jobs) for each in found
    ]
    assert (1, len("lr = 3\n")) == (found[0].files, found[0].size_bytes)
    assert abs(time.time() - found[0].used_at.timestamp()) < 60


def test_a_snapshot_is_deleted_once_no_job_needs_it(served: ServedSite, client: Client, project: Path) -> None:
    """While a job waits, the refusal names it. After its end, a retry is refused, and the difference is gone."""
    job = submitted(client, project)
    with pytest.raises(Refused, match=rf"job {job.id} needs the snapshot {address_of(job)[:12]}"):
        client.snapshots.delete(address_of(job)[:12])
    client.jobs.cancel(job.id)
    age(served)

    deleted = client.snapshots.delete(address_of(job)[:12])

    assert address_of(job) == deleted.address
    assert deleted.freed_bytes > len("lr = 2\n")
    assert () == tuple(client.snapshots.list())
    with pytest.raises(Refused, match="you have no snapshot"):
        client.jobs.retry(job.id)
    with pytest.raises(Refused, match=rf"the snapshot of job {job.id} is not on this machine, or was deleted"):
        client.snapshots.diff(job.id)

    def outcomes() -> list[str]:
        recorded = [each for each in client.access.audit() if address_of(job)[:12] in each.detail.values()]
        return [str(each.outcome) for each in recorded if each.action == "snapshot-delete"]

    until(lambda: ["done", "refused"] == outcomes(), what="both requests in the audit log")


def test_nobody_deletes_the_snapshot_of_another(served: ServedSite, client: Client, project: Path) -> None:
    """Neither by its address nor by having the same files: each gives up only what is its own."""
    job = submitted(client, project)
    client.jobs.cancel(job.id)
    age(served)
    with opened(served, "bobs") as bob:
        with pytest.raises(Refused, match="you have no snapshot"):
            bob.snapshots.delete(address_of(job))
        same = submitted(bob, project)
        bob.jobs.cancel(same.id)
        age(served)
        assert 0 == bob.snapshots.delete(address_of(same)).freed_bytes

    assert job.spec.snapshot == client.jobs.retry(job.id).spec.snapshot


def test_the_limit_names_the_command_that_makes_room(served: ServedSite, client: Client, project: Path) -> None:
    """What was deleted counts no more, at once."""
    (project / "large").write_bytes(os.urandom(3 * MIB))
    job = submitted(client, project)
    client.jobs.cancel(job.id)
    age(served)
    (project / "large").write_bytes(os.urandom(3 * MIB))
    with pytest.raises(Refused, match=r"snapshot_user_limit.*gpuqueue snapshots delete ADDRESS"):
        submitted(client, project)

    assert client.snapshots.delete(address_of(job)).freed_bytes > 3 * MIB

    submitted(client, project)


# ---- the commands ----------------------------------------------------------------------------------------------------


def test_the_commands_print_what_the_service_says(served: ServedSite, client: Client, project: Path) -> None:
    """``show --diff`` prints the text as it is, ``snapshots`` a table, ``snapshots delete`` what was freed."""
    job = submitted(client, project)
    environ = {**os.environ, "GPUQUEUE_URL": f"unix://{served.socket_path}"}

    def ran(*words: str, code: int = 0) -> str:
        done = command(words, environ)
        assert code == done.returncode, done.stderr
        return done.stdout if not code else done.stderr

    assert client.snapshots.diff(job.id).decode() == ran("show", "--diff", str(job.id))
    assert "--json, --plot and --diff exclude each other" in ran("show", "--diff", "--json", str(job.id), code=2)
    head, line = ran("snapshots").splitlines()
    assert ["ADDRESS", "FILES", "SIZE", "LAST", "USED", "JOBS"] == head.split()
    assert (address_of(job)[:12], str(job.id)) == (line.split()[0], line.split()[-1])
    assert f'"address": "{address_of(job)}"' in ran("snapshots", "--json")
    assert f"job {job.id} needs the snapshot" in ran("snapshots", "delete", address_of(job)[:12], code=5)
    client.jobs.cancel(job.id)
    assert f"snapshot {address_of(job)[:12]} deleted, " in ran("snapshots", "delete", address_of(job)[:12])
    assert "no snapshots\n" == ran("snapshots")
