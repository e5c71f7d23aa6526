"""How long jobs wait under gpuqueue's order, compared with first-fit, EASY and the shortest first.

All of these are by memory; ``whole`` is EASY with whole cards, as Slurm places jobs.

python -m benchmarks.order_of_starts [--jobs 600] [--seeds 3] [--first-seed 0] [--sites 8x80G/8x80G ...]
    [--shapes gangs ...]

Each line is one trace (gpuqueue/simulator/shapes.py), replayed with the real scripts. MEAN, 95 % and SLOW are those of
gpuqueue as a multiple of first-fit's; LIGHT is the mean wait of the users who together submit the smallest tenth of
the work; LARGE that of the jobs on the most devices; MOST is the longest wait as a multiple of the best rival's. IDLE
is the part of all device time that was idle because reserved. END is the time until the last end, as a multiple of
first-fit's. STARVED is the number of jobs that waited more than five times first-fit's longest wait, or more than three
days and fifty times as long as they ran. TURN is the mean time from arrival to end as a multiple of first-fit's, in a
replay where runs on one device slow each other (gpuqueue/simulator/replay.py). The aims are in
docs/internals/order-measured.md; a figure beyond its aim has an exclamation mark.

At the end come the geometric mean (of IDLE and STARVED the mean), the median, the worst trace and the number of traces
beyond the aim, also for the other policies. ``emptiest`` is first-fit on the devices with the most free memory: its
distance from first-fit shows how much such figures differ by chance.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from gpuqueue.model.placement import Preference
from gpuqueue.model.statistics import light_users
from gpuqueue.simulator.comparison import bounded_slowdown, percentile, replay_ours
from gpuqueue.simulator.replay import Placement, Policy, replay
from gpuqueue.simulator.rivals import Backfill, Easy, FirstFit, Room, Shortest
from gpuqueue.simulator.shapes import SHAPES, shaped
from gpuqueue.simulator.site import Knobs, Site
from gpuqueue.simulator.trace import Request
from gpuqueue.text.units import parse_duration

SITES = ("4x24G", "8x80G", "8x80G/8x80G")
SLOTS, HEADROOM_BYTES = 8, 512 * 2**20


class _EmptiestRoom(Room):
    def place(self, request: Request) -> tuple[int, ...] | None:
        """Return the devices of the first host with room for *request* that have the most free memory, or None."""
        for host in self._hosts:
            found = [card for card in host if self._slots[card] and self._free_bytes[card] >= request.mem_bytes]
            if len(found) >= request.gpus:
                return tuple(sorted(found, key=lambda card: -self._free_bytes[card])[: request.gpus])
        return None


class Emptiest(FirstFit):
    """First-fit that takes the devices with the most free memory."""

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self._room = _EmptiestRoom(site)


RIVALS: Mapping[str, Callable[[Site], Policy]] = {
    "first-fit": FirstFit,
    "easy": Easy,
    "whole": Backfill,
    "shortest": Shortest,
}
#: The policies whose figures are given at the end.
LAST = ("ours", "first-fit", "easy", "whole", "shortest", "emptiest")
#: Column -> the largest multiple that is aimed at. A figure of waits below this many seconds counts as that.
AIMS = {"mean": 1.3, "95 %": 1.3, "slow": 1.3, "light": 1.0, "most": 1.2}
LEAST_S = 60.0
#: The least figure in a geometric mean.
LEAST = 0.001
HEAD = (
    "SITE         SHAPE   SEED  OURS   FIRST-FIT  EASY     WHOLE   SHORTEST  "
    "MEAN   95 %   SLOW   LIGHT  LARGE  MOST   IDLE   END  STARVED TURN"
)


@dataclass(frozen=True, kw_only=True)
class Waits:
    """The figures of one policy, in seconds, except ``slow`` and ``idle`` (see IDLE above)."""

    mean: float
    p95: float
    most: float
    slow: float
    light: float
    large: float
    idle: float
    end: float
    starved: int
    turn: float

    @classmethod
    def of(
        cls, placed: Sequence[Placement], slowed: Sequence[Placement], light: frozenset[str], longest_s: float
    ) -> Waits:
        """Return the figures of *placed*, and of *slowed*, whose runs slow each other.

        *light* are the light users, and *longest_s* is the longest wait under first-fit.
        """
        waits = sorted(each.wait_s for each in placed)
        gpus = max(each.request.gpus for each in placed)
        return cls(
            mean=statistics.mean(waits),
            p95=percentile(waits, 0.95),
            most=waits[-1],
            slow=statistics.mean(map(bounded_slowdown, placed)),
            light=statistics.mean(each.wait_s for each in placed if each.request.user in light),
            large=statistics.mean(each.wait_s for each in placed if each.request.gpus == gpus),
            idle=0.0,
            end=max(each.start_s + each.run_s for each in placed),
            starved=sum(is_starved(each, longest_s) for each in placed),
            turn=statistics.mean(each.wait_s + each.run_s for each in slowed),
        )


def is_starved(placement: Placement, longest_s: float) -> bool:
    """Return whether a job waited far too long; *longest_s* is the longest wait under first-fit."""
    wait_s = placement.wait_s
    return wait_s > 5 * max(longest_s, LEAST_S) or (wait_s > 3 * 86400 and wait_s > 50 * placement.request.run_s)


def measure(requests: Sequence[Request], site: Site, knobs: Knobs) -> dict[str, Waits]:
    """Return the figures of each policy, gpuqueue's as ``ours``."""
    work: dict[str, float] = {}
    for each in requests:
        work[each.user] = work.get(each.user, 0.0) + each.mem_bytes * each.gpus * each.run_s
    light = light_users(work)
    placed, idle = _ours(requests, site, knobs, slows=False)
    slowed, _ = _ours(requests, site, knobs, slows=True)
    longest_s = max(each.wait_s for each in replay(requests, FirstFit(site)))
    found = {"ours": replace(Waits.of(placed, slowed, light, longest_s), idle=idle)}
    for name, rival in {**RIVALS, "emptiest": Emptiest}.items():
        slowed = replay(requests, rival(site), slows=True)
        found[name] = Waits.of(replay(requests, rival(site)), slowed, light, longest_s)
    return found


def _ours(requests: Sequence[Request], site: Site, knobs: Knobs, *, slows: bool) -> tuple[list[Placement], float]:
    """Return the runs of gpuqueue's policy, and the part of all device time that was idle because reserved."""
    ours = replay_ours(requests, site, knobs, slows=slows)
    ends_s = max(each.start_s + each.run_s for each in ours.placements)
    return ours.placements, ours.reserved_idle_device_s / ends_s / len(site.cards)


def multiples(found: Mapping[str, Waits], name: str) -> dict[str, float]:
    """Return the figures of the policy *name* as multiples: of first-fit's, and the longest wait of the best rival's.

    ``idle`` is a part and ``starved`` a number, no multiples.
    """
    its, first_fit = found[name], found["first-fit"]

    def over(mine: float, theirs: float) -> float:
        return max(mine, LEAST_S) / max(theirs, LEAST_S)

    return {
        "mean": over(its.mean, first_fit.mean),
        "95 %": over(its.p95, first_fit.p95),
        "slow": its.slow / first_fit.slow,
        "light": over(its.light, first_fit.light),
        "large": over(its.large, first_fit.large),
        "most": over(its.most, min(found[rival].most for rival in RIVALS)),
        "idle": its.idle,
        "end": its.end / first_fit.end,
        "starved": its.starved,
        "turn": its.turn / first_fit.turn,
    }


def main() -> None:
    """Replay all traces and print a line for each, then the figures of all of them together."""
    options = _options()
    knobs = Knobs(
        reserve_after_s=options.reserve_after,
        age_after_s=options.age_after,
        placement=Preference(options.placement),
    )
    print(HEAD)
    lines: dict[str, list[dict[str, float]]] = {policy: [] for policy in LAST}
    for text in options.sites:
        site = Site.parse(text, slots=SLOTS, headroom_bytes=HEADROOM_BYTES)
        for name in options.shapes:
            for seed in range(options.first_seed, options.first_seed + options.seeds):
                requests = shaped(SHAPES[name], site, options.jobs, seed=seed, load=options.load)
                found = measure(requests, site, knobs)
                for policy in LAST:
                    lines[policy].append(multiples(found, policy))
                hours = "  ".join(f"{found[policy].mean / 3600:7.2f}" for policy in ("ours", *RIVALS))
                print(f"{text:12} {name:7} {seed:4} {hours}  {_figures(lines['ours'][-1])}", flush=True)
    for policy in LAST:
        _print_together(policy, lines[policy])
    sys.exit(any(line[column] > most for line in lines["ours"] for column, most in AIMS.items()))


def _print_together(policy: str, lines: Sequence[Mapping[str, float]]) -> None:
    """Print of each column the geometric mean, median and worst, and in how many traces it is beyond its aim."""
    common = {column: statistics.geometric_mean(max(line[column], LEAST) for line in lines) for column in lines[0]}
    common |= {column: statistics.mean(line[column] for line in lines) for column in ("idle", "starved")}
    middle = {column: statistics.median(line[column] for line in lines) for column in lines[0]}
    worst = {column: max(line[column] for line in lines) for column in lines[0]}
    beyond = {column: sum(line[column] > most for line in lines) for column, most in AIMS.items()}
    counts = " ".join(f"{beyond.get(column, ''):5} " for column in middle)
    print(f"{policy + ', geometric mean':65} {_figures(common)}\n{'median':65} {_figures(middle)}")
    print(f"{'worst':65} {_figures(worst)}\n{f'beyond the aim, of {len(lines)}':65} {counts}".rstrip())


def _figures(line: Mapping[str, float]) -> str:
    return " ".join(f"{value:5.2f}{'!' if value > AIMS.get(column, value) else ' '}" for column, value in line.items())


def _time_s(text: str) -> float | None:
    return None if text == "none" else parse_duration(text)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=600)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--sites", nargs="+", default=SITES)
    parser.add_argument("--shapes", nargs="+", default=[*SHAPES], choices=SHAPES)
    parser.add_argument(
        "--load", type=float, default=0.9, help="Work of the trace, as a share of what the site can do."
    )
    parser.add_argument("--placement", default=Preference.SPREAD.value)
    for option, default_s in (("--reserve-after", Knobs().reserve_after_s), ("--age-after", Knobs().age_after_s)):
        parser.add_argument(option, type=_time_s, default=default_s, metavar="TIME", help="A setting; none: never.")
    return parser.parse_args()


if __name__ == "__main__":
    main()
