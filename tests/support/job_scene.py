"""A site whose jobs have a story, for the tests of the page: runs, outputs, a sweep, dependencies."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest
from factories import make_device, make_offer, make_spec, must_claim, serve
from page_scene import EVE, HOSTILE, ME, keep_progress
from service_fixtures import ServedSite, serving

from gpuqueue.model.array import Array
from gpuqueue.model.dependencies import Condition, Dependency, Waits
from gpuqueue.model.device import Activity, DeviceKind, Health, Peak, PeakSource, Timeline
from gpuqueue.model.job import JobState, WaitReason
from gpuqueue.model.job_spec import Checkout
from gpuqueue.model.job_values import JobValues, Metric, Reported
from gpuqueue.model.run import Ending, EndingKind, RunDevice, RunNote
from gpuqueue.model.sweep import Axis
from gpuqueue.queue.lease import Again, Alive, Claim, Offer
from gpuqueue.text.units import GIB

#: Output with colours, a title for the terminal, a progress bar, markup, and a line that is too long for a screen.
OUTPUT = (
    b"\x1b]0;a title\x07\x1b[1mepoch 1\x1b[0m  loss \x1b[32m0.412\x1b[0m  \x1b[33mwarning: slow loader\x1b[0m\n"
    b"\x1b[31mError\x1b[0m <script>alert('log')</script><img src=x onerror=alert(1)>\n"
    b"\x1b[38;5;208mtruecolour\x1b[0m \x1b[44;97m on blue \x1b[0m \x1b[7mreversed\x1b[0m \xff\xfe\n"
    + b"x" * 400
    + b"\n"
    + b"".join(b"step %d: loss %.4f\n" % (number, 1 / number) for number in range(1, 121))
    + b"train:  10%|#         | 10/100\rtrain:  45%|####5     | 45/100 [00:12<00:15,  3.60it/s]"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class JobScene:
    """The ids of the jobs: one that has ended after two runs, one that runs, one that waits, a sweep, hostile ones."""

    ended: int
    running: int
    waiting: int
    after: int
    sweep: int
    hostile: int


def card(index: int) -> Offer:
    """Return a card of 24 GiB that is busy."""
    device = make_device(f"GPU-{index}", index=index, name="NVIDIA RTX A5000")
    health = Health(utilisation=0.8, temperature_c=66.0, power_w=180.0)
    return make_offer(device=device, host="nodeA", headroom_bytes=GIB // 2, health=health, slots=4)


CARDS = (card(0), card(1))


def use(claim: Claim, peak_bytes: int | None = None) -> tuple[RunDevice, ...]:
    """Return the devices of a run; of one that has ended with its peak, and with its memory over time."""
    found = []
    for uuid in claim.devices:
        offer = next(each for each in CARDS if each.device.uuid == uuid)
        held = RunDevice(
            uuid=uuid, lease_bytes=claim.lease_bytes, index=offer.device.index, name=offer.device.name,
            kind=DeviceKind.GPU, total_bytes=offer.device.total_bytes,
        )  # fmt: skip
        if peak_bytes is not None:
            steps = (min(1.0, number / 40) * (0.9 + 0.1 * math.sin(number / 3)) for number in range(200))
            line = tuple(None if 90 <= place < 97 else int(peak_bytes * each) for place, each in enumerate(steps))
            held = replace(
                held,
                peak=Peak(bytes=peak_bytes, source=PeakSource.NVML_SAMPLED, samples=4000, interval_s=0.5, shared=False),
                activity=Activity(
                    first_memory_s=4.0, utilisation_mean=0.83, utilisation_max=0.99, temperature_max_c=71
                ),
                timeline=Timeline(step_s=8.0, bytes=line),
            )
        found.append(held)
    return tuple(found)


def started(site: ServedSite, job_id: int, text: bytes, *, card: int = 0, stderr: bytes | None = None) -> Claim:
    """Let the next job, which must be this one, run without a process."""
    uuid = CARDS[card].device.uuid
    claim = must_claim(site.queue, uuid, host="nodeA")
    assert job_id == claim.job_id
    log = site.settings.runs_dir / str(job_id) / claim.token / "log"
    log.parent.mkdir(parents=True)
    log.write_bytes(text)
    keep_progress(log, text)
    if stderr is not None:
        log.with_name("stderr").write_bytes(stderr)
    site.queue.runs.started(job_id, claim.token, lease_s=3600, log_path=str(log), devices=use(claim))
    return claim


def reported(loss: float) -> JobValues:
    """Return what a job reports about itself that reports its loss once."""
    return JobValues(metrics=(Metric(name="loss", count=1, last=Reported(value=loss, after_s=9.0, step=1)),))


def finish(site: ServedSite, claim: Claim, ending: Ending, peak_bytes: int, **more: Any) -> None:
    """End a run."""
    is_good = ending.exit_code == 0
    state = JobState.QUEUED if "again" in more else JobState.SUCCEEDED if is_good else JobState.FAILED
    site.queue.runs.finish(
        claim.job_id, claim.token, state=state, ending=ending, duration_s=1600.0, devices=use(claim, peak_bytes), **more
    )


def play(site: ServedSite) -> tuple[JobScene, list[Claim]]:
    """Announce the cards, and submit, run and end jobs. Return them, and the runs that go on."""
    queue, submit = site.queue, site.queue.requests.submit
    for each in queue.devices.all():
        queue.devices.withdraw(each.host, each.device.uuid)
    serve(queue, *CARDS, lease_s=3600)
    first = submit(make_spec(account=ME, name="prepare.py", mem_bytes=2 * GIB)).id
    finish(site, started(site, first, b"done\n"), Ending.from_status(0), GIB)

    git = Checkout(commit="3442fefc16a1" + "0" * 28, branch="main", dirty=True)
    asked: dict[str, Any] = {"mem_bytes": 12 * GIB, "git": git, "tags": ("paper", "night"), "time_limit_s": 7200}
    words = ("python", "train.py", "--lr", "1e-3", "--name", "a run's name")
    waits = Waits(after=(Dependency(first),))
    ended = submit(make_spec(account=ME, name="train.py", argv=words, waits=waits, separate_stderr=True, **asked)).id
    claim = started(site, ended, b"loading\n", stderr=b"Traceback\n")
    queue.runs.note(ended, claim.token, "it holds 12.1G on GPU-0, more than the 12G it asked for")
    finish(site, claim, Ending.from_status(1), 3 * GIB, again=Again(reason=WaitReason.RETRY))
    again = started(site, ended, OUTPUT, stderr=b"a warning\n")
    finish(site, again, Ending.from_status(0), 7 * GIB)

    hostile = submit(make_spec(account=EVE, name=HOSTILE, argv=(HOSTILE,), mem_bytes=2 * GIB)).id
    lost = started(site, hostile, OUTPUT)
    notes = (RunNote(kind="ended_processes", items=(HOSTILE,)),)
    finish(site, lost, Ending(kind=EndingKind.SIGNALLED, signal=9), GIB, notes=notes)

    running = submit(make_spec(account=ME, name="llama-finetune", argv=words, **{**asked, "gpus": 1})).id
    runs = [started(site, running, OUTPUT)]
    axes = (Axis("lr", "1e-2,1e-3,1e-4"), Axis("seed", "0..9"))
    sweep = submit(make_spec(account=ME, name="sweep.py", mem_bytes=GIB, array=Array.sweep(axes, 4))).id
    for index, status in enumerate((0, 0, 1, 0, 0)):
        run = started(site, sweep + 1 + index, b"", card=1)
        values = None if status else reported(0.5 if not index else index / 4)
        finish(site, run, Ending.from_status(status), GIB // (index + 2), values=values)
    runs += [started(site, sweep + 6, OUTPUT, card=1), started(site, sweep + 7, b"", card=1)]
    queue.jobs.hold(sweep)
    needs = Waits(after=(Dependency(running), Dependency(ended, Condition.ANY)))
    waiting = submit(make_spec(account=ME, name="big.py", argv=words, mem_bytes=23 * GIB)).id
    after = submit(make_spec(account=ME, name="evaluate.py", argv=words, waits=needs)).id
    site.record()
    return JobScene(ended=ended, running=running, waiting=waiting, after=after, sweep=sweep, hostile=hostile), runs


@contextmanager
def growing(site: ServedSite, runs: list[Claim]) -> Iterator[None]:
    """Send the heartbeats of the cards with what the runs use, which goes up and down."""
    over = threading.Event()

    def send(number: int) -> None:
        share = 0.5 + 0.25 * math.sin(number / 3)
        for each in CARDS:
            uuid = each.device.uuid
            here = [run for run in runs if uuid in run.devices]
            used = {run.job_id: int(run.lease_bytes * share) for run in here}
            reports = [Alive(job_id=run.job_id, token=run.token, observed={uuid: used[run.job_id]}) for run in here]
            site.queue.devices.heartbeat(replace(each, observed=used), reports, lease_s=3600)

    def keep() -> None:
        number = 1
        while not over.wait(1.0):
            send(number)
            number += 1

    send(0)
    thread = threading.Thread(target=keep, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.fixture(scope="module")
def played() -> Iterator[tuple[ServedSite, JobScene]]:
    """Return a site whose jobs have a story, and the jobs. Two of them run."""
    with serving(GPUQUEUE_HEARTBEAT="10s") as site:
        scene, runs = play(site)
        with growing(site, runs):
            yield site, scene
