"""The code of a job travels to the service: real TLS, real accounts' tokens, real files."""

from __future__ import annotations

import base64
import hashlib
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from service_fixtures import ServedSite, serving

from gpuqueue.client import Client
from gpuqueue.client.remote import snapshots
from gpuqueue.client.remote.link import Link
from gpuqueue.errors import BadRequest, Refused
from gpuqueue.files import contents
from gpuqueue.files.blob_store import blob_store_of
from gpuqueue.files.manifest import Manifest
from gpuqueue.files.take import take_snapshot
from gpuqueue.model.api import ContentPart, ContentParts, NewSnapshot, SnapshotState
from gpuqueue.model.code_snapshot import CodeSnapshot
from gpuqueue.model.job import Job
from gpuqueue.model.job_request import JobRequest
from gpuqueue.service.uploads import MOST_PARTS
from gpuqueue.text.units import MIB


@pytest.fixture(scope="module")
def served() -> Iterator[ServedSite]:
    """Return a site whose users may have 4 MiB of code in files of at most 3 MiB."""
    with serving(GPUQUEUE_SNAPSHOT_FILE_LIMIT="3M", GPUQUEUE_SNAPSHOT_USER_LIMIT="8M") as site:
        yield site


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return a git work tree with a script that was changed since its commit, an untracked file and an ignored one."""
    root = tmp_path / "project"
    (root / "src").mkdir(parents=True)
    (root / "src" / "train.py").write_text("print(1)\n")
    (root / ".gitignore").write_text("data/\n")
    git = ["git", "-C", str(root), "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "one"]):
        subprocess.run([*git, *words], check=True)
    (root / "src" / "train.py").write_text(f"print(2)  # {root}\n")
    (root / "new.py").touch()
    (root / "data").mkdir()
    (root / "data" / "large").write_bytes(bytes(MIB))
    return root


@pytest.fixture
def client(served: ServedSite) -> Iterator[Client]:
    """Return a client on another machine, as far as it can tell, whose code travels."""
    with opened(served) as found:
        yield found


def opened(served: ServedSite, token: str = "mine") -> Client:
    """Return a client with one of the site's tokens."""
    return Client(replace(served.client("https", token).settings, snapshot=True))


def submitted(client: Client, directory: Path, **changes: Any) -> tuple[Job, list[str]]:
    """Submit the script of the project, and return the job and what the user reads."""
    notes: list[str] = []
    request = JobRequest("train.py", **{"mem": "1M", "cwd": directory, **changes})
    return client.jobs.submit_request(request, note=notes.append), notes


@pytest.fixture
def link(client: Client) -> Iterator[Link]:
    """Return a connection to the service."""
    with closing(link_of(client)) as found:
        yield found


def link_of(client: Client) -> Link:
    """Return the connection of *client*."""
    assert client.service is not None
    return Link(client.settings, client.service)


def test_the_work_tree_travels_once(served: ServedSite, client: Client, project: Path) -> None:
    """The job names a snapshot of the files as they are, without ignored ones, and the same files travel once."""
    job, notes = submitted(client, project / "src")
    again, more = submitted(client, project / "src")

    assert job.spec.snapshot is not None
    snapshot = CodeSnapshot.parse(job.spec.snapshot)
    text = blob_store_of(served.settings).manifest_text(snapshot.address).decode()
    paths = [line.split("\t")[-1] for line in text.splitlines()[1:]]
    assert [".gitignore", "new.py", "src/train.py"] == paths
    assert ("src", job.spec.snapshot) == (snapshot.directory, again.spec.snapshot)
    code, ignored, python = notes[-3:]
    assert code.startswith(f"code: 3 files of {project}, ")
    assert "(0B of it new)" in more[-3]
    assert [ignored, python] == more[-2:]
    assert ("1 ignored file stays here: data/large 1M", "python: python3 of the host") == (ignored, python)


def test_nothing_of_this_machine_is_in_the_spec(client: Client, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter, the PATH and the home of the submitter mean nothing elsewhere; other variables travel."""
    monkeypatch.setenv("LR", "0.1")
    monkeypatch.setenv("PYTHONPATH", "src:lib")
    job, _ = submitted(client, project / "src")
    spec = client.jobs.get(job.id).spec
    by_name, _ = submitted(client, project / "src", python="/opt/torch/bin/python")

    assert ("python3", "train.py") == spec.argv
    assert ("/opt/torch/bin/python", "train.py") == by_name.spec.argv
    assert {"LR": "0.1", "PYTHONPATH": "src:lib"}.items() <= job.spec.env.items()
    assert not {"PATH", "HOME", "VIRTUAL_ENV", "SHELL"} & {*job.spec.env}


def test_a_large_file_comes_in_parts(served: ServedSite, client: Client, project: Path) -> None:
    """A file that no request can hold arrives whole."""
    content = os.urandom(5 * MIB // 2 + 7)
    (project / "weights.bin").write_bytes(content)

    submitted(client, project / "src")

    with blob_store_of(served.settings).open(hashlib.sha256(content).hexdigest()) as stored:
        assert content == stored.read()


def test_an_unchanged_submit_reads_no_file_again(
    client: Client, project: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The hashes are kept in the user's cache directory, and the second submit makes the same snapshot from them."""
    real = time.time_ns
    monkeypatch.setattr(contents.time, "time_ns", lambda: real() + 10**10)  # the files are old enough by then
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    first, _ = submitted(client, project / "src")
    monkeypatch.setattr(contents, "_read", lambda *_: pytest.fail("a file was read again"))

    second, _ = submitted(client, project / "src")

    assert first.spec.snapshot == second.spec.snapshot
    assert 1 == len([*(tmp_path / "cache" / "gpuqueue").iterdir()])


def test_what_is_too_large_or_secret_stays(client: Client, project: Path) -> None:
    """The refusal names the file and what to do, and no job is made."""
    (project / "big.bin").write_bytes(bytes(3 * MIB + 1))
    with pytest.raises(Refused, match=r"big\.bin 3M.*\.gpuqueueignore"):
        submitted(client, project / "src")
    (project / "big.bin").unlink()
    (project / ".env").write_text("KEY=1\n")
    with pytest.raises(Refused, match=r"\.env.*--snapshot-allow"):
        submitted(client, project / "src")

    (project / "deploy").write_text("-----BEGIN PRIVATE " + "KEY-----\n")
    with pytest.raises(Refused, match=r"private keys.*'deploy'.*--snapshot-allow"):
        submitted(client, project / "src", snapshot_allow=[".env"])

    job, _ = submitted(client, project / "src", snapshot_allow=[".env", "deploy"])
    assert job.spec.snapshot is not None


def test_what_the_job_needs_must_travel(client: Client, project: Path, tmp_path: Path) -> None:
    """A script or a directory outside of the snapshot is refused at submit, not at the start on the host."""
    (tmp_path / "other.py").touch()
    for script in (str(tmp_path / "other.py"), "../../other.py"):
        with pytest.raises(BadRequest, match=r"the script .*other\.py does not travel"):
            client.jobs.submit(script, mem="1M", cwd=project / "src")
    (project / ".gpuqueueignore").write_text("new.py\n")
    with pytest.raises(BadRequest, match=r"the script \.\./new\.py does not travel"):
        client.jobs.submit("../new.py", mem="1M", cwd=project / "src")
    with pytest.raises(BadRequest, match=r"the working directory .* is not in"):
        submitted(client, project / "src", snapshot=project / "data")


def test_a_path_of_the_original_is_pointed_out(client: Client, project: Path) -> None:
    """An absolute path into the directory would run what stands there when the job starts."""
    request = JobRequest(["bash", f"{project}/src/train.py"], mem="1M", cwd=project / "src")
    notes: list[str] = []
    client.jobs.submit_request(request, note=notes.append)

    assert f"{project}/src/train.py is a path of the directory itself, not of the copy: write it from src" == notes[-1]


def test_a_directory_that_the_snapshot_cannot_have_is_refused(client: Client, project: Path) -> None:
    """The service checks the directory of the job, so that no worker meets one that cannot be."""
    job, _ = submitted(client, project / "src")
    address = str(job.spec.snapshot).partition(":")[0]
    for directory in ("src/train.py", "src/train.py/x", "b\x07", ".git"):
        with pytest.raises(BadRequest):
            client.jobs.submit_spec(replace(job.spec, snapshot=f"{address}:{directory}"))


def test_names_that_are_too_long_together_are_refused(
    client: Client, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client says so, instead of sending what the service takes for an attack."""
    monkeypatch.setattr("gpuqueue.client.remote.snapshots.MOST_MANIFEST_BYTES", 100)
    with pytest.raises(Refused, match=r"the names of the 3 files are too long together"):
        submitted(client, project / "src")


def test_no_snapshot_leaves_all_as_it_is(client: Client, project: Path) -> None:
    """With --no-snapshot the job runs in the directory of the same name."""
    job, notes = submitted(client, project / "src", snapshot=False)

    assert (None, str(project / "src"), []) == (job.spec.snapshot, job.spec.cwd, notes)


def test_files_are_kept_only_of_code_that_travels(client: Client, project: Path) -> None:
    """Patterns need a snapshot. A wrong pattern is refused before anything is sent."""
    with pytest.raises(BadRequest, match="only a job whose code travels keeps files"):
        submitted(client, project / "src", snapshot=False, keep=["results/**"])
    with pytest.raises(BadRequest, match="it is empty"):
        submitted(client, project / "src", keep=[""])


def test_a_snapshot_of_another_user_cannot_be_used(served: ServedSite, client: Client, project: Path) -> None:
    """To know an address or a hash is no right: bob must send each file himself."""
    job, _ = submitted(client, project / "src")
    assert job.spec.snapshot is not None

    with opened(served, "bobs") as bob:
        with pytest.raises(Refused, match="you have no snapshot"):
            bob.jobs.submit_spec(replace(job.spec, retry_of=None))
        taken = take_snapshot(project)
        with closing(link_of(bob)) as link:
            state = link.send("POST", "/snapshots", NewSnapshot(manifest=taken.text.decode()), kind=SnapshotState)
    assert set(state.missing) == set(taken.blobs())


def test_a_blob_with_a_false_hash_is_refused(served: ServedSite, link: Link) -> None:
    """Neither a whole content nor one in parts is stored under a false name."""
    false = hashlib.sha256(b"true").hexdigest()

    def send(content: bytes, size_bytes: int, offset_bytes: int = 0) -> None:
        part = ContentPart(
            sha256=false, size_bytes=size_bytes, offset_bytes=offset_bytes, content=base64.b64encode(content).decode()
        )
        link.send("POST", "/snapshots/contents", ContentParts(parts=(part,)))

    with pytest.raises(BadRequest, match="does not have the SHA-256"):
        send(b"lies", 4)
    send(b"li", 4)
    with pytest.raises(BadRequest, match="does not have the SHA-256"):
        send(b"es", 4, offset_bytes=2)
    with pytest.raises(BadRequest, match=r"a part of .* is missing before byte 2"):
        send(b"ue", 4, offset_bytes=2)
    send(b"tr", 4)
    send(b"ue", 4, offset_bytes=2)

    with blob_store_of(served.settings).open(false) as stored:
        assert b"true" == stored.read()


def test_one_request_has_so_many_parts(link: Link) -> None:
    """Each part is a file that waits for the disk, so a request with very many of them is refused as a whole."""
    part = ContentPart(sha256=hashlib.sha256(b"x").hexdigest(), size_bytes=1, content="eA==")

    with pytest.raises(BadRequest, match=r"the request has 10001 parts of blobs: send at most 10000 in one request"):
        link.send("POST", "/snapshots/contents", ContentParts(parts=(part,) * 10_001))


def test_the_client_sends_fewer_parts_than_the_service_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Very many tiny files travel in several requests, and the list of all of them is not made for each of them."""
    for number in range(10_100):
        (tmp_path / str(number)).write_text(str(number))
    taken = take_snapshot(tmp_path)
    missing = [*taken.sends()]
    of_manifest, lists = Manifest.blobs, []
    monkeypatch.setattr(Manifest, "blobs", lambda self: lists.append(self) or of_manifest(self))

    sizes = [len(batch) for batch in snapshots._batches(taken, missing)]

    assert 10_100 == sum(sizes)
    assert max(sizes) < MOST_PARTS
    assert 1 == len(lists)


@pytest.mark.parametrize(
    "manifest",
    [
        "",
        "gpuqueue-snapshot 1\nfile\t" + "0" * 64 + "\t1\t../x\n",
        "gpuqueue-snapshot 1\nfile\t" + "0" * 64 + "\t1\t/etc/passwd\n",
        "gpuqueue-snapshot 1\nlink\t../..\tx\n",
        "gpuqueue-snapshot 1\nfile\t" + "0" * 64 + f"\t{4 * MIB}\tx\n",
    ],
    ids=["empty", "parent", "absolute", "link", "large"],
)
def test_a_hostile_manifest_is_refused(link: Link, manifest: str) -> None:
    """What must not be unpacked is refused before anything is stored."""
    with pytest.raises(BadRequest):
        link.send("POST", "/snapshots", NewSnapshot(manifest=manifest), kind=SnapshotState)


def test_a_user_has_so_much_code(served: ServedSite, project: Path) -> None:
    """A user who sends more than the site allows is refused, and others are not."""
    for number in range(3):
        (project / f"{number}.bin").write_bytes(os.urandom(3 * MIB))
    with opened(served, "bobs") as bob, pytest.raises(Refused, match=r"snapshot_user_limit"):
        submitted(bob, project / "src")


def test_a_retry_has_the_same_code(client: Client, project: Path, ended: Callable[[Job], Job]) -> None:
    """The files of the first submission run again, whatever was changed since, and the same files are kept."""
    job, _ = submitted(client, project / "src", keep=["results/**", "*.csv"])
    ended(job)
    (project / "src" / "train.py").write_text("print(3)\n")

    again = client.jobs.retry(job.id).spec
    assert (job.spec.snapshot, ("/src/results/**", "*.csv")) == (again.snapshot, again.keep)


@pytest.fixture
def ended(served: ServedSite) -> Callable[[Job], Job]:
    """Return a function that cancels a job, and waits until the history has its end."""

    def end(job: Job) -> Job:
        with served.client("direct") as direct:
            direct.jobs.cancel(job.id)
        served.record()
        return job

    return end
