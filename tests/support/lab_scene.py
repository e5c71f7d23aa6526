"""A lab in which people work, for the pictures of the documentation: a month of jobs, and the queue of an afternoon.

The real queue plays it on a simulated clock, so that runs began hours ago. The scenes of the tests are apart from it:
they have what is rare, long and hostile.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from factories import make_spec, serve
from job_scene import reported
from page_scene import alive, card, remember, start_run
from service_fixtures import ServedSite, serving

from gpuqueue.model.array import Array
from gpuqueue.model.dependencies import Dependency, Waits
from gpuqueue.model.device import Activity, DeviceKind, Peak, PeakSource, Timeline
from gpuqueue.model.job import JobState
from gpuqueue.model.job_spec import Account, Checkout, JobSpec, Priority
from gpuqueue.model.mem_source import Shortage
from gpuqueue.model.run import Ending, EndingKind, RunDevice
from gpuqueue.model.sweep import Axis
from gpuqueue.queue.drains import DrainOrigin
from gpuqueue.queue.lease import Claim, ExternalProcess, Offer
from gpuqueue.queue.simulated_clock import SimulatedClock, SimulatedQueue
from gpuqueue.text.units import GIB

ADA, MIRA, TOMAS, YUKI = (
    Account(name=name, uid=54201 + number, host="atlas") for number, name in enumerate(("ada", "mira", "tomas", "yuki"))
)
H100, A6000 = {"name": "NVIDIA H100 PCIe", "gib": 80}, {"name": "NVIDIA RTX A6000", "gib": 48}


def cards() -> list[Offer]:
    """Return the devices: four cards of one host, and two of another, of which one is drained."""
    notebook = ExternalProcess(pid=41873, held_bytes=9 * GIB, user="tomas", command="python -m ipykernel_launcher")
    return [
        card("atlas", 0, 0.91, 63.0, 312.0, **H100),
        card("atlas", 1, 0.98, 68.0, 341.0, **H100),
        replace(card("atlas", 2, 0.77, 61.0, 288.0, **H100), external_bytes=9 * GIB, external_processes=(notebook,)),
        card("atlas", 3, 0.96, 66.0, 335.0, **H100),
        card("hydra", 0, 0.64, 72.0, 214.0, **A6000),
        card("hydra", 1, 0.58, 54.0, 158.0, **A6000),
    ]


@dataclass(frozen=True, kw_only=True, slots=True)
class Habit:
    """What a person runs: scripts, memory in GiB, the share of it that they use, and how often a run fails."""

    account: Account
    scripts: tuple[str, ...]
    gib: tuple[int, ...]
    share: float
    failures: float


HABITS = (
    Habit(account=ADA, scripts=("train_vit.py", "ablation.py"), gib=(24, 40), share=0.86, failures=0.06),
    Habit(account=MIRA, scripts=("llama_lora.py", "eval_llama.py"), gib=(64, 72), share=0.91, failures=0.09),
    Habit(account=TOMAS, scripts=("unet3d.py", "segment_ct.py"), gib=(30, 48), share=0.58, failures=0.14),
    Habit(account=YUKI, scripts=("whisper_ft.py", "embed_corpus.py"), gib=(18, 32), share=0.74, failures=0.08),
)
#: How the runs end that do not succeed, in turn.
TROUBLES = (
    Ending.from_status(1),
    Ending.stopped(EndingKind.OUT_OF_MEMORY, 1, "CUDA out of memory"),
    Ending.stopped(EndingKind.CANCELLED, -15),
    Ending.stopped(EndingKind.TIMED_OUT, -15),
)
DAYS, JOBS_A_DAY = 30, 7
#: Longer than the month that is played.
LEASE_S = 40 * 86400


def output(name: str, epochs: int, share: float, rate: str) -> bytes:
    """Return what a training has written: a line for each epoch, and the progress bar of the present one."""
    lines = [
        f"\x1b[1mepoch {number:3d}\x1b[0m  loss {2.31 * math.exp(-number / 9) + 0.38:.4f}  "
        f"val \x1b[32m{0.81 - 0.52 * math.exp(-number / 7):.4f}\x1b[0m  lr {3e-4 * 0.93**number:.2e}\n"
        for number in range(1, epochs + 1)
    ]
    done, total = int(1000 * share), 1000
    bar = "#" * int(10 * share)
    last = f"\r{name}: {done * 100 // total:3d}%|{bar:10s}| {done}/{total} [{rate}]"
    return f"loading the weights\n{''.join(lines)}{last}".encode()


def used(claim: Claim, offer: Offer, peak_bytes: int, duration_s: float) -> tuple[RunDevice, ...]:
    """Return the device of an ended run: its memory rises in steps, and swings a little at each epoch."""
    step_s = duration_s / 200
    course = [min(1.0, 0.25 + number // 6 * 0.15) * (0.96 + 0.04 * math.sin(number / 2)) for number in range(200)]
    health = offer.health
    return (
        RunDevice(
            uuid=offer.device.uuid,
            lease_bytes=claim.lease_bytes,
            index=offer.device.index,
            name=offer.device.name,
            kind=DeviceKind.GPU,
            total_bytes=offer.device.total_bytes,
            peak=Peak(bytes=peak_bytes, source=PeakSource.NVML_SAMPLED, samples=900, interval_s=0.5, shared=False),
            activity=Activity(
                first_memory_s=6.0, utilisation_mean=health.utilisation, utilisation_max=1.0,
                temperature_max_c=health.temperature_c,
            ),
            timeline=Timeline(step_s=step_s, bytes=tuple(int(peak_bytes * each) for each in course)),
        ),
    )  # fmt: skip


class Play:
    """Plays jobs on a queue whose clock it sets."""

    def __init__(self, site: ServedSite, now: datetime) -> None:
        self._site, self._now = site, now
        self._clock = SimulatedClock(0)
        self.queue = SimulatedQueue(site.settings.redis_url, self._clock, heartbeats=False)
        self.cards = cards()

    def at(self, ago_s: float) -> None:
        """Set the clock to *ago_s* seconds before now."""
        self._clock.now_ms = int((self._now - timedelta(seconds=ago_s)).timestamp() * 1000)

    def submit(self, ago_s: float, **fields: Any) -> int:
        """Submit a job, and return its id."""
        self.at(ago_s)
        return self.queue.requests.submit(spec(**fields)).id

    def run(self, job_id: int, place: int, ago_s: float, text: bytes = b"") -> Claim:
        """Start a run of the job that is next, on the card *place*."""
        self.at(ago_s)
        return start_run(
            self.queue, job_id, self.cards[place], self._site.settings.runs_dir, text=text, lease_s=LEASE_S
        )

    def finish(
        self, claim: Claim, place: int, ago_s: float, ending: Ending, duration_s: float, peak_bytes: int, **more: Any
    ) -> None:
        """End a run."""
        self.at(ago_s)
        devices = used(claim, self.cards[place], peak_bytes, duration_s)
        good = JobState.SUCCEEDED if ending.exit_code == 0 else JobState.FAILED
        self.queue.runs.finish(
            claim.job_id, claim.token, state=good, ending=ending, duration_s=duration_s, devices=devices, **more
        )


def spec(**fields: Any) -> JobSpec:
    """Return a request as people of the lab make them."""
    name = fields["name"]
    argv = fields.pop("argv", ("python", name, "--config", f"configs/{Path(name).stem}.yaml"))
    git = Checkout(commit="8c1f0d53a9e2" + "0" * 28, branch="main", dirty=False)
    return make_spec(**{"cwd": f"/home/{fields['account'].name}/work", "argv": argv, "git": git, **fields})


def play_month(play: Play) -> None:
    """Let people work for a month, less on Sundays."""
    dice, troubles = random.Random(11), 0  # noqa: S311 - no secret
    for day in range(DAYS, 0, -1):
        for number in range(JOBS_A_DAY if day % 7 else 2):
            habit = HABITS[(number + day) % len(HABITS)] if dice.random() < 0.8 else HABITS[1]
            gib, hours = dice.choice(habit.gib), min(11.0, dice.lognormvariate(0.9, 0.7))
            begin_s = day * 86400 - dice.uniform(0, 43200)
            place = dice.choice((0, 1, 3) if gib > 32 else (2, 4, 5))  # a large job needs a large card
            job = play.submit(
                begin_s + dice.lognormvariate(6.2, 1.0), account=habit.account, name=dice.choice(habit.scripts),
                mem_bytes=gib * GIB, tags=("paper",) if number % 3 == 0 else (),
            )  # fmt: skip
            claim = play.run(job, place, begin_s)
            ending, took_s = Ending.from_status(0), hours * 3600
            if dice.random() < habit.failures:
                ending, took_s = TROUBLES[troubles % len(TROUBLES)], took_s / 5
                troubles += 1
            peak = int(gib * GIB * min(0.98, dice.gauss(habit.share, 0.06)))
            play.finish(claim, place, begin_s - took_s, ending, took_s, peak)


def play_story(play: Play) -> int:
    """Let a job run out of memory and then succeed with twice as much. Return its id."""
    began_s, first_s, second_s = 5 * 3600.0, 840.0, 11_520.0
    prepare = play.submit(began_s + 900, account=ADA, name="prepare_data.py", mem_bytes=4 * GIB)
    play.finish(play.run(prepare, 4, began_s + 890), 4, began_s + 300, Ending.from_status(0), 590.0, 3 * GIB)
    job = play.submit(
        began_s + 600, account=ADA, name="distill.py", mem_bytes=12 * GIB, time_limit_s=6 * 3600.0,
        tags=("paper", "vit-s"), waits=Waits(after=(Dependency(prepare),)),
        argv=("python", "distill.py", "--teacher", "vit-l", "--batch", "512"),
    )  # fmt: skip
    began_s -= 60
    claim = play.run(job, 4, began_s, output("distill", 2, 0.31, "04:10<09:16, 1.24it/s"))
    lack = Ending.stopped(EndingKind.OUT_OF_MEMORY, 1, "CUDA out of memory")
    shortage = Shortage(peak_bytes=int(11.6 * GIB), tried_bytes=GIB)
    play.finish(claim, 4, began_s - first_s, lack, first_s, int(11.6 * GIB), shortage=shortage)
    began_s -= first_s + 300
    claim = play.run(job, 4, began_s, output("distill", 30, 1.0, "06:23<00:00, 2.61it/s"))
    play.finish(claim, 4, began_s - second_s, Ending.from_status(0), second_s, int(18.7 * GIB))
    return job


def play_sweep(play: Play) -> tuple[int, list[tuple[int, Claim]]]:
    """Let a sweep of twelve run in part: six members are good, two failed, and two run. Return it, and its runs."""
    axes = (Axis("lr", "3e-3,1e-3,3e-4,1e-4"), Axis("seed", "0..2"))
    sweep = play.submit(
        87 * 60, account=ADA, name="sweep_lr.py", mem_bytes=8 * GIB, array=Array.sweep(axes, 2), time_limit_s=3600.0,
        argv=("python", "sweep_lr.py", "--lr", "{lr}", "--seed", "{seed}"),
    )  # fmt: skip
    losses = (None, 1.912, None, 0.871, 0.884, 0.902, 0.744, 0.731)
    runs: list[tuple[int, Claim]] = []
    for number in range(10):
        began_s = (84 - 8 * number) * 60.0
        text = output("epoch 9/20", 8, 0.5, "00:31<00:33, 3.20it/s")
        claim = play.run(
            sweep + 1 + number, 5, began_s, b"Traceback: loss is NaN at step 412\n" if number in {0, 2} else text
        )
        if number >= len(losses):
            runs.append((5, claim))
            continue
        loss = losses[number]
        values, took_s = (None, 95.0) if loss is None else (reported(loss), 460.0)
        play.finish(claim, 5, began_s - took_s, Ending.from_status(int(loss is None)), took_s, 6 * GIB, values=values)
    return sweep, runs


@dataclass(frozen=True, kw_only=True, slots=True)
class Running:
    """A job that runs: its card, owner, name, memory in GiB and the share in use, how long it runs, and its limit."""

    place: int
    account: Account
    name: str
    gib: int
    share: float
    ran_s: float
    limit_s: float
    tags: tuple[str, ...] = ()
    text: bytes = b""


HOUR_S = 3600.0
RUNNING = (
    Running(
        place=1, account=MIRA, name="llama_lora.py", gib=64, share=0.93, ran_s=9.6 * HOUR_S, limit_s=24 * HOUR_S,
        tags=("paper",), text=output("epoch 3/5", 2, 0.42, "41:07<56:47, 5.88s/it"),
    ),
    Running(
        place=0, account=ADA, name="train_vit.py", gib=40, share=0.86, ran_s=3.2 * HOUR_S, limit_s=8 * HOUR_S,
        tags=("imagenet",), text=output("epoch 55/90", 54, 0.61, "02:08<01:22, 4.75it/s"),
    ),
    Running(
        place=4, account=TOMAS, name="segment_ct.py", gib=20, share=0.55, ran_s=2.1 * HOUR_S, limit_s=4 * HOUR_S,
        text=output("volumes", 0, 0.52, "2:06:11<1:56:28, 13.98s/it"),
    ),
    Running(
        place=2, account=TOMAS, name="unet3d.py", gib=48, share=0.71, ran_s=1.9 * HOUR_S, limit_s=6 * HOUR_S,
        tags=("fold-3",), text=output("epoch 20/50", 19, 0.33, "01:58<04:01, 2.77it/s"),
    ),
    Running(
        place=0, account=YUKI, name="embed_corpus.py", gib=18, share=0.74, ran_s=0.8 * HOUR_S, limit_s=2 * HOUR_S,
        text=output("documents", 0, 0.74, "48:12<16:56, 3.91s/it"),
    ),
    Running(
        place=3, account=YUKI, name="whisper_ft.py", gib=70, share=0.9, ran_s=0.45 * HOUR_S, limit_s=6 * HOUR_S,
        tags=("speech",), text=output("epoch 2/10", 1, 0.18, "02:31<11:28, 1.19it/s"),
    ),
    Running(
        place=4, account=ADA, name="probe_batch.py", gib=6, share=0.82, ran_s=240.0, limit_s=0.5 * HOUR_S,
    ),
)  # fmt: skip


def play_afternoon(play: Play) -> tuple[list[tuple[int, Claim]], dict[int, float], int]:
    """Start what runs now, and submit what waits.

    Return the runs with their cards, the shares of memory in use, and the last job that waits.
    """
    runs: list[tuple[int, Claim]] = []
    shares: dict[int, float] = {}
    for each in RUNNING:
        job = play.submit(
            each.ran_s + 95, account=each.account, name=each.name, mem_bytes=each.gib * GIB, tags=each.tags,
            time_limit_s=each.limit_s,
        )  # fmt: skip
        runs.append((each.place, play.run(job, each.place, each.ran_s, each.text)))
        shares[job] = each.share
    waiting: tuple[tuple[float, Account, str, int, dict[str, Any]], ...] = (
        (118, MIRA, "eval_llama.py", 72, {"tags": ("paper",), "waits": Waits(after=(Dependency(runs[0][1].job_id),))}),
        (101, TOMAS, "unet3d.py", 48, {"tags": ("fold-4",)}),
        (101, TOMAS, "unet3d.py", 48, {"tags": ("fold-5",)}),
        (64, YUKI, "tts_train.py", 44, {"priority": Priority.HIGH, "tags": ("speech",)}),
        (52, MIRA, "llama_lora.py", 64, {"tags": ("paper", "seed-2")}),
        (52, MIRA, "llama_lora.py", 64, {"tags": ("paper", "seed-3")}),
        (41, ADA, "ablation.py", 40, {"tags": ("no-mixup",)}),
        (41, ADA, "ablation.py", 40, {"tags": ("no-ema",)}),
        (33, TOMAS, "segment_ct.py", 30, {}),
        (20, YUKI, "embed_corpus.py", 32, {"priority": Priority.LOW}),
        (12, MIRA, "camera_ready.py", 30, {"waits": Waits(hold=True)}),
        (4, ADA, "attention_maps.py", 26, {"tags": ("imagenet",)}),
    )
    for minutes, account, name, gib, more in waiting:
        last = play.submit(
            minutes * 60, account=account, name=name, mem_bytes=gib * GIB, time_limit_s=6 * HOUR_S, **more
        )
    return runs, shares, last


@dataclass(frozen=True, kw_only=True, slots=True)
class Lab:
    """The site, an access token of ada, and the ids of jobs of hers: one has ended, one runs, one waits, a sweep."""

    site: ServedSite
    token: str
    ended: int
    running: int
    waiting: int
    sweep: int


@contextmanager
def lab() -> Iterator[Lab]:
    """Run the lab with its service."""
    with serving(GPUQUEUE_HEARTBEAT="10s", GPUQUEUE_HOST="atlas", GPUQUEUE_ACCESS="see-logs=everybody") as site:
        for each in site.queue.devices.all():
            site.queue.devices.withdraw(each.host, each.device.uuid)
        play = Play(site, datetime.now(timezone.utc))
        serve(site.queue, *play.cards, lease_s=HOUR_S)
        with closing(play.queue):
            play_month(play)
            ended = play_story(play)
            sweep, members = play_sweep(play)
            runs, shares, waiting = play_afternoon(play)
        uuid = play.cards[5].device.uuid
        site.queue.devices.drain([uuid], origin=DrainOrigin.PERSON, why="new power supply on Monday", by="mira")
        site.record()
        remember(site, play.cards)
        with alive(site.queue, [*runs, *members], play.cards, shares):
            yield Lab(
                site=site, token=site.token(ADA.name, ADA.uid), ended=ended, sweep=sweep, running=runs[1][1].job_id,
                waiting=waiting,
            )  # fmt: skip
