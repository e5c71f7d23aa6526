"""Computes the memory to ask for from the peaks of earlier runs. Pure.

The rule, with its sources:

- From three runs on: the largest of the last 20 trusted peaks x 1.1 + 256 MiB. The window of 20 and the factor come
  from a simulation of candidates; ``python -m benchmarks.bench_learning`` compares this rule with others, such as a
  high percentile, which the Kubernetes Vertical Pod Autoscaler uses. The 256 MiB are for the context of another device
  model and for spikes between two samples; the autoscaler's floor is 250 MiB.
- From one run on: the same, and at least the largest peak x 1.3, since one or two runs say little about how peaks vary.
  So a further run never raises the number as long as its peak is no larger.
- A peak that is only a lower bound counts as that of a single run: its source misses up to 600 MiB of a GPU.
- So does a peak with a gap, of which a part was not measured. It never counts alone.
- A run that filled its allocation and ended well shows that the allocation is enough. It asks for no more: with a
  margin each run would fill its larger cap again, and the number would grow up to the whole device.
- Where the peaks vary, a job that runs again after a lack of memory may ask for less at first
  (:mod:`gpuqueue.learning.rule`).
- A run that died for lack of memory asks for twice what it had, unless a run peaked at as much. After an
  out-of-memory error, x 1.5 lost twice as many tries as x 2 in the simulation.

The number never exceeds what a device can give, unless a run needed more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from gpuqueue.lazy.frozen import dataclass
from gpuqueue.learning.past_run import PastRun, Proof
from gpuqueue.text.units import GIB, MIB

#: The number of trusted peaks that count, the first ones.
LAST = 20
#: From this number of trusted peaks on, the small margin applies.
SEVERAL = 3
SEVERAL_FACTOR, SEVERAL_MORE_BYTES = 1.1, 256 * MIB
#: The margin for one or two peaks, and for lower bounds.
FEW_FACTOR = 1.3
#: What a run gets after it died for lack of memory.
DIED_FACTOR = 2
#: A smaller request is advised if it saves this share of it and this many bytes: less is not worth a line.
WORTH_FACTOR, WORTH_BYTES = 1.25, 256 * MIB
#: The smallest size that is learned or advised. A run may show that a program held no device memory, and the queue
#: refuses a request for none.
LEAST_BYTES = 64 * MIB


@dataclass(frozen=True, kw_only=True, slots=True)
class Learned:
    """What runs teach: the bytes to ask for, and the evidence.

    ``need_bytes`` follows from the runs alone. ``first_bytes`` is what a job asks for at first if it runs again after a
    lack of memory; None if that is no less. ``seen_bytes`` is the least that makes sense: the largest peak and the
    largest allocation that was not enough or just enough. ``room_bytes`` is what the largest device of the runs can
    give, None if unknown.

    ``runs`` is the number of runs that count. ``low_bytes`` and ``high_bytes`` are the smallest and the largest trusted
    peak, None without one. ``died_bytes`` is the most that was not enough, ``capped_bytes`` the most that was just
    enough, and ``least_bytes`` the largest lower bound of a need, each None without such a run. ``peaks`` is the number
    of trusted peaks.
    """

    need_bytes: int
    seen_bytes: int
    room_bytes: int | None
    runs: int
    peaks: int
    low_bytes: int | None = None
    high_bytes: int | None = None
    died_bytes: int | None = None
    capped_bytes: int | None = None
    least_bytes: int | None = None
    first_bytes: int | None = None

    @property
    def mem_bytes(self) -> int:
        """Return the need within the largest device of the runs, in a size that is short to write."""
        return self.within(self.room_bytes)

    def first_within(self, room_bytes: int | None) -> int:
        """Return what to ask for at first for a job that runs again after a lack of memory, at most *room_bytes*."""
        size_bytes = self.within(room_bytes)
        return size_bytes if self.first_bytes is None else min(size_bytes, self.first_bytes)

    def within(self, room_bytes: int | None) -> int:
        """Return the need, at most *room_bytes*, in a size that is short to write. What was seen is never cut."""
        size_bytes = rounded_up(self.need_bytes)
        if room_bytes is None or size_bytes <= room_bytes:
            return size_bytes
        if self.seen_bytes <= room_bytes:  # not rounded beyond what the device can give
            return max(LEAST_BYTES, self.seen_bytes, rounded_down(room_bytes))
        return rounded_up(self.seen_bytes)


def learned(
    runs: Sequence[PastRun], headroom_bytes: int = 0, *, is_moved: bool = False, are_alike: bool = False
) -> Learned | None:
    """Return what *runs* teach; None without runs. The runs that are most like the job come first, then the newest.

    *headroom_bytes* of a device are for no job. *is_moved* says that the peaks are computed from those of other
    arguments, so that none of them was seen. *are_alike* says that no run is more like the job than another one: then
    the job may ask for less than the largest at first.
    """
    counted = _first(runs)
    if not counted:
        return None
    peaks = [run.bytes for run in counted if run.proof is Proof.PEAK]
    if all(run.proof is Proof.PARTIAL for run in counted):
        return None
    at_least = [run.bytes for run in counted if run.proof in {Proof.AT_LEAST, Proof.PARTIAL}]
    high = max(peaks, default=0)
    bounds = {proof: _largest(counted, proof) for proof in (Proof.CAPPED, Proof.DIED)}
    has_shown_more = bounds[Proof.DIED] < high and not is_moved  # a larger peak that was seen
    died = 0 if has_shown_more else bounds[Proof.DIED]
    seen = max(0 if is_moved else high, *at_least, bounds[Proof.CAPPED], died)
    need = max(
        with_margin(peaks),
        with_margin([max(at_least)]) if at_least else 0,
        bounds[Proof.CAPPED],
        died * DIED_FACTOR,
    )
    rooms = [run.room_bytes - headroom_bytes for run in counted if run.room_bytes is not None]
    return Learned(
        need_bytes=need,
        seen_bytes=seen,
        room_bytes=max(rooms, default=None),
        runs=len(counted),
        peaks=len(peaks),
        low_bytes=min(peaks, default=None),
        high_bytes=max(peaks, default=None),
        died_bytes=died or None,
        capped_bytes=bounds[Proof.CAPPED] or None,
        least_bytes=max(at_least, default=None),
        first_bytes=_first_bytes(counted, max(rooms, default=None)) if are_alike and seen <= high else None,
    )


def _first_bytes(counted: Sequence[PastRun], room_bytes: int | None) -> int | None:
    """Return the first request by the runs that show what is enough. One that filled its allocation had enough."""
    needs = [
        Need(run.bytes, run.bytes if run.proof is Proof.CAPPED else rounded_up(_enough(run.bytes)))
        for run in counted
        if run.proof in {Proof.PEAK, Proof.CAPPED}
    ]
    return first_request(needs, room_bytes)


def with_margin(peaks: Sequence[int]) -> int:
    """Return the bytes that are enough after the trusted *peaks*; 0 without one."""
    if not peaks:
        return 0
    enough_bytes = _enough(max(peaks))
    return enough_bytes if len(peaks) >= SEVERAL else max(enough_bytes, math.ceil(max(peaks) * FEW_FACTOR))


def _enough(peak_bytes: int) -> int:
    return math.ceil(peak_bytes * SEVERAL_FACTOR) + SEVERAL_MORE_BYTES


def rounded_up(size_bytes: int) -> int:
    """Return *size_bytes* rounded up for a request: to at least 64 MiB, in such steps below 1 GiB, else to 0.1 GiB.

    The result is what ``--mem`` with the text of :func:`gpuqueue.text.units.format_bytes` asks for.
    """
    if size_bytes <= GIB - 64 * MIB:
        return max(LEAST_BYTES, -(-size_bytes // (64 * MIB)) * 64 * MIB)
    return math.ceil(-(-size_bytes * 10 // GIB) / 10 * GIB)


def rounded_down(size_bytes: int) -> int:
    """Return *size_bytes* rounded down to such a size. What a device can give must not be rounded up."""
    if size_bytes < GIB:
        return size_bytes // (64 * MIB) * 64 * MIB
    return math.ceil(size_bytes * 10 // GIB / 10 * GIB)


def is_worth_less(mem_bytes: int, enough_bytes: int) -> bool:
    """Return whether to advise *enough_bytes* in place of the request *mem_bytes*."""
    return mem_bytes >= WORTH_FACTOR * enough_bytes and mem_bytes - enough_bytes >= WORTH_BYTES


def _first(runs: Sequence[PastRun]) -> Sequence[PastRun]:
    """Return *runs* from the first on until LAST of them have a trusted peak, and LAST of them without one."""
    found, peaks, others = list[PastRun](), 0, 0
    for run in runs:
        is_peak = run.proof is Proof.PEAK
        if peaks == LAST:
            break
        if is_peak or others < LAST:
            found.append(run)
        peaks, others = peaks + is_peak, others + (not is_peak)
    return found


def _largest(runs: Sequence[PastRun], proof: Proof) -> int:
    return max((run.bytes for run in runs if run.proof is proof), default=0)


# ---- a smaller first request -----------------------------------------------------------------------------------------

# A job that dies for lack of memory runs again with twice as much. So a request with room for two thirds of the peaks
# may take fewer bytes times hours than one with room for all, lost runs included. It is chosen if it would have taken
# at least a tenth less over the last ten runs, each asked for by the runs before it. The price of a lost run is what it
# was allocated, for half of its time: how early a run dies is not known before it does.
# ``python -m benchmarks.bench_learning`` compares shares and thresholds; without the tenth, programs that grow lose
# runs.

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
