"""Compares the policies on one trace and one site."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field

from gpuqueue.embedded.scratch import scratch_store
from gpuqueue.errors import BadRequest
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.limits import Limits
from gpuqueue.model.measures import Use
from gpuqueue.simulator.figures import Outcome
from gpuqueue.simulator.ours import Ours
from gpuqueue.simulator.replay import Placement, Policy, replay
from gpuqueue.simulator.rivals import Backfill, ExclusiveFifo
from gpuqueue.simulator.sharing import Easy, FirstFit, Shortest
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
    with scratch_store() as url:
        ours = Ours(url, site, knobs, seed=seed)
        began_s = time.perf_counter()
        try:
            placements = {OURS: replay(fitting, ours, slows=slows)}
            idle_s = ours.reserved_idle_device_s()
        finally:
            ours.close()
        took_s = time.perf_counter() - began_s
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
        reserved_idle_device_s=idle_s,
        took_s=took_s,
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
