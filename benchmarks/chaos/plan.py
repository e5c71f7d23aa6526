"""The jobs and the kills, drawn from a seed before anything starts. Pure.

The same seed gives the same jobs and the same kills in the same order. Their times depend on the machine, so a replay
breaks the same things, but not at the same instruction.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum

from gpuqueue.model.job_spec import Priority

#: The duration of a job that is ended from outside, in seconds: longer than any wait here.
FOR_EVER_S = 600.0
#: Longest time between two kills of a burst, in seconds.
BURST_S = 0.6
#: Longest time between an observed step and the kill in the middle of it, in seconds.
LAG_S = 0.04
#: Longest pause between a kill's turn and the kill, in seconds. The turn comes with a submit, and the kill should not.
DELAY_S = 1.5


class Second(str, Enum):
    """A job's second process."""

    NONE = "none"
    #: Ends before the first.
    CHILD = "child"
    #: Is alive when the first ends: the run must not be over before it is gone.
    LEFT = "left"
    #: Left its session by a double fork, and is alive when the first ends.
    DAEMON = "daemon"
    #: The same, and executes another program again and again.
    RESTLESS = "restless"


class Breaks(str, Enum):
    """What a kill does."""

    WORKER_KILL = "worker SIGKILL"
    WORKER_TERM = "worker SIGTERM"
    WORKER_STOP = "worker SIGSTOP"
    SHIM_KILL = "shim SIGKILL"
    JOB_KILL = "job's process SIGKILL"
    STORE_KILL = "store SIGKILL"
    STORE_STOP = "store SIGSTOP"
    RECORDER_KILL = "recorder SIGKILL"
    DATABASE = "database away"
    HOST_KILL = "host process SIGKILL"
    GROUP_KILL = "host, workers, recorder SIGKILL"
    MACHINE_KILL = "every process SIGKILL"
    AWAY = "nobody there beyond the grace"

    def __str__(self) -> str:
        return self.value


#: The weights of the draw. Kills that break one thing are frequent, because they find the races.
WEIGHTS = {
    Breaks.WORKER_KILL: 22,
    Breaks.WORKER_TERM: 9,
    Breaks.WORKER_STOP: 8,
    Breaks.SHIM_KILL: 13,
    Breaks.JOB_KILL: 9,
    Breaks.STORE_KILL: 9,
    Breaks.STORE_STOP: 7,
    Breaks.RECORDER_KILL: 8,
    Breaks.DATABASE: 6,
    Breaks.HOST_KILL: 3,
    Breaks.GROUP_KILL: 3,
    Breaks.MACHINE_KILL: 3,
    Breaks.AWAY: 2,
}
#: Kills that a short run may lack: they take more time than all others.
RARE = frozenset({Breaks.AWAY})


@dataclass(frozen=True, kw_only=True, slots=True)
class JobPlan:
    """What one job does, and what is expected of it.

    ``exit_code`` is the exit code of its first process, ``signal`` the signal with which it ends itself instead. With
    ``refused`` the name of its program is longer than any host permits. ``stubborn`` processes ignore SIGTERM.
    """

    name: str
    duration_s: float
    mem_gib: int
    exit_code: int = 0
    signal: int | None = None
    second: Second = Second.NONE
    stubborn: bool = False
    refused: bool = False
    time_limit_s: float | None = None
    cancel_after_s: float | None = None
    requeue: bool = True
    gpus: int = 1
    priority: Priority = Priority.NORMAL


@dataclass(frozen=True, kw_only=True, slots=True)
class KillPlan:
    """One kill: its turn comes when ``after_jobs`` jobs are acknowledged, and the kill ``delay_s`` later.

    ``which`` chooses the victim among the live processes, from 0 to 1. With ``in_the_act`` the victim is the process
    that takes the next step, ``lag_s`` after that step began. ``hold_s`` is how long a process stays stopped, a
    database locked or a machine empty. A kill of a burst does not wait for its turn.
    """

    number: int
    breaks: Breaks
    after_jobs: int
    delay_s: float
    which: float
    in_the_act: bool
    lag_s: float
    hold_s: float
    burst: bool


def plan_jobs(seed: int, count: int, *, longest_s: float) -> list[JobPlan]:
    """Return *count* jobs of all kinds, the same for the same seed. A few last *longest_s*."""
    rng = random.Random(f"jobs {seed}")  # noqa: S311 - a plan that can be drawn again, no secret
    return [_plan_job(rng, f"j{number:05d}", longest_s) for number in range(count)]


def _plan_job(rng: random.Random, name: str, longest_s: float) -> JobPlan:
    common = {
        "name": name,
        "mem_gib": rng.choice((1, 2, 3, 4, 6, 9)),
        "second": rng.choices(list(Second), weights=(48, 18, 14, 14, 6))[0],
        "requeue": rng.random() > 0.06,  # noqa: PLR2004 - a few
        "gpus": 2 if rng.random() < 0.06 else 1,  # noqa: PLR2004 - a few
        "priority": rng.choices((Priority.LOW, Priority.NORMAL, Priority.HIGH), weights=(1, 8, 1))[0],
    }
    lasts = rng.choices(((0.0, 0.3), (0.3, 3.0), (1.0, 6.0), (longest_s / 2, longest_s)), weights=(30, 30, 30, 10))[0]
    short_s = rng.uniform(*lasts)
    sort = rng.choices(
        ("good", "bad", "signal", "refused", "limit", "limit stubborn", "cancel", "cancel late", "in time"),
        weights=(52, 14, 4, 3, 5, 2, 9, 6, 5),
    )[0]
    changes: dict[str, object] = {"duration_s": short_s}
    if sort == "bad":
        code = rng.randint(1, 120)
        # That code asks for another run, and releases of held jobs would give it one for ever.
        changes["exit_code"] = code if code != os.EX_TEMPFAIL else 1
    elif sort == "signal":
        changes["signal"] = int(rng.choice((signal.SIGKILL, signal.SIGTERM, signal.SIGUSR1)))
    elif sort == "refused":
        changes["refused"] = True
    elif sort in {"limit", "limit stubborn"}:
        changes = {"duration_s": FOR_EVER_S, "time_limit_s": rng.uniform(0.3, 2.0), "stubborn": "stubborn" in sort}
    elif sort == "cancel":
        changes = {"duration_s": FOR_EVER_S, "cancel_after_s": rng.uniform(0.0, 3.0)}
    elif sort == "cancel late":
        changes["cancel_after_s"] = rng.uniform(0.0, 2 * short_s + 0.5)
    elif sort == "in time":
        changes["time_limit_s"] = 2 * FOR_EVER_S
    return JobPlan(**{**common, **changes})  # type: ignore[arg-type]


def plan_kills(
    seed: int,
    count: int,
    jobs: int,
    *,
    grace_s: float,
    longest_hold_s: float = FOR_EVER_S,
    among: Collection[Breaks] = tuple(Breaks),
) -> list[KillPlan]:
    """Return *count* kills *among* these kinds, spread over *jobs* submits, the same for the same seed.

    Each kind that is not rare comes at least once if *count* allows. *grace_s* is the grace of the shims; no outage is
    longer than *longest_hold_s*.
    """
    rng = random.Random(f"kills {seed}")  # noqa: S311 - as above
    sure = [each for each in among if each not in RARE][:count]
    rng.shuffle(sure)
    drawn = sure + rng.choices(list(among), weights=[WEIGHTS[each] for each in among], k=count - len(sure))
    rng.shuffle(drawn)
    turns = sorted(rng.uniform(0.03, 0.95) * jobs for _ in drawn)
    return [
        KillPlan(
            number=number,
            breaks=breaks,
            after_jobs=int(turn),
            delay_s=rng.uniform(0.0, DELAY_S),
            which=rng.random(),
            in_the_act=rng.random() < 0.5,  # noqa: PLR2004 - every other
            lag_s=rng.uniform(0.0, LAG_S),
            hold_s=min(_hold_s(rng, breaks, grace_s), longest_hold_s),
            burst=rng.random() < 0.2,  # noqa: PLR2004 - one in five
        )
        for number, (breaks, turn) in enumerate(zip(drawn, turns, strict=True), start=1)
    ]


def _hold_s(rng: random.Random, breaks: Breaks, grace_s: float) -> float:
    """Return the length of an outage: mostly a few heartbeats, sometimes beyond a command's or a lock's timeout."""
    if breaks is Breaks.AWAY:
        return grace_s + rng.uniform(1.0, 3.0)
    long = {
        # Beyond the first try of a command, and beyond the second: then the first is carried out, but its answer is
        # lost.
        Breaks.STORE_STOP: (rng.uniform(6.0, 9.5), rng.uniform(10.5, 12.0)),
        Breaks.DATABASE: (rng.uniform(10.5, 12.0),),
        # Beyond the grace, and beyond the lease: then its runs are ended, or run elsewhere.
        Breaks.WORKER_STOP: (rng.uniform(1.0, 1.3) * grace_s, rng.uniform(1.5, 1.7) * grace_s),
    }
    if breaks not in long:
        return 0.0
    return rng.choice((rng.uniform(0.5, 3.0), rng.choice(long[breaks])))
