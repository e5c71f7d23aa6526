"""The progress of jobs on other hosts: asked for once, shared, bounded, and only that of the host's own jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from datetime import datetime, timezone
from typing import Any

import pytest
from factories import make_spec

from gpuqueue.model.job import Job, JobState
from gpuqueue.model.progress import Progress, Reading
from gpuqueue.model.relay import RelayKind, RunProgress
from gpuqueue.service import host_progress
from gpuqueue.service.host_progress import HostProgress
from gpuqueue.service.relay_requests import ProgressRequest
from gpuqueue.service.relays import Relays


def within(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run *main* in a loop, with a bound."""
    asyncio.run(asyncio.wait_for(main(), 20))


def job(job_id: int, host: str = "gpu2", attempt: int = 1) -> Job:
    """Return a running job."""
    now = datetime.now(timezone.utc)
    return Job(id=job_id, spec=make_spec(), state=JobState.RUNNING, submitted_at=now, host=host, attempt=attempt)


def reported(
    job_id: int, token: str = "1.a", share: float = 0.5, counts: str = "1/2", left_s: float | None = None
) -> RunProgress:
    """Return what a host says of a run."""
    return RunProgress(job=job_id, token=token, share=share, counts=counts, left_s=left_s)


async def answer(relays: Relays, *runs: RunProgress, host: str = "gpu2") -> None:
    """Answer one request to *host*."""
    (found,) = await relays.poll(host, 10)
    assert (RelayKind.PROGRESS, None, None) == (found.kind, found.job, found.token)
    request = relays.find(host, found.id)
    assert isinstance(request, ProgressRequest)
    request.found(runs)


def test_viewers_share_a_request() -> None:
    """Those who look at a time get one answer, and so do those who look right after it."""

    async def main() -> None:
        relays = Relays()
        await relays.poll("gpu2", 0)
        site = HostProgress(relays)
        viewers = [asyncio.ensure_future(site.of([job(5), job(6)])) for _ in range(3)]
        await asyncio.sleep(0)
        await answer(relays, reported(5), reported(7))
        assert [{5: Reading(Progress(share=0.5, counts="1/2"))}] * 3 == await asyncio.gather(*viewers)
        assert {7: Reading(Progress(share=0.5, counts="1/2"))} == await site.of([job(7)])
        assert () == await relays.poll("gpu2", 0)
        assert {} == relays._hosts

    within(main)


def test_hosts_are_asked_at_a_time_and_each_answers_for_its_own_jobs() -> None:
    """What a host says of the job of another, or of an earlier run, counts for nothing."""

    async def main() -> None:
        relays = Relays()
        for name in ("gpu2", "gpu3"):
            await relays.poll(name, 0)
        site = HostProgress(relays)
        viewer = asyncio.ensure_future(site.of([job(5), job(6, "gpu3"), job(7, attempt=2)]))
        await asyncio.sleep(0)
        await answer(relays, reported(5), reported(6), reported(7))
        await answer(relays, reported(5, counts="other"), reported(6, counts="6"), host="gpu3")
        found = await viewer
        assert {5: "1/2", 6: "6"} == {job_id: each.progress.counts for job_id, each in found.items()}

    within(main)


def test_what_a_host_says_is_checked() -> None:
    """No escape of a terminal, no share that cannot be, no token that is none."""

    async def main() -> None:
        relays = Relays()
        await relays.poll("gpu2", 0)
        site = HostProgress(relays)
        viewer = asyncio.ensure_future(site.of([job(number) for number in range(1, 7)]))
        await asyncio.sleep(0)
        await answer(
            relays,
            reported(1, counts="\x1b[31m" + "x" * 1000, left_s=-1.0),
            reported(2, share=1.5),
            reported(3, share=float("nan")),
            reported(4, share=-0.1),
            reported(5, token="one.a"),
            reported(6, share=1),
        )
        found = await viewer
        assert {1, 6} == found.keys()
        assert "\x1b" not in found[1].progress.words
        assert len(found[1].progress.counts) <= host_progress.MOST_COLUMNS
        assert 0 == found[1].progress.left_s

    within(main)


def test_a_host_without_a_relay_is_not_waited_for() -> None:
    """A host that has not joined answers nothing, and the others are shown without delay."""

    async def main() -> None:
        began = asyncio.get_running_loop().time()
        assert {} == await HostProgress(Relays()).of([job(5)])
        assert asyncio.get_running_loop().time() - began < host_progress.WAIT_S / 2

    within(main)


def test_a_host_that_is_late_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next viewers do not wait. Its late answer is shown as long as it is not old."""
    monkeypatch.setattr(host_progress, "WAIT_S", 0.5)

    async def main() -> None:
        relays = Relays()
        loop = asyncio.get_running_loop()
        await relays.poll("gpu2", 0)
        site = HostProgress(relays)
        assert {} == await site.of([job(5)])
        began = loop.time()
        assert {} == await site.of([job(5)])
        assert loop.time() - began < 0.4
        await answer(relays, reported(5))
        await asyncio.sleep(0)
        assert {5} == (await site.of([job(5)])).keys()
        monkeypatch.setattr(host_progress, "SHOWN_S", 0.0)
        assert {} == await site.of([job(5)])

    within(main)


def test_the_end_of_the_service_ends_the_wait() -> None:
    """Viewers get what is known."""

    async def main() -> None:
        relays = Relays()
        await relays.poll("gpu2", 0)
        viewer = asyncio.ensure_future(HostProgress(relays).of([job(5)]))
        await asyncio.sleep(0)
        relays.close()
        assert {} == await viewer

    within(main)
