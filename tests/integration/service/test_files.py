"""The files of runs come back as archives: from their directories, and from what was kept."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from http.client import IncompleteRead
from pathlib import Path
from urllib.parse import quote

import pytest
from fake_relay import FakeRelay, ask
from fetched_files import archive_of, fetched, files_in, opened, packing, submitted
from service_fixtures import ServedSite

from gpuqueue.client import Client
from gpuqueue.errors import Refused
from gpuqueue.model.job import Job
from gpuqueue.model.job_request import JobRequest
from gpuqueue.model.run_files import KeptState
from gpuqueue.queue.lease import Claim


@pytest.fixture(scope="module")
def served() -> Iterator[ServedSite]:
    """Return a site whose service packs files with a small program of the tests."""
    with packing() as site:
        yield site


@pytest.fixture
def owner(served: ServedSite) -> Iterator[Client]:
    """Return a client of this account whose code travels. Nothing is open."""
    with opened(served) as client:
        yield client


@pytest.fixture
def here(served: ServedSite, owner: Client) -> FakeRelay:  # noqa: ARG001 - nothing is open
    """Return the host of the service itself, with one device."""
    return FakeRelay(served, served.settings.host, "GPU-0")


def run_here(here: FakeRelay, job: Job) -> tuple[Claim, Path]:
    """Let *job* run on the host of the service, and return its run directory with two files of the job."""
    claim = here.runs(job, runs=here.site.settings.runs_dir)
    directory = here.site.settings.runs_dir / str(job.id) / claim.token
    (directory / "code" / "tree" / "out").mkdir(parents=True)
    (directory / "code" / "tree" / "out" / "a.pt").write_bytes(b"weights")
    (directory / "code" / "tree" / "b.txt").write_text("text\n")
    (directory / "log").write_text("log\n")
    return claim, directory


def test_files_come_from_the_directory_of_the_run(
    owner: Client, here: FakeRelay, served: ServedSite, tmp_path: Path
) -> None:
    """While the job runs, and after its end; with patterns only those that match."""
    job = submitted(owner, tmp_path)
    claim, _ = run_here(here, job)
    running = fetched(served, job)
    some = fetched(served, job, "?pattern=" + quote("out/*.pt") + "&pattern=--from&run=1")
    here.finish(claim)
    ended = fetched(served, job)

    assert {"out/a.pt": b"weights", "b.txt": b"text\n"} == files_in(running) == files_in(ended)
    assert {"out/a.pt": b"weights"} == files_in(some)
    assert ("1", "directory") == (running.headers["gpuqueue-run"], running.headers["gpuqueue-source"])


def test_kept_files_come_when_the_directory_has_gone(
    owner: Client, here: FakeRelay, served: ServedSite, tmp_path: Path
) -> None:
    """Without these the answer says what happened, and by which setting."""
    job = submitted(owner, tmp_path)
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


def test_kept_files_can_be_asked_for_while_the_directory_is_there(
    owner: Client, here: FakeRelay, served: ServedSite, tmp_path: Path
) -> None:
    """With their size and the time of their end. Without them, the answer says why there are none."""
    job = submitted(owner, tmp_path)
    claim, directory = run_here(here, job)
    here.finish(claim)
    assert KeptState.NONE is owner.files.kept(job.id).state
    assert (404, f"job {job.id} asked to keep no files (submit --keep)") == (
        *((none := fetched(served, job, "?kept=true")).status, none.detail),
    )
    (directory / "results.removed").write_text("they needed 60G (setting user_results_limit)")
    removed = owner.files.kept(job.id)
    assert (KeptState.REMOVED, "they needed 60G (setting user_results_limit)") == (removed.state, removed.reason)
    with pytest.raises(Refused, match=rf"^the files that job {job.id} kept were removed: they needed 60G"):
        owner.files.fetch(job.id, kept=True)
    (directory / "results.tar").write_bytes(archive_of({"out/a.pt": b"kept"}))
    kept = owner.files.kept(job.id, run=1)

    assert (KeptState.KEPT, (directory / "results.tar").stat().st_size) == (kept.state, kept.size_bytes)
    assert kept.expires_at is not None
    assert {"out/a.pt": b"kept"} == files_in(fetched(served, job, "?kept=true"))
    assert {"out/a.pt", "b.txt"} == {*files_in(fetched(served, job))}
    assert 403 == ask(served, "GET", f"/jobs/{job.id}/files/kept", (served.directory / "bobs").read_text()).status


def test_a_link_in_place_of_kept_files_is_not_followed(
    owner: Client, here: FakeRelay, served: ServedSite, tmp_path: Path
) -> None:
    """A job can write into its run directory where jobs run as the worker."""
    job = submitted(owner, tmp_path)
    claim, directory = run_here(here, job)
    here.finish(claim)
    shutil.rmtree(directory / "code")
    (tmp_path / "private.tar").write_bytes(archive_of({"secret": b"x"}))
    (tmp_path / "private").write_text("secret\n")
    (directory / "results.tar").symlink_to(tmp_path / "private.tar")
    (directory / "results.failed").symlink_to(tmp_path / "private")
    answer = fetched(served, job)

    assert (404, False) == (answer.status, b"secret" in answer.content)


def test_what_has_no_files_says_why(owner: Client, here: FakeRelay, served: ServedSite, tmp_path: Path) -> None:
    """A job that has not run, one whose code did not travel, an array, and what there is not."""
    waits = submitted(owner, tmp_path)
    array = owner.jobs.submit_request(JobRequest("train.py", mem="1M", cwd=tmp_path, array="0-1"))
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
    owner: Client, here: FakeRelay, served: ServedSite, tmp_path: Path
) -> None:
    """The client cannot take it for whole. A failure before the beginning is a problem document."""
    job = submitted(owner, tmp_path)
    _, directory = run_here(here, job)
    (directory / "trouble").write_text("after 1 the disk is broken\n")
    with pytest.raises(IncompleteRead):
        fetched(served, job)
    (directory / "trouble").write_text("before 1 the disk is broken\n")
    answer = fetched(served, job)

    assert (500, "the files cannot be packed: the disk is broken") == (answer.status, answer.detail)
    assert b"Traceback" not in (served.directory / "service.log").read_bytes()


def test_kept_files_come_when_the_directory_cannot_be_packed(
    owner: Client, here: FakeRelay, served: ServedSite, tmp_path: Path
) -> None:
    """A broken disk below the copy of the code does not hide what was kept elsewhere."""
    job = submitted(owner, tmp_path)
    claim, directory = run_here(here, job)
    here.finish(claim)
    (directory / "trouble").write_text("before 1 the disk is broken\n")
    (directory / "results.tar").write_bytes(archive_of({"out/a.pt": b"kept"}))
    answer = fetched(served, job)

    assert ({"out/a.pt": b"kept"}, "kept") == (files_in(answer), answer.headers["gpuqueue-source"])


def test_nobody_else_gets_the_files(
    owner: Client, here: FakeRelay, relay: FakeRelay, served: ServedSite, tmp_path: Path
) -> None:
    """Bob is refused, before a host is asked for anything."""
    job = submitted(owner, tmp_path)
    claim, _ = run_here(here, job)
    here.finish(claim)
    there = submitted(owner, tmp_path)
    relay.put(relay.runs(there), "results", archive_of({"x": b"weights"}))
    for each in (job, there):
        answer = fetched(served, each, token="bobs")
        assert (403, False) == (answer.status, b"weights" in answer.content)
        assert 401 == ask(served, "GET", f"/jobs/{each.id}/files", relay.token).status
        assert 401 == ask(served, "GET", f"/jobs/{each.id}/files", None).status

    assert [] == relay.poll(0)


def test_who_may_read_all_logs_gets_no_code(tmp_path: Path) -> None:
    """A pattern can name any file of the code, so a site that opens its logs to everybody does not open the files."""
    with packing(GPUQUEUE_ACCESS="see-logs=everybody") as site, opened(site) as client:
        job = submitted(client, tmp_path)
        run_here(FakeRelay(site, site.settings.host, "GPU-0"), job)
        log = ask(site, "GET", f"/jobs/{job.id}/log", (site.directory / "bobs").read_text())
        files = fetched(site, job, "?pattern=**", token="bobs")

        assert (200, b"log\n") == (log.status, log.content)
        assert (403, False) == (files.status, b"weights" in files.content)
