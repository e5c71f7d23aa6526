"""The service is killed while clients wait and follow: no output is lost or doubled, and no wait ends early."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from bounded import until
from factories import make_offer, must_claim
from service_fixtures import ServedSite

from gpuqueue.client.remote.http import Answer, HttpConnection
from gpuqueue.errors import ServiceUnreachable
from gpuqueue.model.job import JobState
from gpuqueue.model.run import Ending, RunDevice
from gpuqueue.queue.lease import Claim

#: Lines that the job writes, and after how many of them the service is killed.
LINES, KILLS = 600, (150, 300, 450)


@pytest.fixture
def claim(served: ServedSite) -> Claim:
    """Return a running job with an empty log."""
    with served.client("direct") as client:
        client.jobs.submit(["true"], mem="1M")
    found = must_claim(served.queue)
    log = _log(served, found)
    log.parent.mkdir(parents=True)
    log.touch()
    device = RunDevice(uuid=make_offer().device.uuid, lease_bytes=2**20)
    served.queue.runs.started(found.job_id, found.token, lease_s=300, log_path=str(log), devices=(device,))
    return found


def _log(served: ServedSite, claim: Claim) -> Path:
    return served.directory / str(claim.job_id) / claim.token / "log"


def _finish(served: ServedSite, claim: Claim) -> None:
    device = RunDevice(uuid=make_offer().device.uuid, lease_bytes=2**20)
    ending = Ending.from_status(0)
    served.queue.runs.finish(
        claim.job_id, claim.token, state=JobState.SUCCEEDED, ending=ending, duration_s=1.0, devices=(device,)
    )
    served.record()


def _is_longer(text: bytearray, size: int) -> bool:
    return len(text) > size


@pytest.mark.full
@pytest.mark.parametrize("kind", ["unix", "https"])
def test_a_follower_and_a_waiter_outlive_the_service(served: ServedSite, claim: Claim, kind: str) -> None:
    """A follower gets each byte once and a waiter gets the end, although the service is killed three times."""
    shown, ended, absences, connected = bytearray(), [], [], threading.Event()

    def follow() -> None:
        with closing(served.client(kind)) as client:
            for chunk in client.logs.follow(claim.job_id, away=absences.append):
                shown.extend(chunk)

    def wait() -> None:
        with closing(served.client(kind)) as client:
            client.jobs.get(claim.job_id)
            connected.set()
            ended.append(client.jobs.wait(claim.job_id).job.state)

    threads = [threading.Thread(target=each, daemon=True) for each in (follow, wait)]
    for each in threads:
        each.start()
    assert connected.wait(30)
    written = bytearray()
    with _log(served, claim).open("ab", buffering=0) as log:
        for number in range(LINES):
            line = b"line %d \xc3\xa9 \xff\n" % number
            log.write(line)
            written += line
            if number in KILLS:
                until(partial(_is_longer, shown, len(written) // 2), what="output at the follower")
                served.kill()
                served.start()
    until(lambda: bytes(shown) == bytes(written), what="all output at the follower")
    _finish(served, claim)
    for each in threads:
        each.join(timeout=60)

    assert bytes(written) == bytes(shown)
    assert [JobState.SUCCEEDED] == ended
    assert absences


def test_a_submit_whose_answer_was_lost_makes_one_job(served: ServedSite) -> None:
    """A service that is killed after the submit and before the answer leaves one job, not two or none."""
    with served.client("unix") as client, served.client("direct") as direct:
        client.jobs.get(client.jobs.submit(["true"], mem="1M", hold=True).id)  # the connection is open
        before = {job.id for job in direct.jobs.list()}
        assert served.process is not None
        os.kill(served.process.pid, signal.SIGSTOP)
        made: list[int] = []
        thread = threading.Thread(
            target=lambda: made.append(client.jobs.submit(["true"], mem="1M", hold=True).id), daemon=True
        )
        thread.start()
        served.kill()
        served.start()
        thread.join(timeout=60)

        assert [*{job.id for job in direct.jobs.list()} - before] == made


def test_a_submit_that_a_service_never_answers_says_that_the_job_may_be_queued(
    served: ServedSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error of a request that was sent names what to do before it is sent again."""
    ask = HttpConnection.ask

    def lost(self: HttpConnection, method: str, path: str, *rest: Any) -> Answer:
        answer = ask(self, method, path, *rest)
        if (method, path) == ("POST", "/api/v1/jobs"):
            answer.body()
            raise TimeoutError
        return answer

    with served.client("unix") as client, served.client("direct") as direct:
        before = {job.id for job in direct.jobs.list()}
        monkeypatch.setattr(HttpConnection, "ask", lost)

        with pytest.raises(ServiceUnreachable, match="look at gpuqueue queue before you submit it again"):
            client.jobs.submit(["true"], mem="1M", hold=True)

        assert 1 == len({job.id for job in direct.jobs.list()} - before)


@pytest.fixture(autouse=True)
def _fresh(served: ServedSite) -> Iterator[None]:
    yield
    assert served.process is not None
    assert served.process.poll() is None
