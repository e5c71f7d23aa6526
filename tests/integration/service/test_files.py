"""The files of runs come back as archives: from directories, from hosts, and from what was kept."""

from __future__ import annotations

import io
import os
import shutil
import socket
import ssl
import sys
import tarfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from http.client import IncompleteRead
from pathlib import Path
from tempfile import mkdtemp
from urllib.parse import quote

import pytest
from bounded import until
from fake_relay import Answer, FakeRelay, ask
from service_fixtures import ServedSite, serving

from gpuqueue.client import Client
from gpuqueue.model.job import Job
from gpuqueue.model.job_request import JobRequest
from gpuqueue.queue.lease import Claim
from gpuqueue.text.units import MIB

PACK = Path(__file__).resolve().parents[2] / "support" / "pack_files.py"


@pytest.fixture(scope="module")
def served() -> Iterator[ServedSite]:
    """Return a site whose service packs files with a small program of the tests."""
    folder = Path(mkdtemp(prefix="gpuqueue-pack-"))
    program = folder / "pack"
    program.write_text(f"#!{sys.executable}\n{PACK.read_text()}")
    program.chmod(0o700)
    bounds = {"gpuqueue.service.archives:PROGRAM": str(program), "gpuqueue.service.transfers:FIRST_S": 2}
    with serving(bounds=bounds) as site:
        yield site
    shutil.rmtree(folder)


@pytest.fixture
def owner(served: ServedSite) -> Iterator[Client]:
    """Return a client of this account whose code travels. Nothing is open."""
    with served.client("direct") as direct:
        for each in direct.jobs.list():
            direct.jobs.cancel(each.id)
    with Client(replace(served.client("https").settings, snapshot=True)) as client:
        yield client


@pytest.fixture
def here(served: ServedSite, owner: Client) -> FakeRelay:  # noqa: ARG001 - nothing is open
    """Return the host of the service itself, with one device."""
    return FakeRelay(served, served.settings.host, "GPU-0")


@pytest.fixture
def relay(served: ServedSite, owner: Client) -> FakeRelay:  # noqa: ARG001 - nothing is open
    """Return another worker host."""
    return FakeRelay(served)


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """Return a directory with code."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("print(1)\n")
    return tmp_path / "code"


def submitted(client: Client, code: Path) -> Job:
    """Submit a job with a copy of its code."""
    return client.jobs.submit_request(JobRequest("train.py", mem="1M", cwd=code))


def run_here(here: FakeRelay, job: Job) -> tuple[Claim, Path]:
    """Let *job* run on the host of the service, and return its run directory with two files of the job."""
    claim = here.runs(job, runs=here.site.settings.runs_dir)
    directory = here.site.settings.runs_dir / str(job.id) / claim.token
    (directory / "code" / "tree" / "out").mkdir(parents=True)
    (directory / "code" / "tree" / "out" / "a.pt").write_bytes(b"weights")
    (directory / "code" / "tree" / "b.txt").write_text("text\n")
    (directory / "log").write_text("log\n")
    return claim, directory


def fetched(site: ServedSite, job: Job | int | str, query: str = "", token: str = "mine") -> Answer:
    """Return the answer to a request for the files of *job*."""
    name = job.id if isinstance(job, Job) else job
    return ask(site, "GET", f"/jobs/{name}/files{query}", (site.directory / token).read_text())


def files_in(answer: Answer) -> dict[str, bytes]:
    """Return the files of an archive."""
    assert (200, "application/x-tar") == (answer.status, answer.headers.get("content-type")), answer.content[:1000]
    with tarfile.open(fileobj=io.BytesIO(answer.content)) as archive:
        return {each.name: archive.extractfile(each).read() for each in archive}  # type: ignore[union-attr]


def archive_of(files: dict[str, bytes]) -> bytes:
    """Return an archive."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return made.getvalue()


def test_files_come_from_the_directory_of_the_run(
    owner: Client, here: FakeRelay, served: ServedSite, code: Path
) -> None:
    """While the job runs, and after its end; with patterns only those that match."""
    job = submitted(owner, code)
    claim, _ = run_here(here, job)
    running = fetched(served, job)
    some = fetched(served, job, "?pattern=" + quote("out/*.pt") + "&pattern=--from&run=1")
    here.finish(claim)
    ended = fetched(served, job)

    assert {"out/a.pt": b"weights", "b.txt": b"text\n"} == files_in(running) == files_in(ended)
    assert {"out/a.pt": b"weights"} == files_in(some)
    assert ("1", "directory") == (running.headers["gpuqueue-run"], running.headers["gpuqueue-source"])


def test_kept_files_come_when_the_directory_has_gone(
    owner: Client, here: FakeRelay, served: ServedSite, code: Path
) -> None:
    """Without these the answer says what happened, and by which setting."""
    job = submitted(owner, code)
    claim, directory = run_here(here, job)
    here.finish(claim)
    shutil.rmtree(directory / "code")
    gone = fetched(served, job)
    (directory / "results.failed").write_text("they have 12G, more than results_limit (10G)\n")
    failed = fetched(served, job)
    (directory / "results.tar").write_bytes(archive_of({"out/a.pt": b"kept", "x": b""}))
    kept = fetched(served, job, "?pattern=out/*")

    assert (404, True) == (gone.status, "is not there any more; it is kept for 7d" in gone.detail)
    expected = f"the files that job {job.id} asked to keep were not kept: they have 12G, more than results_limit (10G)"
    assert (404, expected) == (failed.status, failed.detail)
    assert ({"out/a.pt": b"kept"}, "kept") == (files_in(kept), kept.headers["gpuqueue-source"])


def test_a_link_in_place_of_kept_files_is_not_followed(
    owner: Client, here: FakeRelay, served: ServedSite, code: Path, tmp_path: Path
) -> None:
    """A job can write into its run directory where jobs run as the worker."""
    job = submitted(owner, code)
    claim, directory = run_here(here, job)
    here.finish(claim)
    shutil.rmtree(directory / "code")
    (tmp_path / "private.tar").write_bytes(archive_of({"secret": b"x"}))
    (tmp_path / "private").write_text("secret\n")
    (directory / "results.tar").symlink_to(tmp_path / "private.tar")
    (directory / "results.failed").symlink_to(tmp_path / "private")
    answer = fetched(served, job)

    assert (404, False) == (answer.status, b"secret" in answer.content)


def test_what_has_no_files_says_why(owner: Client, here: FakeRelay, served: ServedSite, code: Path) -> None:
    """A job that has not run, one whose code did not travel, an array, and what there is not."""
    waits = submitted(owner, code)
    array = owner.jobs.submit_request(JobRequest("train.py", mem="1M", cwd=code, array="0-1"))
    assert "has no files yet" in fetched(served, waits).detail
    assert f"name a member, such as {array.id}_0" in fetched(served, array).detail
    owner.jobs.cancel(waits.id)
    owner.jobs.cancel(array.id)
    stays = owner.jobs.submit(["true"], mem="1M", env={}, cwd="/", snapshot=False)
    here.finish(here.runs(stays))

    words = f"job {stays.id} ran in / on {here.name}: its code did not travel, copy files from there"
    assert (404, words) == (fetched(served, stays).status, fetched(served, stays).detail)
    assert 404 == fetched(served, 999999).status
    assert 409 == fetched(served, stays, "?run=7").status
    for bad in ("?pattern=", "?pattern=%00", "?pattern=%0a", f"?pattern={'x' * 1025}", "?" + "pattern=a&" * 33, "?x=1"):
        assert 400 == fetched(served, stays, bad).status, bad


def test_an_archive_that_is_cut_short_is_no_whole_answer(
    owner: Client, here: FakeRelay, served: ServedSite, code: Path
) -> None:
    """The client cannot take it for whole. A failure before the beginning is a problem document."""
    job = submitted(owner, code)
    _, directory = run_here(here, job)
    (directory / "trouble").write_text("after 1 the disk is\nbroken\n")
    with pytest.raises(IncompleteRead):
        fetched(served, job)
    (directory / "trouble").write_text("before 1 the disk is\nbroken\n")
    answer = fetched(served, job)

    assert (500, "the files cannot be packed: the disk is broken") == (answer.status, answer.detail)
    assert b"Traceback" not in (served.directory / "service.log").read_bytes()


def answer_files(relay: FakeRelay, content: bytes | str) -> dict[str, object]:
    """Answer one request for files with *content*; a text is why they cannot be sent. Return the request."""
    (request,) = until(lambda: relay.poll(5), what="a request")
    if isinstance(content, str):
        assert 204 == relay.done(request, content.encode()).status
    else:
        parts = (content[begin : begin + 100_000] for begin in range(0, len(content), 100_000))
        assert 204 == relay.ask("PUT", f"/requests/{request['id']}/content", parts).status
        assert 204 == relay.done(request).status
    return request


def test_files_of_another_host_come_through_its_relay(
    owner: Client, relay: FakeRelay, served: ServedSite, code: Path
) -> None:
    """Many megabytes pass through the service, and the relay gets the patterns."""
    job = submitted(owner, code)
    claim = relay.runs(job)
    files = {"a": os.urandom(20 * MIB), "b": b"text"}
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(fetched, served, job, "?pattern=*.pt&pattern=b")
        request = answer_files(relay, archive_of(files))
        answer = asking.result(timeout=60)

    assert files == files_in(answer)
    assert ("1", "directory") == (answer.headers["gpuqueue-run"], answer.headers["gpuqueue-source"])
    assert ("files", job.id, claim.token, ["*.pt", "b"]) == tuple(
        request[each] for each in ("kind", "job", "token", "patterns")
    )
    assert not (served.settings.delivered_dir / str(job.id)).exists()


def test_delivered_files_come_when_the_host_has_none_or_is_away(
    owner: Client, relay: FakeRelay, served: ServedSite, code: Path
) -> None:
    """Without these the answer has the reason of the host, or that it does not answer."""
    job = submitted(owner, code)
    claim = relay.runs(job)
    relay.finish(claim)
    away = fetched(served, job)
    with ThreadPoolExecutor(1) as pool:
        assert [] == relay.poll(0)
        asking = pool.submit(fetched, served, job)
        answer_files(relay, "the copy of the code was deleted: setting keep_code")
        gone = asking.result(timeout=60)
        relay.put(claim, "results-failed", b"no room")
        asking = pool.submit(fetched, served, job)
        answer_files(relay, "it was deleted")
        failed = asking.result(timeout=60)
        relay.put(claim, "results", archive_of({"out": b"kept"}))
        asking = pool.submit(fetched, served, job)
        answer_files(relay, "it was deleted")
        kept = asking.result(timeout=60)

    words = f"the files of job {job.id} are on another host: "
    assert (404, words + "host nodeB does not answer") == (away.status, away.detail)
    assert (404, words + "the copy of the code was deleted: setting keep_code") == (gone.status, gone.detail)
    assert (404, f"the files that job {job.id} asked to keep were not kept: no room") == (failed.status, failed.detail)
    assert ({"out": b"kept"}, "kept") == (files_in(kept), kept.headers["gpuqueue-source"])


def _begin(site: ServedSite, words: str) -> ssl.SSLSocket:
    """Return a connection on which a request was begun."""
    context = ssl.create_default_context(cafile=site.directory / "cert.pem")
    made = context.wrap_socket(
        socket.create_connection(("127.0.0.1", site.port), timeout=20), server_hostname="127.0.0.1"
    )
    made.sendall(words.encode())
    return made


def test_a_host_that_dies_while_it_sends_cuts_the_archive_short(
    owner: Client, relay: FakeRelay, served: ServedSite, code: Path
) -> None:
    """The client gets no whole answer."""
    job = submitted(owner, code)
    relay.runs(job)
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(fetched, served, job)
        (request,) = until(lambda: relay.poll(5), what="a request")
        path = f"/api/v1/host/requests/{request['id']}/content"
        head = f"PUT {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {relay.token}\r\n"
        with closing(_begin(served, f"{head}Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n")):
            until(lambda: 404 == relay.ask("PUT", path.removeprefix("/api/v1/host"), b"").status, what="its beginning")
        with pytest.raises(IncompleteRead):
            asking.result(timeout=60)


def test_a_client_that_leaves_ends_the_request_of_the_host(
    owner: Client, relay: FakeRelay, served: ServedSite, code: Path
) -> None:
    """The host need not send the rest."""
    job = submitted(owner, code)
    relay.runs(job)
    token = (served.directory / "mine").read_text()
    head = f"GET /api/v1/jobs/{job.id}/files HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n"
    with closing(_begin(served, head)) as client:
        (request,) = until(lambda: relay.poll(5), what="a request")

        def endless() -> Iterator[bytes]:
            yield b"x" * MIB
            client.recv(10)
            client.close()
            while True:
                yield b"x" * MIB

        answer = relay.ask("PUT", f"/requests/{request['id']}/content", endless())

    assert (404, "nobody waits for this request any more") == (answer.status, answer.detail)


def test_nobody_else_gets_the_files(
    owner: Client, here: FakeRelay, relay: FakeRelay, served: ServedSite, code: Path
) -> None:
    """Bob is refused, before a host is asked for anything."""
    job = submitted(owner, code)
    claim, _ = run_here(here, job)
    here.finish(claim)
    there = submitted(owner, code)
    relay.put(relay.runs(there), "results", archive_of({"x": b"weights"}))
    for each in (job, there):
        answer = fetched(served, each, token="bobs")
        assert (403, False) == (answer.status, b"weights" in answer.content)
        assert 401 == ask(served, "GET", f"/jobs/{each.id}/files", relay.token).status
        assert 401 == ask(served, "GET", f"/jobs/{each.id}/files", None).status

    assert [] == relay.poll(0)


def test_an_account_fetches_so_many_at_a_time(owner: Client, relay: FakeRelay, served: ServedSite, code: Path) -> None:
    """More are refused until one ends. Another account is served meanwhile."""
    job = submitted(owner, code)
    relay.runs(job)
    assert [] == relay.poll(0)
    with ThreadPoolExecutor(4) as pool:
        asking = [pool.submit(fetched, served, job) for _ in range(4)]
        requests: list[dict[str, object]] = []
        until(lambda: requests.extend(relay.poll(1)) or len(requests) == 4, what="four requests")
        refused = fetched(served, job)
        assert 403 == fetched(served, job, token="bobs").status
        for each in requests:
            relay.done(each, b"enough")
        assert [404] * 4 == [each.result(timeout=60).status for each in asking]

    assert (429, True) == (refused.status, "retry-after" in refused.headers)
