"""Cuts of several hosts, in one direction only, and a reboot: a run is neither ended early nor given away twice."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from bounded import until
from cut_host import behind, lives, submit
from link import Link
from site_of_one import Site

from gpuqueue.model.job import JobState
from gpuqueue.model.run import EndingKind
from gpuqueue.queue.drains import DrainOrigin

#: Long enough that no test reaches it: what happens, happens for another reason.
KEPT = "1h"


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """Return a stack of what is closed after the test, in reverse order."""
    with ExitStack() as made:
        yield made


def two_hosts(stack: ExitStack, store_url: str, tmp_path: Path) -> Iterator[tuple[Site, Link, int, Path, Path]]:
    """Yield two hosts behind links of their own, each with a running job, its effects file and its gate."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        site, link = behind(stack, store_url, tmp_path / name / "state", GPUQUEUE_HOST_LOST_AFTER=KEPT)
        yield site, link, *submit(site, tmp_path / name, "--device", f"{site.settings.host}:0")


def goes_on(effects: Path) -> None:
    """Wait until the job has written more."""
    size = effects.stat().st_size
    until(lambda: effects.stat().st_size > size, what="the job goes on")


def is_silent(site: Site, host: Site) -> bool:
    """Return whether *site* shows the other host as silent."""
    return f"host {host.settings.host} has been silent for " in site.cli("gpus").stdout


def catches_a_claim(link: Link) -> bool:
    """Stop what goes to the store, and return whether a claim was next. If not, let it pass.

    The claim is the only function call.
    """
    link.cut(back=False)
    until(lambda: link.held, what="a message")
    if any(b"\nFCALL\r" in each for each in link.held):
        return True
    link.heal()
    return False


def observer(stack: ExitStack, store_url: str, tmp_path: Path) -> Site:
    """Return a host without a worker that records the history and is never cut off."""
    site = Site(tmp_path / "observer", store_url, GPUQUEUE_HOST_LOST_AFTER=KEPT)
    stack.callback(site.stop)
    site.start_recorder()
    return site


@pytest.mark.full
def test_a_store_that_no_host_reaches_ends_nothing(stack: ExitStack, store_url: str, tmp_path: Path) -> None:
    """Both hosts lose the store. One comes back before the other, whose job is not given to it.

    Each job ends once, in its first run.
    """
    site = observer(stack, store_url, tmp_path)
    first, second = two_hosts(stack, store_url, tmp_path)
    a, link_a, job_a, effects_a, gate_a = first
    b, link_b, job_b, effects_b, gate_b = second
    for link in (link_a, link_b):
        link.cut()
    until(lambda: is_silent(site, a) and is_silent(site, b), timeout_s=60, what="the silence of both")
    goes_on(effects_a)
    goes_on(effects_b)

    link_a.heal()
    until(lambda: not is_silent(site, a), timeout_s=60, what="one host is back")
    assert is_silent(site, b)
    other = int(site.cli("submit", "--mem", "1M", "--", "true").stdout)
    assert a.settings.host == site.until_recorded(other).runs[0].host
    goes_on(effects_b)
    link_b.heal()

    for job, effects, gate in ((job_a, effects_a, gate_a), (job_b, effects_b, gate_b)):
        gate.touch()
        record = site.until_recorded(job)
        assert ([1], 1, 0) == (list(lives(effects)), record.job.attempt, record.job.losses)


@pytest.mark.full
@pytest.mark.parametrize("direction", ["there", "back"])
def test_a_cut_in_one_direction_ends_nothing(stack: ExitStack, store_url: str, tmp_path: Path, direction: str) -> None:
    """A host whose packets arrive in one direction only is silent like any other, and its run goes on."""
    site = observer(stack, store_url, tmp_path)
    far, link = behind(stack, store_url, tmp_path / "far", GPUQUEUE_HOST_LOST_AFTER=KEPT)
    job, effects, gate = submit(far, tmp_path)

    link.cut(there=direction == "there", back=direction == "back")
    until(lambda: is_silent(site, far), timeout_s=90, what="the silence")
    goes_on(effects)
    link.heal()

    until(lambda: not is_silent(site, far), timeout_s=60, what="an answer")
    gate.touch()
    record = site.until_recorded(job)
    assert ([1], 1, 0) == (list(lives(effects)), record.job.attempt, record.job.losses)


@pytest.mark.full
def test_a_claim_whose_answer_is_lost_runs_once(stack: ExitStack, store_url: str, tmp_path: Path) -> None:
    """The store gives a job to a host that never hears of it. Once answers arrive, the host gets the same claim."""
    site = observer(stack, store_url, tmp_path)
    rare = {"GPUQUEUE_HEARTBEAT": "5s"}  # so that the next message is mostly a claim
    far, link = behind(stack, store_url, tmp_path / "far", GPUQUEUE_HOST_LOST_AFTER=KEPT, **rare)
    effects = tmp_path / "effects"
    until(lambda: catches_a_claim(link), timeout_s=90, what="a claim on its way")
    job = int(site.cli("submit", "--mem", "1M", "--", "sh", "-c", 'echo ran >>"$1"', "job", str(effects)).stdout)
    link.cut(there=False)
    link.heal(back=False)
    site.until_state_in_queue(job, JobState.STARTING)
    assert not effects.exists()

    link.heal()

    record = site.until_recorded(job)
    assert ("ran\n", far.settings.host) == (effects.read_text(), record.runs[0].host)
    assert (1, 0, 1) == (record.job.attempt, record.job.losses, len(record.runs))


@pytest.mark.full
def test_a_silent_host_that_rebooted_loses_its_runs_at_once(stack: ExitStack, store_url: str, tmp_path: Path) -> None:
    """The job of a rebooted host runs elsewhere as soon as the host is back, long before `host_lost_after`.

    The reboot ended all processes, and the ids in the run directory are of an earlier boot.
    """
    site = observer(stack, store_url, tmp_path)
    far = Site(tmp_path / "far", store_url, GPUQUEUE_HOST_LOST_AFTER=KEPT)
    stack.callback(far.stop)
    worker = far.start_worker()
    job, effects, gate = submit(far, tmp_path)
    far.end(worker, signal.SIGKILL)
    (pid_file,) = far.settings.runs_dir.glob("[0-9]*/*/pid")
    identities = [line.split() for line in pid_file.read_text().splitlines()]
    far.stop()  # kills the shim and the job
    until(lambda: is_silent(site, far), what="the silence")
    # The same pids may be other processes after the reboot: here they are this process.
    here = [f"{1} {started} {'0' * 8}-{boot[9:]}" for _, started, boot in identities]
    pid_file.write_text("".join(f"{line}\n" for line in here))
    assert [1] == list(lives(effects))

    other = Site(tmp_path / "other", store_url, GPUQUEUE_HOST_LOST_AFTER=KEPT)
    stack.callback(other.stop)
    other.start_worker()
    again = Site(tmp_path / "far", store_url, GPUQUEUE_HOST_LOST_AFTER=KEPT, GPUQUEUE_HOST=far.settings.host)
    stack.callback(again.stop)
    again.queue.devices.drain(
        [each.device.uuid for each in again.queue.devices.all(far.settings.host)],
        origin=DrainOrigin.PERSON,
        why="",
        by="",
    )
    again.start_worker()

    until(lambda: 2 in lives(effects), timeout_s=60, what="the second run")
    gate.touch()
    record = site.until_recorded(job)
    assert [far.settings.host, other.settings.host] == [run.host for run in record.runs]
    assert [EndingKind.LOST, EndingKind.EXITED] == [run.ending.kind for run in record.runs if run.ending]
