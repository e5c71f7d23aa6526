"""Tests of a host that is cut off from the store: what its running job does, and what other hosts may do."""

from __future__ import annotations

import secrets
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from bounded import until
from cut_host import Cut, lives, proxied, submit
from link import Link, Namespace
from site_of_one import BIN, Site

from gpuqueue.model.job import JobState
from gpuqueue.model.run import EndingKind


def elsewhere(stack: ExitStack, store_url: str, place: Path, **settings: str) -> Cut:
    """Return a host whose worker runs in its own network namespace, with a link that can be taken down."""
    name = f"gq{secrets.token_hex(3)}"
    try:
        network = Namespace(name, 1 + secrets.randbelow(250))
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no network namespaces here: {error}")
    stack.callback(network.close)
    link = Link(store_url, network.address)
    stack.callback(link.close)
    site = Site(place, store_url, GPUQUEUE_HEARTBEAT="0.2s", **settings)
    stack.callback(site.stop)
    site.environ["GPUQUEUE_REDIS_URL"] = link.url
    worker = site.spawn_command(network.command(str(BIN / "gpuqueue-worker"), "run", "--plain"))
    until(lambda: worker.poll() is not None or site.queue.devices.all(), what="a worker over there")
    assert worker.poll() is None, site.log()
    return site, network.cut, network.heal


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """Return a stack of what is closed after the test, in reverse order."""
    with ExitStack() as made:
        yield made


def test_a_cut_shorter_than_host_lost_after_ends_nothing(stack: ExitStack, store_url: str, tmp_path: Path) -> None:
    """A store that was away for longer than a device's silence used to end every run. Now the run goes on and ends.

    Meanwhile the other host runs new jobs, the silent one is shown with the time until which its job is kept, and gets
    nothing. `gpuqueue lost` is refused once it answers again.
    """
    far, cut, heal = proxied(stack, store_url, tmp_path / "far", GPUQUEUE_HOST_LOST_AFTER="60s")
    job, effects, gate = submit(far, tmp_path)
    near = Site(tmp_path / "near", store_url, GPUQUEUE_HOST_LOST_AFTER="60s")
    stack.callback(near.stop)
    near.start_recorder()

    cut()
    line = f"host {far.settings.host} has been silent for "
    until(lambda: line in near.cli("gpus").stdout, what="the silence")
    near.start_worker()
    other = int(near.cli("submit", "--mem", "1M", "--", "true").stdout)
    assert near.settings.host == near.until_recorded(other).runs[0].host
    for words in (("show", str(job)), ("why", str(job))):
        assert "its jobs are kept until " in near.cli(*words).stdout
    seen = len(effects.read_text())
    until(lambda: len(effects.read_text()) > seen, what="the job goes on")

    heal()
    until(lambda: line not in near.cli("gpus").stdout, what="an answer")
    refused = near.cli("lost", far.settings.host, "--yes", check=False)
    assert (5, "it is not lost") == (refused.returncode, refused.stderr.strip()[-14:])
    gate.touch()
    record = near.until_recorded(job)
    assert [1] == list(lives(effects))
    assert (JobState.FAILED, 1, 0) == (record.job.state, record.job.attempt, record.job.losses)


def test_a_lost_host_gives_its_job_to_another_at_once(stack: ExitStack, store_url: str, tmp_path: Path) -> None:
    """An administrator declares a silent host lost, and its job runs elsewhere long before `host_lost_after`.

    The host was only cut off. When it is back, its own copy ends, and its report changes nothing.
    """
    far, cut, heal = proxied(stack, store_url, tmp_path / "far", GPUQUEUE_HOST_LOST_AFTER="1h")
    job, effects, gate = submit(far, tmp_path)
    near = Site(tmp_path / "near", store_url, GPUQUEUE_HOST_LOST_AFTER="1h")
    stack.callback(near.stop)
    near.start_recorder()

    cut()
    near.start_worker()
    until(lambda: near.cli("lost", far.settings.host, "--yes", check=False).returncode == 0, what="silence")
    until(lambda: 2 in lives(effects), timeout_s=60, what="the second copy")
    heal()

    until(lambda: "its processes are ended" in far.log(), timeout_s=60, what="the far side heard")
    gate.touch()
    record = near.until_recorded(job)
    assert [EndingKind.LOST, EndingKind.EXITED] == [run.ending.kind for run in record.runs if run.ending]


@pytest.mark.full
@pytest.mark.parametrize("host", [proxied, elsewhere])
def test_with_stop_there_are_never_two_live_copies(
    stack: ExitStack, store_url: str, tmp_path: Path, host: Callable[..., Cut]
) -> None:
    """With the default, the shim ends its copy before the job can be claimed again.

    The results that the cut-off side reports later change nothing.
    """
    far, cut, heal = host(stack, store_url, tmp_path / "far", GPUQUEUE_HOST_LOST_AFTER="4s")
    job, effects, gate = submit(far, tmp_path)
    near = Site(tmp_path / "near", store_url, GPUQUEUE_HOST_LOST_AFTER="4s")
    stack.callback(near.stop)
    near.start_recorder()

    cut()
    near.start_worker()
    until(lambda: 2 in lives(effects), timeout_s=60, what="the second copy")

    first, second = lives(effects)[1], lives(effects)[2]
    assert max(first) < min(second)
    gate.touch()
    near.until_recorded(job)
    heal()
    until(lambda: "stale" in far.log() or "no longer ours" in far.log(), timeout_s=60, what="the far side heard")
    again = near.client.jobs.show(job)
    assert [EndingKind.LOST, EndingKind.EXITED] == [run.ending.kind for run in again.runs if run.ending]
    assert (JobState.FAILED, 7) == (again.job.state, again.runs[1].ending.exit_code if again.runs[1].ending else None)
    assert max(lives(effects)[1]) == max(first)


@pytest.mark.full
def test_with_keep_a_cut_within_the_lease_costs_nothing(stack: ExitStack, store_url: str, tmp_path: Path) -> None:
    """With `keep`, a cut shorter than the lease costs nothing: the same copy goes on and ends.

    The cut is longer than the grace, after which the default would have ended the job.
    """
    far, cut, heal = proxied(
        stack, store_url, tmp_path / "far", GPUQUEUE_HOST_LOST_AFTER="5s", GPUQUEUE_ON_PARTITION="keep"
    )
    job, effects, gate = submit(far, tmp_path)

    cut()
    over = time.monotonic() + far.settings.shim_grace_s + 1
    until(lambda: time.monotonic() > over)
    heal()
    gate.touch()

    far.environ["GPUQUEUE_REDIS_URL"] = far.settings.redis_url
    far.start_recorder()  # the recorder runs the reaper too; it starts late, as no other host could take the job
    record = far.until_recorded(job)
    assert [1] == list(lives(effects))
    assert (JobState.FAILED, 1, 0) == (record.job.state, record.job.attempt, record.job.losses)


@pytest.mark.full
def test_with_keep_a_longer_cut_ends_one_of_two_copies(stack: ExitStack, store_url: str, tmp_path: Path) -> None:
    """With `keep`, a cut longer than the lease may start a second copy.

    When the host is back, its own copy is ended and reports nothing.
    """
    far, cut, heal = proxied(
        stack, store_url, tmp_path / "far", GPUQUEUE_HOST_LOST_AFTER="4s", GPUQUEUE_ON_PARTITION="keep"
    )
    job, effects, gate = submit(far, tmp_path)
    near = Site(tmp_path / "near", store_url, GPUQUEUE_HOST_LOST_AFTER="4s")
    stack.callback(near.stop)
    near.start_recorder()

    cut()
    near.start_worker()
    until(lambda: 2 in lives(effects), timeout_s=60, what="the second copy")
    began = min(lives(effects)[2])
    until(lambda: max(lives(effects)[1]) > began, what="the first copy goes on")
    heal()

    until(lambda: "its processes are ended" in far.log(), timeout_s=60, what="the far side heard")
    until(lambda: max(lives(effects)[2]) > max(lives(effects)[1]) + 1, what="the first copy is gone")
    gate.touch()
    record = near.until_recorded(job)
    assert [EndingKind.LOST, EndingKind.EXITED] == [run.ending.kind for run in record.runs if run.ending]
