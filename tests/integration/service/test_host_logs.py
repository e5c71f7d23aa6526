"""Logs of runs on other hosts: real clients, a real service, and a relay that is written in this test."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from bounded import until
from event_stream import events, first
from fake_relay import FakeRelay, ask
from host_deliveries import submitted
from service_fixtures import ServedSite

from gpuqueue.client import Client
from gpuqueue.errors import Refused
from gpuqueue.model.job import Job, JobState
from gpuqueue.queue.lease import Claim

Content = Callable[[dict[str, Any]], bytes | str]


@contextmanager
def answering(relay: FakeRelay, claim: Claim, content: Content) -> Iterator[list[dict[str, Any]]]:
    """Answer requests for the log of *claim* by what *content* adds to it; a text is why it cannot be sent."""
    asked: list[dict[str, Any]] = []
    over = threading.Event()

    def answer(offset: int) -> None:
        while not over.is_set():
            for each in relay.poll(0.2):
                asked.append(each)
                added = content(each)
                if isinstance(added, str):
                    relay.done(each, added.encode())
                    continue
                if added:
                    relay.put(claim, "log", added, offset=offset)
                    offset += len(added)
                relay.done(each)

    relay.poll(0)  # a host that was silent in an earlier test is there again
    with ThreadPoolExecutor(1) as pool:
        answered = pool.submit(answer, 0)
        try:
            yield asked
        finally:
            over.set()
            answered.result(timeout=60)


def read(client: Client, job: Job, *, warn: Callable[[str], None] | None = None, run: int | None = None) -> bytes:
    """Return the log of *job* as ``gpuqueue logs`` prints it."""
    tail = client.logs.tail(warn=warn)
    client.logs.turn(tail, client.jobs.show(job.id), run=run)
    return b"".join(tail.rest())


def test_a_log_is_fetched_when_somebody_reads_it(owner: Client, relay: FakeRelay) -> None:
    """The host is asked for what is new, and the reader gets it without a warning."""
    job, warnings = submitted(owner), list[str]()
    claim = relay.runs(job)
    lines = iter([b"one\n", b"two\n"])
    with answering(relay, claim, lambda _: next(lines, b"")) as asked:
        assert read(owner, job, warn=warnings.append).startswith(b"one\n")
        until(lambda: b"one\ntwo\n" == read(owner, job, warn=warnings.append), what="the second line")
        assert b"two\n" == owner.logs.end(owner.jobs.newest(job.id), 4)

    assert [] == warnings
    assert {("log", job.id, claim.token, ())} == {
        (each["kind"], each["job"], each["token"], tuple(each["patterns"])) for each in asked
    }


def test_a_run_without_output_has_an_empty_log(owner: Client, relay: FakeRelay) -> None:
    """It is no error that nothing was written yet."""
    job = submitted(owner)
    with answering(relay, relay.runs(job), lambda _: b""):
        assert b"" == read(owner, job)


@pytest.mark.full
def test_a_host_that_does_not_answer_leaves_what_was_delivered(
    owner: Client, relay: FakeRelay, served: ServedSite
) -> None:
    """The client gets it with a warning. If nothing was delivered, it gets the reason."""
    job, warnings = submitted(owner), list[str]()
    claim = relay.runs(job)
    with pytest.raises(Refused, match=f"the log of job {job.id} is on another host: host nodeB does not answer"):
        read(owner, job)
    relay.put(claim, "log", b"one\n", offset=0)
    assert b"one\n" == read(owner, job, warn=warnings.append)
    (warning,) = warnings
    assert warning.startswith("host nodeB does not answer: this is its log until 2")
    answer = ask(served, "GET", f"/jobs/{job.id}/log", (served.directory / "mine").read_text())
    assert warning == answer.headers["gpuqueue-warning"]
    assert b"one\n" == b"".join(output for output in _until_end(owner, relay, job, claim, warnings))
    assert 2 == len(warnings)


def _until_end(owner: Client, relay: FakeRelay, job: Job, claim: Claim, warnings: list[str]) -> Iterator[bytes]:
    """Follow the log of *job*, and end the job after its first output."""
    for output in owner.logs.follow(job.id, owner.logs.tail(warn=warnings.append)):
        yield output
        relay.finish(claim)


def test_the_reason_of_the_host_is_that_of_the_reader(owner: Client, relay: FakeRelay) -> None:
    """It is one line that a terminal survives."""
    job = submitted(owner)
    with answering(relay, relay.runs(job), lambda _: "the log was\n\x1b[31mdeleted"), pytest.raises(Refused) as refusal:
        read(owner, job)

    assert str(refusal.value).endswith("is on another host: the log was \N{REPLACEMENT CHARACTER}[31mdeleted")


def test_a_whole_log_is_read_without_its_host(owner: Client, relay: FakeRelay) -> None:
    """After the run's end nothing is added, so the host need not be there."""
    job, warnings = submitted(owner), list[str]()
    claim = relay.runs(job)
    relay.put(claim, "log", b"all\n", offset=0)
    relay.put(claim, "complete")
    relay.finish(claim)

    assert b"all\n" == read(owner, job, warn=warnings.append)
    assert [b"all\n"] == list(owner.logs.follow(job.id))
    assert [] == warnings, "it would warn if it had asked the host, which does not answer"


def test_a_followed_log_has_the_last_lines(owner: Client, relay: FakeRelay) -> None:
    """They are fetched after the end of the job, and come before the end of the stream."""
    job = submitted(owner)
    claim = relay.runs(job)
    shown: list[bytes] = []
    ended = threading.Event()
    parts = iter([b"begin\n"])

    def content(_: dict[str, Any]) -> bytes:
        return b"the last line\n" if ended.is_set() else next(parts, b"")

    with answering(relay, claim, content), ThreadPoolExecutor(1) as pool:
        following = pool.submit(lambda: shown.extend(owner.logs.follow(job.id)))
        until(lambda: shown, what="the first line")
        relay.put(claim, "log", b"more\n", offset=6)  # without another request, as the relay does for 30 s
        until(lambda: b"more" in b"".join(shown), what="the second line")
        ended.set()
        # From here on the relay sends behind what it has sent itself.
        relay.finish(claim)
        following.result(timeout=60)

    assert b"begin\nmore\n" == b"".join(shown)[:11]


def test_a_log_goes_on_with_the_run_on_the_next_host(owner: Client, relay: FakeRelay, served: ServedSite) -> None:
    """The log of the first run is whole before that of the second begins."""
    job = submitted(owner)
    first_run = relay.runs(job)
    other = FakeRelay(served, "nodeC", "GPU-C")
    lost = threading.Event()
    texts = iter([b"one\n"])
    last = iter([b"last of one\n"])
    shown: list[bytes] = []

    with answering(relay, first_run, lambda _: next(last, b"") if lost.is_set() else next(texts, b"")):
        following = ThreadPoolExecutor(1)
        done = following.submit(lambda: shown.extend(owner.logs.follow(job.id)))
        until(lambda: shown, what="the first line")
        lost.set()
        served.queue.runs.lose(first_run.job_id, first_run.token, loss_limit=3, detail="a test")
        second = other.runs(job)
        served.record()
        two = iter([b"two\n"])
        with answering(other, second, lambda _: next(two, b"")):
            until(lambda: b"two" in b"".join(shown), what="the line of the second run")
            other.finish(second)
            done.result(timeout=60)
        following.shutdown()

    assert b"one\nlast of one\ntwo\n" == b"".join(shown)


@pytest.mark.full
def test_a_stream_warns_of_a_host_that_does_not_answer(owner: Client, relay: FakeRelay) -> None:
    """Once, between the output that there is and the end."""
    job = submitted(owner)
    claim = relay.runs(job)
    relay.put(claim, "log", b"one\n", offset=0)
    stream = (each for each in events(owner, f"/jobs/{job.id}/log/stream") if each.name not in {":", "job"})
    found = [next(stream), next(stream)]
    relay.finish(claim)
    rest = list(stream)

    assert {"warning", "output"} == {each.name for each in found}
    assert "end" == rest[-1].name
    assert "host nodeB does not answer: this is its log until" in str(found)


def test_nobody_else_reads_the_log(owner: Client, relay: FakeRelay, served: ServedSite) -> None:
    """Bob is refused before the host is asked for anything."""
    job = submitted(owner)
    claim = relay.runs(job)
    relay.put(claim, "log", b"private\n", offset=0)
    with served.client("https", "bobs") as bob:
        for path in (f"/jobs/{job.id}/log", f"/jobs/{job.id}/log/stream"):
            answer = ask(served, "GET", path, (served.directory / "bobs").read_text())
            assert (403, False) == (answer.status, b"private\n" in answer.content)
        with pytest.raises(Refused, match="may see the output"):
            read(bob, job)

    assert [] == relay.poll(0)


def test_a_direct_client_reads_what_was_delivered(owner: Client, relay: FakeRelay, served: ServedSite) -> None:
    """It cannot ask the host, and says so until the log is whole."""
    job, warnings = submitted(owner), list[str]()
    claim = relay.runs(job)
    with served.client("direct") as direct:
        with pytest.raises(Refused, match="is on host nodeB: /nowhere/"):
            read(direct, job)
        relay.put(claim, "log", b"one\n", offset=0)
        assert b"one\n" == read(direct, job, warn=warnings.append)
        assert served.settings.delivered_dir / str(job.id) / claim.token / "log" == direct.logs.path(job.id)
        assert warnings[0].startswith("the log is on another host: this is what was delivered of it until ")
        with pytest.raises(Refused, match="through a service only"):
            tail = direct.logs.tail()
            direct.logs.turn(tail, direct.jobs.show(job.id))
            direct.logs.terminal(job.id, tail)
        relay.put(claim, "complete")
        relay.finish(claim)
        assert [b"one\n"] == list(direct.logs.follow(job.id, direct.logs.tail(warn=warnings.append)))

    assert 1 == len(warnings)


@pytest.mark.full
def test_the_end_of_the_service_ends_polls_and_readers(owner: Client, relay: FakeRelay, served: ServedSite) -> None:
    """Neither holds it up, and both come back to the next one."""
    job = submitted(owner)
    claim = relay.runs(job)
    relay.put(claim, "log", b"one\n", offset=0)
    with ThreadPoolExecutor(2) as pool:
        polled = pool.submit(relay.poll, 60)
        stream = events(owner, f"/jobs/{job.id}/log/stream")
        assert "job" == first(stream, "job").name
        assert served.process is not None
        served.process.send_signal(signal.SIGTERM)
        served.process.wait(timeout=30)  # less than the poll of a relay takes
        polled.result(timeout=30)
    served.start()

    with answering(relay, claim, lambda _: b""):
        assert b"one\n" == read(owner, job)
    assert JobState.RUNNING is owner.jobs.get(job.id).state
