"""One trace, one site, four policies."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field

from gpuqueue.embedded.scratch import scratch_store
from gpuqueue.errors import BadRequest
from gpuqueue.frozen import dataclass
from gpuqueue.simulator.figures import Outcome
from gpuqueue.simulator.ours import Knobs, Ours
from gpuqueue.simulator.replay import Placement, Policy, replay
from gpuqueue.simulator.rivals import Backfill, ExclusiveFifo, FirstFit
from gpuqueue.simulator.site import Site
from gpuqueue.simulator.trace import Request
from gpuqueue.units import format_bytes

OURS = "ours"
#: The rivals in the order of the table; docs/reference/json.md names them.
RIVALS: Mapping[str, Callable[[Site], Policy]] = {
    "exclusive": ExclusiveFifo,
    "backfill": Backfill,
    "first-fit": FirstFit,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """What became of a trace under each policy. ``too_large`` jobs fit no device of the site and were left out.

    The first of those stands in the line ``too_large_line``, None where there is none, or no file.
    """

    outcomes: tuple[Outcome, ...]
    placements: Mapping[str, Sequence[Placement]] = field(repr=False)
    site: Site = field(repr=False)
    too_large: int
    too_large_line: int | None = None
    took_s: float


def compare(requests: Sequence[Request], site: Site, knobs: Knobs, *, seed: int = 0) -> Comparison:
    """Replay *requests* at *site* under each policy. ``took_s`` is the time that ours took.

    Raises:
        BadRequest: none of them fits a device of the site.
        GpuQueueError: there is no store to compute with.

    """
    fitting = [request for request in requests if site.could_run(request)]
    too_large = [request for request in requests if not site.could_run(request)]
    if not fitting:
        raise BadRequest(f"no job of the trace fits these devices{_such_as(too_large)}: give more or larger ones")
    with scratch_store() as url:
        ours = Ours(url, site, knobs, seed=seed)
        began_s = time.perf_counter()
        try:
            placements = {OURS: replay(fitting, ours)}
        finally:
            ours.close()
        took_s = time.perf_counter() - began_s
    for name, rival in RIVALS.items():
        placements[name] = replay(fitting, rival(site))
    return Comparison(
        outcomes=tuple(
            Outcome.of(name, placed, site, ours.starts if name == OURS else {}) for name, placed in placements.items()
        ),
        placements=placements,
        site=site,
        too_large=len(too_large),
        too_large_line=_line(too_large),
        took_s=took_s,
    )


def _line(requests: Sequence[Request]) -> int | None:
    """Return the first line of a file in which one of *requests* stands."""
    return min((request.line for request in requests if request.line), default=None)


def _such_as(requests: Sequence[Request]) -> str:
    """Return what the least of *requests* asks for, to stand in a message."""
    least = min(requests, key=lambda request: (request.gpus * request.mem_bytes, request.line), default=None)
    if least is None or not least.line:
        return ""
    asked = f"{least.gpus}x{format_bytes(least.mem_bytes)}" if least.gpus > 1 else format_bytes(least.mem_bytes)
    return f", not even the {asked} of line {least.line}"
