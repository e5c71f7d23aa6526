"""How jobs fare that share devices and slow each other, under each placement, and with more or less known of them.

python -m benchmarks.shared_devices [--jobs 400] [--seeds 3] [--sites 8x80G ...] [--shapes shares ...] [--load 0.7]

Each trace (gpuqueue/simulator/shapes.py) is replayed with the real scripts, and runs that share devices slow each other
(gpuqueue/simulator/replay.py). TURN is the mean time from arrival to end, as a multiple of that with the
placement `spread` on the same trace; WAIT is the same for the mean wait. STRETCH is how much longer the runs took than
alone. `least-busy` knows the utilisation of all jobs, of half of the programs, or of none. With `2 slots` a device
takes two jobs at most.
"""

from __future__ import annotations

import argparse
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from gpuqueue.model.placement import Preference
from gpuqueue.simulator.comparison import Served, replay_ours
from gpuqueue.simulator.shapes import SHAPES, shaped
from gpuqueue.simulator.site import Knobs, Site
from gpuqueue.simulator.trace import Request

SITES = ("4x24G", "8x80G")
SLOTS, HEADROOM_BYTES = 8, 512 * 2**20
#: Waits below this count as that, in seconds: their multiples say nothing.
LEAST_S = 60.0


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


#: Name -> a placement. The first is what the others are compared with.
CHOICES: Mapping[str, Choice] = {
    "spread": Choice(placement=Preference.SPREAD),
    "spread, 2 slots": Choice(placement=Preference.SPREAD, slots=2),
    "pack": Choice(placement=Preference.PACK),
    "least-busy": Choice(placement=Preference.LEAST_BUSY),
    "least-busy, half known": Choice(placement=Preference.LEAST_BUSY, expected=half_known),
    "least-busy, none known": Choice(placement=Preference.LEAST_BUSY, expected=lambda _: None),
}


def measured(requests: Sequence[Request], site: Site, choice: Choice) -> Served:
    """Return the figures of a replay."""
    there, knobs = replace(site, slots=choice.slots), Knobs(placement=choice.placement)
    return Served.of(replay_ours(requests, there, knobs, slows=True, expected=choice.expected).placements)


def multiples(found: Served, base: Served) -> dict[str, float]:
    """Return turnaround and wait as multiples of those of *base*, and the stretch."""
    waits = (max(each.wait_mean_s, LEAST_S) for each in (found, base))
    return {
        "turn": found.turnaround_s / base.turnaround_s,
        "wait": next(waits) / next(waits),
        "stretch": found.stretch,
    }


def main() -> None:
    """Replay all traces and print a line for each placement, then the median and the worst of each."""
    options = _options()
    lines: dict[str, list[dict[str, float]]] = {name: [] for name in CHOICES}
    print(f"{'SITE':8} {'SHAPE':7} SEED  {'PLACEMENT':24}  TURN   WAIT  STRETCH")
    for text in options.sites:
        site = Site.parse(text, slots=SLOTS, headroom_bytes=HEADROOM_BYTES)
        for shape in options.shapes:
            for seed in range(options.seeds):
                requests = shaped(SHAPES[shape], site, options.jobs, seed=seed, load=options.load)
                found = {name: measured(requests, site, choice) for name, choice in CHOICES.items()}
                for name, each in found.items():
                    lines[name].append(multiples(each, found["spread"]))
                    print(f"{text:8} {shape:7} {seed:4}  {name:24} {_figures(lines[name][-1])}", flush=True)
    for what, choose in (("median", statistics.median), ("worst", max)):
        for name, its in lines.items():
            print(f"{what:22}{name:24} {_figures({key: choose([line[key] for line in its]) for key in its[0]})}")


def _figures(line: Mapping[str, float]) -> str:
    return "  ".join(f"{value:5.2f}" for value in line.values())


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=400)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--sites", nargs="+", default=SITES)
    parser.add_argument("--shapes", nargs="+", default=[*SHAPES], choices=SHAPES)
    parser.add_argument(
        "--load", type=float, default=0.7, help="Work of the trace, as a share of what the site can do."
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
