"""Synthetic traces that load a given site like published clusters load theirs. Pure.

The work of a trace is fixed first; the time in which it arrives follows from the load that the site is to have. So a
trace of any site and length is as busy as any other. What is resampled, with round figures:

- **Sizes**: shares of a card beside whole cards, and few jobs on several cards, which have much of the work. Of the GPU
  jobs of one cluster 44 % asked for a share, 55 % for one card (Weng et al., "Beware of Fragmentation", ATC 2023).
- **Durations**: log-normal, with a mean of several times the median; larger jobs run longer (Hu et al.,
  "Characterization and Prediction of Deep Learning Workloads", SC 2021).
- **Users**: the user of rank *r* submits in proportion to 1/*r* (Zipf), and some submit sweeps: jobs that need the same
  memory and have the same time limit.
- **Arrivals**: by day more than by night, few on two days of each week, and one day of each week with several times
  as many: the days before a deadline.
- **Time limits**: two thirds of the jobs have one. The run uses an evenly distributed part of it (Mu'alem and
  Feitelson, 2001), and the limit is rounded up as people do.
- **Utilisation** of a card by a job that is alone there: evenly distributed from 10 to 95 %, the same for all jobs of a
  submission. Its mean is about that of the jobs of one cluster, a half (Jeon et al.).

Synthetic traces have the properties of real ones (Jeon et al., "Analysis of Large-Scale Multi-Tenant GPU Clusters",
ATC 2019; Hu et al., "Characterization and Prediction of Deep Learning Workloads", SC 2021): few users with most of the
jobs, many short and few long runs, a daily cycle, sweeps that arrive together, and requests of round memory sizes.
"""

from __future__ import annotations

import bisect
import itertools
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.job_spec import Priority
from gpuqueue.simulator.site import Site
from gpuqueue.simulator.trace import Request
from gpuqueue.text.units import GIB, MIB

HOUR_S, DAY_S = 3600.0, 86400.0
EXAMPLE = """\
arrival_s,user,mem,gpus,duration_s,time_limit_s,priority,group,name
0,ann,20G,1,7200,14400,normal,vision,train
60,ann,6G,1,1800,,normal,vision,sweep
60,ann,6G,1,1800,,normal,vision,sweep
60,ann,6G,1,1800,,normal,vision,sweep
300,bob,10G,1,2400,3600,normal,nlp,finetune
600,eve,4G,1,300,900,high,nlp,debug
900,bob,20G,2,5400,7200,normal,nlp,both
1200,eve,12G,1,3600,,low,nlp,eval
"""
_USERS = ("ann", "bob", "eve", "dan", "fay", "gus", "hal", "ida")
_GIB = ((2, 4), (4, 10), (6, 18), (8, 14), (10, 12), (12, 12), (16, 12), (20, 10), (22, 8))
_GPUS = ((1, 90), (2, 8), (4, 2))
_PRIORITIES = ((Priority.LOW, 8), (Priority.NORMAL, 84), (Priority.HIGH, 8))
_STEPS_S = (300, 900, 3600, 14400, 43200, 86400, 259200)
_DAY_S = 86400
#: The number of jobs in a day, and the share of submissions that are sweeps.
_A_DAY, _SWEEP = 150, 0.1


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """A kind of job: memory on each device as a share of a card, number of devices, how frequent, median duration."""

    share: float
    gpus: int = 1
    weight: float
    median_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """A kind of trace. ``sweeps`` is the share of submissions that are sweeps of ``members`` jobs (least, most).

    ``alike`` is the standard deviation of the logarithm of the durations within a sweep; None: they are independent.
    """

    about: str
    kinds: tuple[Kind, ...]
    sweeps: float
    members: tuple[int, int]
    alike: float | None = None


_SMALL = (
    Kind(share=0.1, weight=16, median_s=600),
    Kind(share=0.2, weight=18, median_s=900),
    Kind(share=0.35, weight=14, median_s=1200),
    Kind(share=0.5, weight=10, median_s=1800),
)
_WHOLE = (
    Kind(share=1.0, weight=30, median_s=2400),
    Kind(share=1.0, gpus=2, weight=6, median_s=3600),
    Kind(share=1.0, gpus=4, weight=4, median_s=5400),
)
_GANGS = (*_SMALL, *_WHOLE, Kind(share=1.0, gpus=8, weight=3, median_s=7200))
#: All shapes by name, as ``simulate --shape`` takes them.
SHAPES: Mapping[str, Shape] = {
    "shares": Shape(
        about="shares of a card and whole cards, at most 4", kinds=_SMALL + _WHOLE, sweeps=0.1, members=(5, 20)
    ),
    "gangs": Shape(
        about="also jobs on 8 cards",
        kinds=_GANGS,
        sweeps=0.1,
        members=(5, 20),
    ),
    "alike": Shape(
        about="as gangs, but the jobs of a sweep run about as long as each other",
        kinds=_GANGS,
        sweeps=0.1,
        members=(5, 20),
        alike=0.3,
    ),
    "sweeps": Shape(
        about="many sweeps of up to 100 jobs, few large jobs",
        kinds=(*_SMALL, _WHOLE[0], Kind(share=1.0, gpus=4, weight=2, median_s=5400)),
        sweeps=0.15,
        members=(10, 100),
    ),
}
#: The work of a trace as a share of what the site can do from the first arrival to the last.
LOAD = 0.9
#: Standard deviation of the logarithm of durations: the mean is five times the median.
SIGMA = 1.8
LEAST_S, MOST_S = 10.0, 5 * DAY_S
USERS = 20
LIMITED = 2 / 3
#: The least part of a time limit that a run uses, and the limits that people write.
LEAST_USED = 0.05
LIMITS_S = (600, 1800, 3600, *(hours * HOUR_S for hours in (2, 4, 8, 12)), *(days * DAY_S for days in (1, 2, 3, 5, 7)))
#: The least and the largest utilisation.
UTILISATION = 0.1, 0.95
#: Arrivals on the busiest day of a week, and on each of its last two days, relative to others; least by night.
BURST, REST, NIGHT = 4.0, 0.35, 0.15


def shaped(shape: Shape, site: Site, count: int, *, seed: int, load: float = LOAD) -> tuple[Request, ...]:
    """Return *count* jobs of this shape that load *site*. The same arguments give the same jobs.

    A share is of the smallest card, and no job needs more devices than the largest host has.
    """
    chance = random.Random(seed)  # noqa: S311 - must be reproducible, not secure
    submissions: list[list[Request]] = []
    missing = count
    while missing:
        submissions.append(_submission(shape, site, chance)[:missing])
        missing -= len(submissions[-1])
    uses = random.Random(f"utilisation {seed}")  # noqa: S311 - as above; apart, so that it changes nothing else
    submissions = [_with_use(jobs, round(uses.uniform(*UTILISATION), 2)) for jobs in submissions]
    work = sum(each.mem_bytes * each.gpus * each.run_s for jobs in submissions for each in jobs)
    arrivals_s = _arrivals(len(submissions), work / (site.usable_bytes * load), chance)
    arrived = [(at_s, job) for at_s, jobs in zip(arrivals_s, submissions, strict=True) for job in jobs]
    return tuple(replace(job, number=number, arrival_s=at_s) for number, (at_s, job) in enumerate(arrived))


def _submission(shape: Shape, site: Site, chance: random.Random) -> list[Request]:
    """Return the equal jobs of one submission: one, or the members of a sweep. A sweep's jobs need one device each."""
    members = chance.randint(*shape.members) if chance.random() < shape.sweeps else 1
    kinds = [kind for kind in shape.kinds if members == 1 or kind.gpus == 1]
    kind = chance.choices(kinds, [each.weight for each in kinds])[0]
    card_bytes = min(card.usable_bytes for card in site.cards)
    user = chance.choices(range(1, USERS + 1), [1 / rank for rank in range(1, USERS + 1)])[0]
    is_limited = chance.random() < LIMITED
    job = Request(
        number=0,
        arrival_s=0.0,
        user=f"user{user}",
        mem_bytes=max(1, int(card_bytes * kind.share) // MIB) * MIB,
        gpus=min(kind.gpus, max(map(len, site.hosts))),
        duration_s=0.0,
        name="sweep" if members > 1 else "job",
    )
    durations_s = _durations_s(kind, members, shape.alike, chance)
    limit_s = _limit_s(max(durations_s), chance) if is_limited else None
    return [replace(job, duration_s=each, time_limit_s=limit_s) for each in durations_s]


def _with_use(jobs: Sequence[Request], utilisation: float) -> list[Request]:
    return [replace(job, utilisation=utilisation) for job in jobs]


def _duration_s(kind: Kind, chance: random.Random) -> float:
    return _bounded(chance.lognormvariate(math.log(kind.median_s), SIGMA))


def _bounded(duration_s: float) -> float:
    return float(round(min(MOST_S, max(LEAST_S, duration_s))))


def _durations_s(kind: Kind, members: int, alike: float | None, chance: random.Random) -> list[float]:
    if alike is None:
        return [_duration_s(kind, chance) for _ in range(members)]
    usual_s = _duration_s(kind, chance)
    return [_bounded(usual_s * chance.lognormvariate(0, alike)) for _ in range(members)]


def _limit_s(duration_s: float, chance: random.Random) -> float:
    """Return a round time limit of which *duration_s* uses an evenly distributed part."""
    wanted_s = duration_s / chance.uniform(LEAST_USED, 1)
    return float(next((step for step in LIMITS_S if step >= wanted_s), LIMITS_S[-1]))


def _arrivals(count: int, horizon_s: float, chance: random.Random) -> list[float]:
    """Return *count* moments in order, the first at 0, spread over *horizon_s* seconds by the hour's rate."""
    burst_days = [chance.randrange(5) for _ in range(int(horizon_s / DAY_S / 7) + 1)]
    rates = [_rate(hour, burst_days) for hour in range(int(horizon_s / HOUR_S) + 1)]
    sums = list(itertools.accumulate(rates))
    moments = []
    for _ in range(count):
        drawn = chance.random() * sums[-1]
        hour = bisect.bisect_left(sums, drawn)
        moments.append((hour + 1 - (sums[hour] - drawn) / rates[hour]) * horizon_s / len(rates))
    first_s = min(moments)
    return sorted(float(round(each - first_s)) for each in moments)


def _rate(hour: int, burst_days: Sequence[int]) -> float:
    """Return the relative rate of arrivals in an hour. ``burst_days`` has the busiest day of each week."""
    week, day = divmod(hour // 24, 7)
    rate = max(NIGHT, 1 + math.sin(2 * math.pi * (hour % 24 - 9) / 24))
    if day == burst_days[week]:
        return rate * BURST
    return rate * REST if day >= 5 else rate  # noqa: PLR2004 - the sixth and the seventh day


def made(count: int, seed: int) -> tuple[Request, ...]:
    """Return *count* synthetic jobs, about 150 a day. The same *seed* gives the same jobs."""
    chance = random.Random(seed)  # noqa: S311 - must be reproducible, not secure
    requests: list[Request] = []
    now_s = 0.0
    while len(requests) < count:
        rate = _A_DAY / _DAY_S / 2 * (1 + 0.9 * math.sin(2 * math.pi * now_s / _DAY_S))  # more by day than by night
        now_s += chance.expovariate(rate)
        user = chance.choices(_USERS, [1 / rank for rank in range(1, len(_USERS) + 1)])[0]
        sweep = chance.randint(5, 20) if chance.random() < _SWEEP else 1
        asked = _asked(chance, single=sweep > 1)
        for _ in range(min(sweep, count - len(requests))):
            duration_s = max(5.0, min(2.5 * _DAY_S, chance.lognormvariate(math.log(1500), 1.6)))
            requests.append(
                Request(
                    number=len(requests),
                    arrival_s=round(now_s),
                    user=user,
                    duration_s=round(duration_s),
                    time_limit_s=_limit(chance, duration_s),
                    mem_bytes=asked[0],
                    gpus=asked[1],
                    priority=asked[2],
                    name="sweep" if sweep > 1 else "job",
                )
            )
    first_s = requests[0].arrival_s
    return tuple(replace(request, arrival_s=request.arrival_s - first_s) for request in requests)


def _asked(chance: random.Random, *, single: bool) -> tuple[int, int, Priority]:
    """Return memory in bytes, number of GPUs and priority. If *single*, the number of GPUs is 1."""
    mem = chance.choices([size for size, _ in _GIB], [weight for _, weight in _GIB])[0]
    gpus = 1 if single else chance.choices([n for n, _ in _GPUS], [weight for _, weight in _GPUS])[0]
    priority = chance.choices([each for each, _ in _PRIORITIES], [weight for _, weight in _PRIORITIES])[0]
    return mem * GIB, gpus, priority


def _limit(chance: random.Random, duration_s: float) -> float | None:
    """Return a typical time limit: a round figure well above the duration, or None."""
    if chance.random() < 0.35:  # noqa: PLR2004 - the share of jobs without a limit
        return None
    wanted_s = duration_s * chance.uniform(1.2, 4)
    return next((float(step) for step in _STEPS_S if step >= wanted_s), None)
