"""Compares the policies on one trace and one site.

- **Wait**: from arrival to start. Percentiles use the nearest rank, so each is an observed wait.
- **Turnaround**: from arrival to end.
- **Bounded slowdown**: max(1, turnaround / max(run, 10 s)), where the run time is that alone on the devices. The bound
  keeps very short jobs from dominating (Feitelson and Rudolph, "Metrics and Benchmarking for Parallel Job Scheduling",
  1998). The figure is the mean.
- **Stretch**: the run time as a multiple of that alone, above 1 only if runs on shared devices slow each other
  (see ``speed`` of replay.py). The figure is the mean.
- **Memory**: allocated memory as a share of all usable device memory, from the first arrival to the last end.
- **Fairness**: Jain's index, (sum x)^2 / (n sum x^2), of the users' mean bounded slowdowns: 1 if all are equal, 1/n if
  one user has all of the slowdown (Jain, Chiu and Hawe, "A Quantitative Measure of Fairness", 1984). The index is not
  of usage, because a user who requested little has used little without being treated unfairly.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace

from gpuqueue.embedded.store import scratch_store
from gpuqueue.errors import BadRequest
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.limits import Limits
from gpuqueue.model.measures import Use
from gpuqueue.model.placement import Preference
from gpuqueue.model.statistics import Size
from gpuqueue.simulator.ours import TRACED, Expected, Ours
from gpuqueue.simulator.replay import Placement, Policy, replay
from gpuqueue.simulator.rivals import Backfill, Easy, ExclusiveFifo, FirstFit, Shortest
from gpuqueue.simulator.site import Knobs, Site
from gpuqueue.simulator.trace import Request
from gpuqueue.text.units import format_bytes

OURS = "ours"
#: The other policies, in the order of the table. docs/reference/json.md has their names.
RIVALS: Mapping[str, Callable[[Site], Policy]] = {
    "exclusive": ExclusiveFifo,
    "backfill": Backfill,
    "first-fit": FirstFit,
    "easy": Easy,
    "shortest": Shortest,
}
#: Lower bound of the run time in a slowdown, in seconds.
BOUND_S = 10.0


@dataclass(frozen=True, kw_only=True, slots=True)
class LeftOut:
    """Jobs that are left out of all replays: their number, and the line of the first one in the file, if known."""

    count: int
    line: int | None

    @classmethod
    def of(cls, requests: Sequence[Request]) -> LeftOut:
        """Return the summary of the left-out *requests*."""
        return cls(count=len(requests), line=min((each.line for each in requests if each.line), default=None))


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """The outcomes of a trace under each policy.

    ``too_large`` jobs fit no device of the site. ``over_limit`` jobs exceed a limit even if no other job runs. If
    ``slows``, runs on shared devices slowed each other. ``reserved_idle_device_s`` is for how long devices were idle
    under gpuqueue's policy because they were reserved.
    """

    outcomes: tuple[Outcome, ...]
    placements: Mapping[str, Sequence[Placement]] = field(repr=False)
    site: Site = field(repr=False)
    slows: bool
    too_large: LeftOut
    over_limit: LeftOut
    reserved_idle_device_s: float
    took_s: float


def compare(requests: Sequence[Request], site: Site, knobs: Knobs, *, seed: int = 0, slows: bool = False) -> Comparison:
    """Replay *requests* at *site* under each policy. ``took_s`` is the duration of gpuqueue's own replay.

    If *slows*, runs on shared devices slow each other (see :func:`gpuqueue.simulator.replay.speed`).

    Raises:
        BadRequest: no request fits a device of the site within the limits.
        GpuQueueError: the temporary store does not start.

    """
    fitting, too_large, over_limit = fit(requests, site, knobs)
    ours = replay_ours(fitting, site, knobs, seed=seed, slows=slows)
    placements = {OURS: ours.placements}
    for name, rival in RIVALS.items():
        placements[name] = replay(fitting, rival(site), slows=slows)
    return Comparison(
        outcomes=tuple(
            Outcome.of(name, placed, site, ours.starts if name == OURS else {}) for name, placed in placements.items()
        ),
        placements=placements,
        site=site,
        slows=slows,
        too_large=LeftOut.of(too_large),
        over_limit=LeftOut.of(over_limit),
        reserved_idle_device_s=ours.reserved_idle_device_s,
        took_s=ours.took_s,
    )


def fit(requests: Sequence[Request], site: Site, knobs: Knobs) -> tuple[list[Request], list[Request], list[Request]]:
    """Return the requests that *site* can run, those that fit no device of it, and those beyond a limit.

    Raises:
        BadRequest: no request fits a device of the site within the limits.

    """
    too_large: list[Request] = []
    over_limit: list[Request] = []
    fitting: list[Request] = []
    for request in requests:
        if not site.could_run(request):
            too_large.append(request)
        else:
            (over_limit if _is_over(request, knobs.limits) else fitting).append(request)
    if not fitting and not over_limit:
        raise BadRequest(f"no job of the trace fits these devices{_such_as(too_large)}: give more or larger ones")
    if not fitting:
        raise BadRequest(f"the limits let no job of the trace run{_such_as(over_limit)}: raise them")
    return fitting, too_large, over_limit


@dataclass(frozen=True, kw_only=True, slots=True)
class Replayed:
    """A replay under gpuqueue's policy: the runs, how many of them started in which way, and what reservations cost."""

    placements: list[Placement]
    starts: Mapping[str, int]
    reserved_idle_device_s: float
    took_s: float


def replay_ours(
    requests: Iterable[Request],
    site: Site,
    knobs: Knobs,
    *,
    seed: int = 0,
    slows: bool = False,
    expected: Expected = TRACED,
) -> Replayed:
    """Replay *requests* under gpuqueue's policy. The arguments are those of :func:`compare` and :class:`Ours`.

    Raises:
        GpuQueueError: the temporary store does not start.

    """
    with scratch_store() as url:
        ours = Ours(url, site, knobs, seed=seed, expected=expected)
        began_s = time.perf_counter()
        try:
            placements = replay(requests, ours, slows=slows)
            idle_s = ours.reserved_idle_device_s()
        finally:
            ours.close()
        took_s = time.perf_counter() - began_s
    return Replayed(placements=placements, starts=ours.starts, reserved_idle_device_s=idle_s, took_s=took_s)


def arriving(requests: Sequence[Request], seen: Callable[[int], None], most_s: float) -> Iterator[Request]:
    """Yield *requests* in turn, and call *seen* with the number of each; after *most_s* seconds no further one.

    So a replay of them ends when those that have arrived by then have run.
    """
    until_s = time.monotonic() + most_s
    for number, request in enumerate(requests, 1):
        if number > 1 and time.monotonic() > until_s:
            return
        seen(number)
        yield request


def compare_placements(
    requests: Sequence[Request],
    site: Site,
    knobs: Knobs,
    *,
    seed: int = 0,
    seen: Callable[[int], None],
    most_s: float = math.inf,
) -> Iterator[tuple[Preference, Served]]:
    """Yield the figures of *requests* under each placement, that of *knobs* first. Runs on one device slow each other.

    Each replay takes about the same part of *most_s*: what arrives later in the first one is left out of all.
    """
    most_s /= len(Preference)
    for placement in (knobs.placement, *(each for each in Preference if each is not knobs.placement)):
        coming = arriving(requests, seen, most_s)
        ours = replay_ours(coming, site, replace(knobs, placement=placement), seed=seed, slows=True)
        requests, most_s = requests[: len(ours.placements)], math.inf
        yield placement, Served.of(ours.placements)


@dataclass(frozen=True, kw_only=True, slots=True)
class BesideFirstFit:
    """How jobs are served under gpuqueue's policy and under first-fit, by group: a size, light or heavy users, all.

    ``reserved_idle_device_s`` is as in :class:`Comparison`.
    """

    ours: Mapping[str, Served]
    first_fit: Mapping[str, Served]
    reserved_idle_device_s: float


def beside_first_fit(
    requests: Sequence[Request],
    site: Site,
    knobs: Knobs,
    *,
    light: Collection[str],
    seen: Callable[[int], None],
    most_s: float = math.inf,
) -> BesideFirstFit:
    """Replay *requests* under both policies: those that arrive in the first *most_s* seconds. *light* are users."""
    ours = replay_ours(arriving(requests, seen, most_s), site, knobs)
    rival = replay(requests[: len(ours.placements)], FirstFit(site))
    groups = {
        each.request.number: (
            str(Size.of(each.request.mem_bytes, site.cards[each.cards[0]].total_bytes, each.request.gpus)),
            "light" if each.request.user in light else "heavy",
            "all",
        )
        for each in ours.placements
    }

    def served(placements: Sequence[Placement]) -> dict[str, Served]:
        by_group = {
            name: [each for each in placements if name in groups[each.request.number]]
            for name in (*map(str, Size), "light", "heavy", "all")
        }
        return {name: Served.of(theirs) for name, theirs in by_group.items() if theirs}

    return BesideFirstFit(
        ours=served(ours.placements),
        first_fit=served(rival),
        reserved_idle_device_s=ours.reserved_idle_device_s,
    )


def _is_over(request: Request, limits: Limits) -> bool:
    """Return whether the request exceeds a limit even if no other job runs."""
    asked = Use(running_jobs=1, running_gpus=request.gpus, running_mem=request.gpus * request.mem_bytes)
    return limits.over(request.user, asked, {}) is not None


def _such_as(requests: Sequence[Request]) -> str:
    """Return a part of a message that names the memory of the smallest request, or an empty text."""
    least = min(requests, key=lambda request: (request.gpus * request.mem_bytes, request.line), default=None)
    if least is None or not least.line:
        return ""
    asked = f"{least.gpus}x{format_bytes(least.mem_bytes)}" if least.gpus > 1 else format_bytes(least.mem_bytes)
    return f", not even the {asked} of line {least.line}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Served:
    """Figures of a set of jobs: all jobs, or the jobs of one user."""

    jobs: int
    gpu_s: float
    wait_mean_s: float
    wait_median_s: float
    wait_p90_s: float
    wait_max_s: float
    slowdown: float
    turnaround_s: float
    stretch: float

    @classmethod
    def of(cls, placements: Sequence[Placement]) -> Served:
        """Return the figures of *placements*, which must not be empty."""
        waits = sorted(each.wait_s for each in placements)
        return cls(
            jobs=len(waits),
            gpu_s=sum(each.request.gpus * each.request.run_s for each in placements),
            wait_mean_s=sum(waits) / len(waits),
            wait_median_s=percentile(waits, 0.5),
            wait_p90_s=percentile(waits, 0.9),
            wait_max_s=waits[-1],
            slowdown=sum(map(bounded_slowdown, placements)) / len(waits),
            turnaround_s=sum(each.wait_s + each.run_s for each in placements) / len(waits),
            stretch=sum(each.run_s / each.request.run_s for each in placements) / len(waits),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """The figures of one policy. ``starts`` counts the runs by the way they started, if the policy reports it."""

    policy: str
    all: Served
    users: Mapping[str, Served]
    memory: float
    makespan_s: float
    fairness: float
    starts: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, policy: str, placements: Sequence[Placement], site: Site, starts: Mapping[str, int]) -> Outcome:
        """Return the figures of a replay at *site*."""
        by_user: dict[str, list[Placement]] = {}
        for each in placements:
            by_user.setdefault(each.request.user, []).append(each)
        users = {user: Served.of(theirs) for user, theirs in sorted(by_user.items())}
        makespan_s = max(each.end_s for each in placements) - min(each.request.arrival_s for each in placements)
        held = sum(each.request.mem_bytes * len(each.cards) * each.run_s for each in placements)
        return cls(
            policy=policy,
            all=Served.of(placements),
            users=users,
            memory=held / (site.usable_bytes * makespan_s),
            makespan_s=makespan_s,
            fairness=jain([user.slowdown for user in users.values()]),
            starts=dict(starts),
        )


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the value that a *share* of the *ordered* values does not exceed (nearest rank)."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def bounded_slowdown(placement: Placement) -> float:
    """Return the bounded slowdown of a job. The module's docstring has the formula."""
    return max(1.0, (placement.wait_s + placement.run_s) / max(placement.request.run_s, BOUND_S))


def jain(values: Sequence[float]) -> float:
    """Return Jain's index of *values*, which must not be negative."""
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else 1.0


def course(placements: Sequence[Placement], site: Site) -> tuple[list[float], list[float]]:
    """Return the share of allocated memory over time: times in seconds, and the share from each time on."""
    changes: dict[float, int] = {}
    for each in placements:
        held = each.request.mem_bytes * len(each.cards)
        changes[each.start_s] = changes.get(each.start_s, 0) + held
        changes[each.end_s] = changes.get(each.end_s, 0) - held
    moments, shares, now = [], [], 0
    for moment_s in sorted(changes):
        now += changes[moment_s]
        moments.append(moment_s)
        shares.append(now / site.usable_bytes)
    return moments, shares
