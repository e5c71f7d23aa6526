"""What the run of a probe shows: the memory and the time to ask for. Pure.

The memory follows the rule for earlier runs (:mod:`gpuqueue.learning.rule`), as ``--mem auto`` does for the next job.
The time is that of the run, or of a whole run by the share that its output shows, and half as much again.
"""

from __future__ import annotations

import math

from gpuqueue.lazy.frozen import dataclass
from gpuqueue.learning.past_run import OnDevice, PastRun, Proof, kind_of, on_devices, proof_of
from gpuqueue.learning.rule import learned
from gpuqueue.model.progress import LEAST_SHARE, Progress
from gpuqueue.model.run import EndingKind, Run

#: The time to ask for, as a multiple of the time that a whole run takes.
TIME_FACTOR = 1.5
#: Times are rounded up to these steps, in seconds: up to an hour, up to a day, and above.
_STEPS = ((3600, 60), (86400, 600), (math.inf, 3600))


@dataclass(frozen=True, kw_only=True, slots=True)
class Probed:
    """What a probe has shown.

    ``is_whole`` says whether the script ended by itself; else ``peak_bytes``, that of the fullest device, is a lower
    bound. ``mem_bytes`` is the memory to ask for, by so many ``runs``, and ``time_s`` the time limit. Each is None if
    it is unknown.
    """

    is_whole: bool
    peak_bytes: int | None = None
    mem_bytes: int | None = None
    runs: int = 1
    time_s: float | None = None


def probed(run: Run, progress: Progress | None, headroom_bytes: int = 0) -> Probed:
    """Return what the ended *run* of a probe shows. *progress* is the last one in its log, None if there is none."""
    ending = run.ending
    is_whole = run.is_complete
    is_cut = ending is not None and ending.kind is EndingKind.TIMED_OUT
    devices = on_devices(run)
    if not devices:
        return Probed(is_whole=is_whole)
    proved = proof_of(
        devices, ended_well=is_whole or is_cut, out_of_memory=False, is_cut=is_cut, note_kinds=run.note_kinds
    )
    if proved is None:
        return Probed(is_whole=is_whole)
    peaks = [each.peak_bytes for each in devices if each.peak_bytes is not None]
    return Probed(
        is_whole=is_whole,
        peak_bytes=max(peaks, default=None),
        mem_bytes=_mem_bytes(devices, *proved, headroom_bytes),
        time_s=_time_s(run.duration_s, progress, is_whole=is_whole),
    )


def _mem_bytes(devices: list[OnDevice], proof: Proof, size_bytes: int, headroom_bytes: int) -> int | None:
    rooms = [each.total_bytes for each in devices if each.total_bytes is not None]
    run = PastRun(proof=proof, bytes=size_bytes, kind=kind_of(devices[0]), room_bytes=min(rooms, default=None))
    found = learned([run], headroom_bytes)
    return None if found is None else found.mem_bytes


def _time_s(took_s: float | None, progress: Progress | None, *, is_whole: bool) -> float | None:
    """Return the time limit to ask for after a run of *took_s* seconds, or None if the whole time is unknown."""
    if took_s is None:
        return None
    if is_whole:
        return _rounded_up(TIME_FACTOR * took_s)
    if progress is None or progress.share < LEAST_SHARE:
        return None
    return _rounded_up(TIME_FACTOR * took_s / progress.share)


def _rounded_up(time_s: float) -> float:
    step = next(step for most, step in _STEPS if time_s <= most)
    return float(math.ceil(time_s / step) * step)


def as_time(time_s: float) -> str:
    """Return *time_s*, which is rounded to minutes, as ``--time`` takes it: ``45m``, ``1h20m``, ``26h``."""
    hours, minutes = divmod(round(time_s / 60), 60)
    return (f"{hours}h" if hours else "") + (f"{minutes}m" if minutes or not hours else "")
