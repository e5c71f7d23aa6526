"""Part of ``why``: the devices that matter, those nearest to fitting first, and a line about the others. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from gpuqueue.client.why import Why
from gpuqueue.queue.explanation import NEVER_THERE, Explanation, Obstacle, Verdict
from gpuqueue.text.sanitize import plain

#: Most devices with a row of their own. A job on several devices has as many rows as devices.
MOST = 5
#: Obstacle -> how far its device is from fitting. The store tests obstacles in the order from far to near.
_FAR = {obstacle: far for far, obstacle in enumerate(reversed(Obstacle))}
#: Obstacle -> what a device with it is called when devices are counted.
WORDS = {
    Obstacle.POOL: "of another pool",
    Obstacle.KIND: "of another kind",
    Obstacle.NAMED: "not named by the job",
    Obstacle.MODEL: "of another type",
    Obstacle.EXCLUDED: "on a host that could not start the job",
    Obstacle.PART: "MIG",
    Obstacle.TOO_SMALL: "too small",
    Obstacle.TOO_LARGE: "too large",
    Obstacle.DRAINED: "drained",
    Obstacle.SILENT: "silent",
    Obstacle.EXCLUSIVE: "taken by one job alone",
    Obstacle.OCCUPIED: "in use",
    Obstacle.MEMORY: "with too little memory",
    Obstacle.SLOTS: "with all slots taken",
    Obstacle.RESERVED: "reserved",
    Obstacle.ALONE: "with too few others beside it",
    Obstacle.LIMIT: "with room",
    Obstacle.NOT_YET: "with room",
    Obstacle.FITS: "with room",
}


def nearest(found: Why, explanation: Explanation) -> list[Verdict]:
    """Return the devices that matter, in the order of the table.

    The devices of the expected start come first. Devices that can never run the job are left out if others can.
    """
    ordered = sorted(explanation.devices, key=lambda each: _distance(found, explanation, each))
    possible = [each for each in ordered if each.obstacle not in NEVER_THERE]
    return (possible or ordered)[: max(MOST, found.job.spec.gpus)]


def rest_line(explanation: Explanation, shown: Sequence[Verdict]) -> list[str]:
    """Return the line about the devices that are not *shown*, if any, and why hosts could not start the job."""
    named = {each.device for each in shown}
    others = [each for each in explanation.devices if each.device not in named]
    if not others:
        return []
    kinds = Counter(WORDS[each.obstacle] for each in others).most_common()
    counts = ", ".join(f"{number} {words}" for words, number in kinds)
    reasons = {each.host: each.cannot_start for each in others if each.obstacle is Obstacle.EXCLUDED}
    return [
        f"and {len(others)} other device{'s' if len(others) > 1 else ''}: {counts} (--json lists all)",
        *(
            f"{plain(host)} could not start the job: {plain(reason or 'no reason is known')}"
            for host, reason in sorted(reasons.items())[:MOST]
        ),
    ]


def _distance(found: Why, explanation: Explanation, verdict: Verdict) -> tuple[bool, int, int, str, int]:
    start, status = explanation.start, found.devices.get(verdict.device)
    elsewhere = start is None or verdict.device not in start.devices
    index = status.device.index if status is not None else 0
    return elsewhere, _FAR[verdict.obstacle], -verdict.available_bytes, verdict.host, index
