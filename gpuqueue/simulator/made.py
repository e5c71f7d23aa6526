"""Traces for a site without a trace: an example of a few lines, and synthetic traces of any length. Pure.

Synthetic traces have the properties of real ones (Jeon et al., "Analysis of Large-Scale Multi-Tenant GPU Clusters",
ATC 2019; Hu et al., "Characterization and Prediction of Deep Learning Workloads", SC 2021): few users with most of the
jobs, many short and few long runs, a daily cycle, sweeps that arrive together, and requests of round memory sizes.
"""

from __future__ import annotations

import math
import random
from dataclasses import replace

from gpuqueue.model.job_spec import Priority
from gpuqueue.simulator.trace import Request
from gpuqueue.text.units import GIB

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
