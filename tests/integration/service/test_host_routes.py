"""What worker hosts may do at the service: a real service, TLS, and a relay that is written in this test."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from factories import must_claim
from fake_relay import FakeRelay, ask
from host_deliveries import delivered, submitted
from service_fixtures import ServedSite, serving

from gpuqueue.client import Client
from gpuqueue.files.manifest import StreamReader
from gpuqueue.model.job_request import JobRequest
from gpuqueue.text.units import MIB

PUTS = ("log?offset=0", "stderr?offset=0", "log.times?offset=0", "results", "results-failed", "complete")


@pytest.fixture(scope="module")
def served() -> Iterator[ServedSite]:
    """Return a site whose logs are small."""
    with serving(GPUQUEUE_LOG_LIMIT="1M") as site:
        yield site


@pytest.mark.full
def test_a_log_arrives_in_parts(owner: Client, relay: FakeRelay, served: ServedSite) -> None:
    """Each answer says where to go on, also that to a part which is there already."""
    job = submitted(owner)
    claim = relay.runs(job)
    first = relay.put(claim, "log", b"one\n", offset=0)
    again = relay.put(claim, "log", b"one\ntwo\n", offset=0)
    second = relay.put(claim, "log", b"two\n", offset=4)
    hole = relay.put(claim, "log", b"three\n", offset=2 * MIB)
    times = relay.put(claim, "log.times", b"1 8\n", offset=0)

    answers = [(each.status, each.headers.get("gpuqueue-next-offset")) for each in (first, again, second, hole, times)]
    assert [(204, "4"), (409, "4"), (204, "8"), (204, str(2 * MIB + 6)), (204, "4")] == answers
    assert b"one\ntwo\n" + bytes(2 * MIB - 8) + b"three\n" == (delivered(served, job) / "log").read_bytes()
    assert "go on there" in again.detail


def test_a_log_above_the_limit_is_refused_until_it_begins_anew(
    owner: Client, relay: FakeRelay, served: ServedSite
) -> None:
    """The host sends what it has kept, which has holes."""
    job = submitted(owner)
    claim = relay.runs(job)
    relay.put(claim, "log", b"x" * MIB, offset=0)
    refused = relay.put(claim, "log", b"y", offset=MIB)
    anew = [
        relay.put(claim, "log", b"x" * 1000, offset=0, replace="true"),
        relay.put(claim, "log", b"y", offset=MIB),
    ]

    assert (413, True) == (refused.status, "log_limit" in refused.detail)
    assert [204, 204] == [each.status for each in anew]
    assert 400 == relay.put(claim, "log", b"x", offset=5, replace="true").status
    assert b"x" * 1000 + bytes(MIB - 1000) + b"y" == (delivered(served, job) / "log").read_bytes()


def test_a_host_writes_no_run_of_another(owner: Client, relay: FakeRelay, served: ServedSite) -> None:
    """Neither what another host runs, nor what it does not run, nor what there is not."""
    other = FakeRelay(served, "nodeC", "GPU-C")
    job = submitted(owner)
    claim = relay.runs(job)
    forged = [
        replace(claim, token=f"1.{'0' * 12}"),
        replace(claim, job_id=claim.job_id + 1),
        replace(claim, token=".."),
    ]
    for what in PUTS:
        name, _, query = what.partition("?")
        words = dict([query.split("=")]) if query else {}
        assert 404 == other.put(claim, name, b"x", **words).status, what
        for each in forged:
            assert relay.put(each, name, b"x", **words).status in {404, 405}, (what, each)

    assert not served.settings.delivered_dir.joinpath(str(job.id)).exists()
    relay.finish(claim)
    assert 404 == other.put(claim, "complete").status
    assert 204 == relay.put(claim, "complete").status
    assert 400 == relay.put(claim, "spec", b"x", offset=0).status


def test_a_run_stays_that_of_its_host_when_the_job_runs_elsewhere(
    owner: Client, relay: FakeRelay, served: ServedSite
) -> None:
    """Its log can be delivered afterwards, and that of the next run cannot."""
    job = submitted(owner)
    first = relay.runs(job)
    served.queue.runs.lose(first.job_id, first.token, loss_limit=3, detail="a test")
    other = FakeRelay(served, "nodeC", "GPU-C")
    second = other.runs(job)
    served.record()

    assert 204 == relay.put(first, "log", b"one", offset=0).status
    assert 404 == relay.put(second, "log", b"two", offset=0).status
    assert 204 == other.put(second, "log", b"two", offset=0).status
    assert {first.token, second.token} == {
        each.name for each in (served.settings.delivered_dir / str(job.id)).iterdir()
    }


def paths(job_id: int) -> list[tuple[str, str]]:
    """Return all routes of hosts."""
    puts = [("PUT", f"/host/runs/{job_id}/1.a/{each}") for each in PUTS]
    others = [("PUT", "/host/requests/x/content"), ("PUT", "/host/requests/x/done")]
    return [("GET", f"/host/jobs/{job_id}/code"), ("GET", "/host/requests?timeout_s=0"), *puts, *others]


def test_no_person_uses_the_routes_of_hosts(owner: Client, relay: FakeRelay, served: ServedSite) -> None:
    """A token of a person proves no host, not even that of an admin, and nothing proves nothing."""
    claim = relay.runs(submitted(owner))
    mine = (served.directory / "mine").read_text()
    for method, path in paths(claim.job_id):
        refused = [ask(served, method, path, token, b"x") for token in (mine, (served.directory / "bobs").read_text())]
        assert [(403, "a person cannot serve jobs")] * 2 == [(each.status, each.detail) for each in refused], path
        assert 401 == ask(served, method, path, None, b"x").status
    assert not served.settings.delivered_dir.joinpath(str(claim.job_id)).exists()


def test_a_host_uses_no_route_of_persons(owner: Client, relay: FakeRelay, served: ServedSite) -> None:
    """It reads no log and no files through them, not even of its own runs."""
    job = submitted(owner)
    relay.put(relay.runs(job), "log", b"one", offset=0)
    for path in ("log", "log/stream", "files", "record", "why"):
        assert 401 == ask(served, "GET", f"/jobs/{job.id}/{path}", relay.token).status, path
    assert 401 == ask(served, "POST", f"/jobs/{job.id}/cancel", relay.token).status


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """Return a directory with code."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("print(1)\n")
    return tmp_path / "code"


def test_a_host_reads_the_code_of_the_jobs_that_run_there(
    owner: Client, relay: FakeRelay, served: ServedSite, code: Path
) -> None:
    """Only while they do. The answer is the stream of the snapshot, with its length."""
    assert owner.service is not None
    other = FakeRelay(served, "nodeC", "GPU-C")
    with Client(replace(served.client("https").settings, snapshot=True)) as client:
        job = client.jobs.submit_request(JobRequest("train.py", mem="1M", cwd=code))
    path = f"/jobs/{job.id}/code"
    assert 404 == relay.ask("GET", path).status
    claim = must_claim(served.queue, relay.device, host=relay.name)
    found = relay.ask("GET", path)
    assert (200, str(len(found.content))) == (found.status, found.headers["content-length"])
    reader = StreamReader(io.BytesIO(found.content))
    assert b"train.py" in reader.text
    assert b"print(1)\n" == b"".join(reader.blob(9))
    assert 404 == other.ask("GET", path).status

    relay.started(claim)
    assert 200 == relay.ask("GET", path).status
    relay.finish(claim)
    assert 404 == relay.ask("GET", path).status
    without = submitted(owner)
    relay.runs(without)
    assert "did not travel" in relay.ask("GET", f"/jobs/{without.id}/code").detail
    assert 404 == relay.ask("GET", "/jobs/999999/code").status


def test_requests_of_the_service_have_bounds(relay: FakeRelay) -> None:
    """A poll without anything to do is empty, and what nobody asked for is refused or forgotten."""
    assert [] == relay.poll(0)
    assert 400 == relay.ask("GET", "/requests?timeout_s=3600").status
    assert 404 == relay.ask("PUT", "/requests/x/content", b"x").status
    assert 204 == relay.ask("PUT", "/requests/x/done").status
    assert 413 == relay.ask("PUT", "/requests/x/done", b"x" * 5000).status
