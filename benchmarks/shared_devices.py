"""How jobs fare that share devices and slow each other, under each placement, and with more or less known of them.

python -m benchmarks.shared_devices [--jobs 400] [--seeds 3] [--first-seed 0] [--sites 8x80G ...] [--shapes shares ...]
    [--load 0.7] [--placements spread pack ...]

Each trace (gpuqueue/simulator/shapes.py) is replayed with the real scripts, and runs that share devices slow each other
(gpuqueue/simulator/replay.py). TURN is the mean time from arrival to end, as a multiple of that with the first
placement on the same trace; WAIT, 95 % and MOST are the same for the waits, SLOW for the bounded slowdown. STRETCH is
how much longer the runs took than alone. STARVED is the number of jobs that waited far too long, see
order_of_starts.py. `least-busy` knows the utilisation of all jobs, of half of the programs, or of none. With `2 slots`
a device takes two jobs at most.

At the end come the geometric mean, the median and the worst trace of each placement, and by which factor the geometric
mean of TURN may differ by chance: one standard error, in ``+-``.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from benchmarks.order_of_starts import LEAST_S, is_starved
from gpuqueue.model.placement import Preference
from gpuqueue.simulator.comparison import bounded_slowdown, percentile, replay_ours
from gpuqueue.simulator.replay import replay
from gpuqueue.simulator.rivals import FirstFit
from gpuqueue.simulator.shapes import SHAPES as PUBLIC
from gpuqueue.simulator.shapes import Kind, Shape, shaped
from gpuqueue.simulator.site import Knobs, Site
from gpuqueue.simulator.trace import Request

SITES = ("4x24G", "8x80G", "4x24G,4x80G")
SLOTS, HEADROOM_BYTES = 8, 512 * 2**20
#: Also jobs that need more than half of a card, but not all of it.
SHAPES: Mapping[str, Shape] = {
    **PUBLIC,
    "halves": Shape(
        about="small jobs beside some that need more than half of a card",
        kinds=(
            Kind(share=0.1, weight=30, median_s=900),
            Kind(share=0.25, weight=30, median_s=1800),
            Kind(share=0.6, weight=20, median_s=2400),
            Kind(share=0.75, weight=15, median_s=3600),
            Kind(share=1.0, gpus=2, weight=5, median_s=3600),
        ),
        sweeps=0.1,
        members=(5, 20),
    ),
    "small": Shape(
        about="only jobs that share cards",
        kinds=(
            Kind(share=0.1, weight=40, median_s=1800),
            Kind(share=0.2, weight=30, median_s=2400),
            Kind(share=0.4, weight=30, median_s=3600),
        ),
        sweeps=0.1,
        members=(5, 20),
    ),
}


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A placement, what it knows of each job, and how many jobs a device takes."""

    placement: Preference
    slots: int = SLOTS
    expected: Callable[[Request], float | None] = lambda request: request.utilisation


def half_known(request: Request) -> float | None:
    """Return the utilisation of half of the programs. Jobs with equal figures are of one program."""
    chance = random.Random(f"{request.user} {request.utilisation}")  # noqa: S311 - must be reproducible, not secure
    return request.utilisation if chance.random() < 0.5 else None  # noqa: PLR2004 - half


HEAD = "   TURN   WAIT   95 %   MOST   SLOW STRETCH STARVED"
#: Name -> a placement. The first is what the others are compared with.
CHOICES: Mapping[str, Choice] = {
    "spread": Choice(placement=Preference.SPREAD),
    "spread, 2 slots": Choice(placement=Preference.SPREAD, slots=2),
    "pack": Choice(placement=Preference.PACK),
    "least-busy": Choice(placement=Preference.LEAST_BUSY),
    "least-busy, half known": Choice(placement=Preference.LEAST_BUSY, expected=half_known),
    "least-busy, none known": Choice(placement=Preference.LEAST_BUSY, expected=lambda _: None),
}


def measured(requests: Sequence[Request], site: Site, choice: Choice, longest_s: float) -> dict[str, float]:
    """Return the figures of a replay. *longest_s* is the longest wait under first-fit."""
    there, knobs = replace(site, slots=choice.slots), Knobs(placement=choice.placement)
    placed = replay_ours(requests, there, knobs, slows=True, expected=choice.expected).placements
    waits = sorted(each.wait_s for each in placed)
    return {
        "turn": statistics.mean(each.wait_s + each.run_s for each in placed),
        "wait": max(LEAST_S, statistics.mean(waits)),
        "p95": max(LEAST_S, percentile(waits, 0.95)),
        "most": max(LEAST_S, waits[-1]),
        "slow": statistics.mean(map(bounded_slowdown, placed)),
        "stretch": statistics.mean(each.run_s / each.request.run_s for each in placed),
        "starved": sum(is_starved(each, longest_s) for each in placed),
    }


def multiples(figures: Mapping[str, float], base: Mapping[str, float]) -> dict[str, float]:
    """Return the figures as multiples of those of *base*, except the stretch and the number of starved jobs."""
    return {key: value if key in {"stretch", "starved"} else value / base[key] for key, value in figures.items()}


def main() -> None:
    """Replay all traces and print a line for each placement, then the figures of each placement together."""
    options = _options()
    lines: dict[str, list[dict[str, float]]] = {name: [] for name in options.placements}
    print(f"{'SITE':12} {'SHAPE':7} SEED  {'PLACEMENT':24}{HEAD}")
    for text in options.sites:
        site = Site.parse(text, slots=SLOTS, headroom_bytes=HEADROOM_BYTES)
        for shape in options.shapes:
            for seed in range(options.first_seed, options.first_seed + options.seeds):
                requests = shaped(SHAPES[shape], site, options.jobs, seed=seed, load=options.load)
                longest_s = max(each.wait_s for each in replay(requests, FirstFit(site), slows=True))
                base: dict[str, float] | None = None
                for name, its in lines.items():
                    figures = measured(requests, site, CHOICES[name], longest_s)
                    base = base or figures
                    its.append(multiples(figures, base))
                    print(f"{text:12} {shape:7} {seed:4}  {name:24}{_figures(its[-1])}", flush=True)
    for what, choose in (("geometric mean", _common), ("median", statistics.median), ("worst", max)):
        for name, its in lines.items():
            figures = {key: choose([line[key] for line in its]) for key in its[0]}
            figures["starved"] = sum(line["starved"] for line in its)
            print(f"{what:26} {name:24}{_figures(figures)}{_chance(its) if choose is _common else ''}")


def _common(values: Sequence[float]) -> float:
    return statistics.geometric_mean(max(value, 1e-9) for value in values)


def _chance(its: Sequence[Mapping[str, float]]) -> str:
    """Return the standard error of the geometric mean of TURN."""
    logs = [math.log(line["turn"]) for line in its]
    return f"  +-{math.expm1(statistics.stdev(logs) / math.sqrt(len(logs))):5.3f}" if len(logs) > 1 else ""


def _figures(line: Mapping[str, float]) -> str:
    return "".join(f"{value:7.0f}" if key == "starved" else f"{value:7.3f}" for key, value in line.items())


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=400)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--placements", nargs="+", default=[*CHOICES], choices=CHOICES, metavar="NAME")
    parser.add_argument("--sites", nargs="+", default=SITES)
    parser.add_argument("--shapes", nargs="+", default=[*SHAPES], choices=SHAPES)
    parser.add_argument(
        "--load", type=float, default=0.7, help="Work of the trace, as a share of what the site can do."
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
