"""Chooses a smaller first request where peaks vary and retries cost less than room for the largest peak. Pure.

A job that dies for lack of memory runs again with twice as much. So a request with room for two thirds of the peaks may
take fewer bytes times hours than one with room for all, lost runs included. It is chosen if it would have taken at
least a tenth less over the last ten runs, each asked for by the runs before it. The price of a lost run is what it was
allocated, for half of its time: how early a run dies is not known before it does. ``python -m
benchmarks.bench_learning`` compares shares and thresholds; without the tenth, programs that grow lose runs.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpuqueue.lazy.frozen import dataclass

#: The share of the needs, as a fraction, for which the smaller request has room.
SHARE_OF = 2, 3
#: The least number of needs, the largest ratio of two of them at which they do not vary, and the number of the newest
#: needs on which both requests are judged.
LEAST_NEEDS, STEADY, JUDGED = 5, 1.25, 10
#: The least number of needs before one that is judged.
LEAST_BEFORE = 3
#: The most that the smaller request may take of what the larger one takes.
WORTH = 0.9
#: The share of its time after which a run that lacks memory is taken to die, and what the next one gets.
LOST_AFTER, TIMES = 0.5, 2


@dataclass(frozen=True, slots=True)
class Need:
    """What a run needed, and the request that is enough for such a run, in bytes."""

    bytes: int
    enough_bytes: int


def first_request(needs: Sequence[Need], room_bytes: int | None = None) -> int | None:
    """Return the smaller request by *needs*, newest first, or None if room for the largest is better.

    *room_bytes* is what a device can give, None if unknown.
    """
    sizes = [need.bytes for need in needs]
    if len(sizes) < LEAST_NEEDS or max(sizes) < STEADY * min(sizes):
        return None
    large = small = 0.0
    for number in range(min(JUDGED, len(needs) - LEAST_BEFORE)):
        need, before = needs[number], needs[number + 1 :]
        large += tried(need.bytes, max(earlier.enough_bytes for earlier in before), room_bytes)[1]
        small += tried(need.bytes, _for_two_thirds(before), room_bytes)[1]
    return _for_two_thirds(needs) if small <= WORTH * large else None


def tried(need_bytes: int, request_bytes: int, room_bytes: int | None) -> tuple[int, float]:
    """Return how many runs are lost before one has *need_bytes*, and the bytes times the time of a run that all take.

    The first one has *request_bytes*, which is above 0, and each next one twice as much, up to *room_bytes*.
    """
    lost, taken = 0, 0.0
    limit_bytes = None if room_bytes is None else max(need_bytes, room_bytes)
    while request_bytes < need_bytes:
        lost, taken = lost + 1, taken + LOST_AFTER * request_bytes
        request_bytes = request_bytes * TIMES if limit_bytes is None else min(request_bytes * TIMES, limit_bytes)
    return lost, taken + request_bytes


def _for_two_thirds(needs: Sequence[Need]) -> int:
    """Return the request with room for two thirds of *needs*, by nearest rank."""
    share, of = SHARE_OF
    return sorted(needs, key=lambda need: need.bytes)[-(-share * len(needs) // of) - 1].enough_bytes
