"""A host that can be cut off from the store, and a job that notes when it is alive."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from bounded import until
from link import Link
from site_of_one import Site

#: Writes its attempt and the machine's uptime until the end file exists, then exits with 7.
JOB = (
    'while :; do read up _ </proc/uptime; echo "$GPUQUEUE_ATTEMPT $up" >>"$1"; [ -e "$2" ] && exit 7; sleep 0.05; done'
)

#: A host, a function that cuts it off, and one that ends the cut.
Cut = tuple[Site, Callable[[], None], Callable[[], None]]


def behind(stack: ExitStack, store_url: str, place: Path, **settings: str) -> tuple[Site, Link]:
    """Return a host whose worker reaches the store through a link that can be cut, and the link."""
    link = Link(store_url)
    stack.callback(link.close)
    site = Site(place, store_url, **{"GPUQUEUE_HEARTBEAT": "0.2s", **settings})
    stack.callback(site.stop)
    site.environ["GPUQUEUE_REDIS_URL"] = link.url
    site.start_worker()
    return site, link


def proxied(stack: ExitStack, store_url: str, place: Path, **settings: str) -> Cut:
    """Return the same, with the functions that cut and heal the link."""
    site, link = behind(stack, store_url, place, **settings)
    return site, link.cut, link.heal


def submit(site: Site, place: Path, *options: str) -> tuple[int, Path, Path]:
    """Submit the job and wait until it lives; return its id, its effects file and its end file."""
    effects, end = place / "effects", place / "end"
    words = ("submit", "--mem", "1M", *options, "--", "sh", "-c", JOB, "job", str(effects), str(end))
    environ, site.environ = site.environ, {**site.environ, "GPUQUEUE_REDIS_URL": site.settings.redis_url}
    job = int(site.cli(*words).stdout)
    site.environ = environ
    until(effects.exists, what="the job lives")
    return job, effects, end


def lives(effects: Path) -> dict[int, list[float]]:
    """Return the times at which each copy was alive, in seconds since the machine's boot, by attempt."""
    times: dict[int, list[float]] = {}
    for line in effects.read_text().splitlines():
        words = line.split()
        if len(words) == 2:  # a line that is being written has fewer
            times.setdefault(int(words[0]), []).append(float(words[1]))
    return times
