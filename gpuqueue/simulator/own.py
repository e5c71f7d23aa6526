"""A site's own history as a trace for its own devices, with how the jobs were served."""

from __future__ import annotations

import io
import os
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from gpuqueue.codec.csv_text import csv_text
from gpuqueue.errors import BadRequest, Refused
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.access import Action
from gpuqueue.model.job import JobState
from gpuqueue.model.run import VALUES, Record
from gpuqueue.model.shares import Shares
from gpuqueue.simulator import trace
from gpuqueue.simulator.replay import Placement
from gpuqueue.simulator.site import Card, Knobs, Site
from gpuqueue.text.units import format_bytes

if TYPE_CHECKING:
    from gpuqueue.client import Client
    from gpuqueue.queue.lease import DeviceStatus
    from gpuqueue.settings.settings import Settings
    from gpuqueue.simulator.trace import Trace

#: The columns of a trace that are those of the history.
_SAME = ("user", "submitted_at", "duration_s", "gpus", "time_limit_s", "priority", "devices", "own_utilisation")
#: How many jobs are replayed and for about how long, in seconds, unless the caller says how many.
USUAL_JOBS, MOST_S = 500, 60.0
#: By how much the priority of this process is lowered: the machine may serve jobs.
NICE = 10


@dataclass(frozen=True, kw_only=True, slots=True)
class OwnHistory:
    """The newest ended jobs of a site, how they were served, and the devices that it has now."""

    trace: Trace
    served: tuple[Placement, ...]
    site: Site


def own_history(
    client: Client, jobs: int, *, since: datetime | None = None, until: datetime | None = None
) -> OwnHistory:
    """Return the newest *jobs* ended jobs that were submitted from *since* to *until*, and the site's devices.

    Lower the priority of this process, which is about to replay them.

    Raises:
        Refused: the caller may not see the jobs of others.
        BadRequest: no GPU is served, or no job ran on one.

    """
    if str(Action.SEE_JOBS) not in client.access.whoami().may:
        raise Refused("a replay needs the jobs of everybody, and this site shows you only your own: ask an admin")
    site = site_of(client.devices.list())
    ended = [state for state in JobState if state.is_end]
    records = client.history.search(limit=jobs, since=since, until=until, states=ended)
    requests, served = trace_of(records)
    os.nice(NICE)
    return OwnHistory(trace=requests, served=served, site=site)


def site_of(devices: Sequence[DeviceStatus]) -> Site:
    """Return the GPUs among *devices*, all with the largest number of slots and the largest headroom of any of them.

    Raises:
        BadRequest: there is none.

    """
    gpus = [each for each in devices if each.device.kind.is_gpu]
    if not gpus:
        raise BadRequest("no GPU is served here, so there is nothing to replay the jobs on: start gpuqueue up")
    headroom_bytes = max(each.headroom_bytes for each in gpus)
    cards = [
        Card(
            uuid=each.device.uuid,
            host=each.host,
            index=each.device.index,
            total_bytes=each.device.total_bytes,
            usable_bytes=each.device.total_bytes - headroom_bytes,
        )
        for each in sorted(gpus, key=lambda each: (each.host, each.device.index))
    ]
    return Site(cards=tuple(cards), slots=max(each.slots for each in gpus), headroom_bytes=headroom_bytes)


def in_words(site: Site) -> str:
    """Return the devices of *site* as ``--devices`` takes them, such as ``4x24G,2x80G/8x24G``."""
    hosts = (Counter(site.cards[place].total_bytes for place in host) for host in site.hosts)
    return "/".join(",".join(f"{number}x{format_bytes(size)}" for size, number in host.items()) for host in hosts)


def trace_of(records: Sequence[Record]) -> tuple[Trace, tuple[Placement, ...]]:
    """Return *records* as a trace, and how its requests were served; the name of a request is the id of its job.

    A request asks for what its last run was allocated: for all of a card if it had that for itself.

    Raises:
        BadRequest: none of them ran on a GPU, or a user has a name that a trace cannot have.

    """
    columns = {**{name: VALUES[name] for name in _SAME}, "name": VALUES["id"], "mem_bytes": _allocated}
    here = [each for each in records if not any(d.kind and d.kind.is_engine for run in each.runs for d in run.devices)]
    text = csv_text([columns, *([value(each) for value in columns.values()] for each in here)])
    read = trace.read(io.StringIO(text, newline=""), "the history")
    by_id = {str(each.job.id): each for each in here}
    return read, tuple(
        Placement(request=each, cards=(), start_s=start_s, ended_s=start_s + each.duration_s)
        for each in read.requests
        for start_s in [each.arrival_s + (VALUES["wait_s"](by_id[each.name]) or 0.0)]
    )


def _allocated(record: Record) -> int:
    run = record.last_run
    leases = [each.lease_bytes for each in run.devices] if run is not None else []
    return max(leases, default=0) or record.job.spec.mem_bytes


def knobs_of(settings: Settings) -> Knobs:
    """Return what *settings* say about the order of jobs."""
    return Knobs(
        half_life_s=settings.half_life_s,
        shares=Shares.parse(settings.shares, settings.groups).by_user(),
        limits=settings.site_limits().of_runs(),
        reserve_after_s=settings.reserve_after_s,
        reservations=settings.reservations,
        reserve_budget=settings.reserve_budget,
        age_after_s=settings.age_after_s,
        placement=settings.placement,
        tick_s=settings.heartbeat_s,
    )
