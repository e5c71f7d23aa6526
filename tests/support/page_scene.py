"""A site with some life for the tests of the page: two hosts, six devices, jobs of three users in each state."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from factories import BOB, make_device, make_offer, make_spec, must_claim, serve
from service_fixtures import ServedSite

from gpuqueue.model.array import Array, Indexes
from gpuqueue.model.dependencies import Waits
from gpuqueue.model.device import Health
from gpuqueue.model.job_spec import Account, Priority
from gpuqueue.model.progress import Reading
from gpuqueue.model.progress_reader import ProgressReader
from gpuqueue.model.run import RunDevice
from gpuqueue.queue.drains import DrainOrigin
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.queue.lease import Alive, Claim, ExternalProcess, Offer
from gpuqueue.service.web.device_past import NAME, STEP_S
from gpuqueue.system import progress_file
from gpuqueue.system.account import current_account
from gpuqueue.text.units import GIB

ME = current_account("laptop")
EVE = Account(name="eve", uid=1003, host="laptop")
#: A name that is markup, has the end of a script, and has terminal escapes and a right-to-left mark.
HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(1)>\u202e\"'&"
BAR = b"\repoch 3/4:  45%|####5     | 45/100 [00:12<00:15,  3.60it/s]"


def offers() -> list[Offer]:
    """Return the devices: four cards of one host, of which one is hot and one drained, and two of another."""
    cards = [
        card("nodeA", 0, 0.93, 71.0, 288.0),
        replace(
            card("nodeA", 1, 0.41, 58.0, 164.0),
            external_bytes=6 * GIB,
            external_processes=(
                ExternalProcess(pid=4711, held_bytes=4 * GIB, user="mia", command="python notebook.py"),
                ExternalProcess(pid=4712, held_bytes=1 * GIB, user="mia", command="<b>python</b>"),
                ExternalProcess(pid=4713, held_bytes=1 * GIB, user="mia", command="python train.py", job_id=1),
            ),
        ),
        card("nodeA", 2, 0.99, 88.0, 301.0),
        card("nodeA", 3, 0.0, 34.0, 21.0),
    ]
    return [*cards, card("nodeB", 0, 0.0, None, None), card("nodeB", 1, 0.6, 61.0, 140.0)]


def card(
    host: str,
    index: int,
    load: float,
    temperature_c: float | None,
    power_w: float | None,
    *,
    name: str = "NVIDIA RTX A5000",
    gib: int = 24,
) -> Offer:
    """Return a card of *host* with *gib* GiB."""
    device = make_device(f"GPU-{host}-{index}", index=index, name=name, total_bytes=gib * GIB)
    health = Health(utilisation=load, temperature_c=temperature_c, power_w=power_w)
    return make_offer(device=device, host=host, headroom_bytes=GIB // 2, health=health, slots=4)


def run_job(queue: JobQueue, offer: Offer, log: Path, **fields: Any) -> Claim:
    """Submit a job and let it run on the device of *offer*, without a process."""
    return start_run(queue, queue.requests.submit(make_spec(**fields)).id, offer, log)


def keep_progress(log: Path, text: bytes) -> None:
    """Keep the progress that *text* shows beside the *log*, as a worker does. The time left is that of an hour.

    A bar alone is that of the job here.
    """
    reader = ProgressReader()
    for written in (text, b""):
        reader.feed(written, 0.0)
    reading = reader.reading(0.0)
    if reading is not None:
        found = reading.progress
        left_s = None if not found.share else 3600 * (1 - found.share) / found.share
        log.with_name(progress_file.NAME).write_text(progress_file.written(Reading(replace(found, left_s=left_s))))


def start_run(
    queue: JobQueue, job_id: int, offer: Offer, log: Path, *, text: bytes = BAR, lease_s: int = 3600
) -> Claim:
    """Let the next job, which must be this one, run on the device of *offer*. It has written *text*."""
    uuid = offer.device.uuid
    claim = must_claim(queue, uuid, host=offer.host, external_bytes=offer.counted_bytes, lease_s=lease_s)
    assert job_id == claim.job_id
    path = log / str(job_id) / claim.token / "log"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text)
    keep_progress(path, text)
    at = offer.device
    device = RunDevice(
        uuid=uuid, lease_bytes=claim.lease_bytes, index=at.index, name=at.name, kind=at.kind, total_bytes=at.total_bytes
    )
    queue.runs.started(job_id, claim.token, lease_s=lease_s, log_path=str(path), devices=(device,))
    return claim


def fill(queue: JobQueue, log: Path, waiting: int = 40) -> list[tuple[int, Claim]]:
    """Announce the devices and submit the jobs. Return the runs with the numbers of their devices."""
    for each in queue.devices.all():
        queue.devices.withdraw(each.host, each.device.uuid)
    cards = offers()
    serve(queue, *cards, lease_s=3600)
    running: tuple[tuple[int, Account, str, int, dict[str, Any]], ...] = (
        (0, ME, "train_resnet.py", 14, {"time_limit_s": 7200, "tags": ("night",)}),
        (1, EVE, "llama-finetune", 12, {"tags": ("paper",)}),
        (2, BOB, HOSTILE, 20, {"time_limit_s": 3600}),
        (5, EVE, "eval.py", 6, {"time_limit_s": 600}),
        (5, ME, "probe.py", 4, {"time_limit_s": 1800}),
    )
    runs = [
        (card, run_job(queue, cards[card], log, account=account, name=name, mem_bytes=gib * GIB, **more))
        for card, account, name, gib, more in running
    ]
    queue.devices.drain([cards[3].device.uuid], origin=DrainOrigin.PERSON, why="a new fan", by="ann")
    submit = queue.requests.submit
    submit(
        make_spec(
            account=ME, name="sweep.py", mem_bytes=22 * GIB, array=Array(indexes=Indexes.parse("0-99"), at_once=4)
        )
    )
    submit(make_spec(account=ME, name="later.py", mem_bytes=2 * GIB, waits=Waits(hold=True), tags=("night",)))
    for number in range(waiting):
        account = (ME, EVE, BOB)[number % 3]
        priority = Priority.HIGH if number % 11 == 0 else Priority.NORMAL
        name = f"run-{number:03d}.py"
        submit(make_spec(account=account, name=name, mem_bytes=(18 + number % 6) * GIB, priority=priority))
    return runs


@contextmanager
def alive(
    queue: JobQueue,
    runs: Sequence[tuple[int, Claim]],
    cards: Sequence[Offer] = (),
    shares: Mapping[int, float] = MappingProxyType({}),
) -> Iterator[None]:
    """Send the heartbeats of all devices, so that none becomes silent, with what the runs use.

    *runs* have the numbers of their devices among *cards*. *shares* are the shares of their memory that jobs use.
    """
    over = threading.Event()

    def send() -> None:
        for number, each in enumerate(cards or offers()):
            here = [run for place, run in runs if place == number]
            used = {run.job_id: int(run.lease_bytes * shares.get(run.job_id, 0.75)) for run in here}
            reports = [
                Alive(job_id=run.job_id, token=run.token, observed={each.device.uuid: used[run.job_id]}) for run in here
            ]
            queue.devices.heartbeat(replace(each, observed=used), reports, lease_s=3600)

    def keep() -> None:
        while not over.wait(2.0):
            send()

    send()
    thread = threading.Thread(target=keep, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def remember(site: ServedSite, cards: Sequence[Offer]) -> None:
    """Let the service start again with a past of the devices of five hours: jobs one after the other, and a pause."""
    site.kill()
    last = int(time.time() // STEP_S)
    agos = [ago for ago in range(100, 0, -1) if not 40 < ago < 55]
    past = {
        "step_s": STEP_S,
        "devices": {
            each.device.uuid: [
                [last - ago, 0.2 + 0.1 * ((ago // 12 + card) % 7), 0.9 * ((ago + card) % 11 > 0), 1] for ago in agos
            ]
            for card, each in enumerate(cards)
        },
    }
    (site.settings.state_dir / NAME).write_text(json.dumps(past))
    site.start()
