"""Why a job waits, with all that a person needs to understand it: put together from the queue and the book."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING

from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.job import Job, Level

if TYPE_CHECKING:
    from gpuqueue.queue.explanation import Explanation, MakingPlace, Verdict
    from gpuqueue.queue.lease import DeviceStatus


@dataclass(frozen=True, kw_only=True, slots=True)
class Usual:
    """How long runs of a job's name by its user took, of those that lasted at least as long as it has by now.

    ``median_s`` and ``p90_s`` are durations of whole runs; ``runs`` is how many there were to go by.
    """

    median_s: float
    p90_s: float
    runs: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Why:
    """A job and why it does not run; ``explanation`` is None for one that has ended or runs.

    ``devices`` are those that workers announced, by UUID; ``others`` the jobs that the explanation names, as far as the
    queue knows them; ``usual`` how long those of them without a time limit may take, as far as the book knows.
    """

    job: Job
    explanation: Explanation | None = None
    #: Of one that does not wait: whether its run makes place for another.
    making_place: MakingPlace | None = None
    devices: Mapping[str, DeviceStatus] = field(default_factory=dict)
    others: Mapping[int, Job] = field(default_factory=dict)
    usual: Mapping[int, Usual] = field(default_factory=dict)
    #: Those of them that have lasted longer than every earlier run of their name, and how many of these there were.
    outlived: Mapping[int, int] = field(default_factory=dict)
    #: After which wait devices are kept for a job (None: never), and for how many on each host at a time.
    reserve_after_s: float | None = None
    reservations: int = 0
    #: A worker that was not heard for longer, in seconds, is called silent, as in ``gpus``; None: none is.
    silent_after_s: float | None = None
    #: The levels whose place the job's level may take, from which age of a run on, and how long that has to go.
    preempts: tuple[Level, ...] = ()
    preempt_after_s: float = 0.0
    preempt_grace_s: float = 0.0

    def silent_s(self, device: str) -> float | None:
        """Return for how long the worker of *device*, a UUID, has been silent; None where it is not."""
        status = self.devices.get(device)
        if status is None or self.silent_after_s is None or status.seen_s_ago <= self.silent_after_s:
            return None
        return status.seen_s_ago

    def together(self, devices: Iterable[Verdict]) -> list[list[Verdict]]:
        """Return the *devices* by host and kind: all that a job has are of one."""
        groups: dict[tuple[str, str], list[Verdict]] = {}
        for each in devices:
            status = self.devices.get(each.device)
            groups.setdefault((each.host, str(status.device.kind) if status else ""), []).append(each)
        return list(groups.values())

    def with_enough(self, devices: Iterable[Verdict]) -> list[Verdict]:
        """Return those of the *devices* that the job could have: with as many others of them as it asks for."""
        return [each for group in self.together(devices) if len(group) >= self.job.spec.gpus for each in group]


def named_by(explanation: Explanation) -> set[int]:
    """Return the ids of the other jobs that *explanation* names."""
    runs = {run.job_id for device in explanation.devices for run in device.runs}
    for limit in explanation.limits:
        runs |= {*limit.runs, *filter(None, [limit.kept_for])}
    if explanation.room is not None:
        runs |= {*explanation.room.runs, *filter(None, [explanation.room.kept_for])}
    if explanation.start is not None:
        runs |= {*filter(None, [explanation.start.behind])}
    return runs | {device.kept_for for device in explanation.devices if device.kept_for is not None}


def usual_of(durations_s: Iterable[float], *, elapsed_s: float) -> Usual | None:
    """Return what is usual among runs that took *durations_s*, given that this one has lasted *elapsed_s*.

    None if no run lasted that long. The quantiles are the nearest ranks, so each is a duration that did occur.
    """
    longer = sorted(each for each in durations_s if each >= elapsed_s)
    if not longer:
        return None
    return Usual(median_s=_rank(longer, 50), p90_s=_rank(longer, 90), runs=len(longer))


def _rank(ordered: Sequence[float], percent: int) -> float:
    """Return the smallest value that at least *percent* of all do not exceed."""
    return ordered[max(1, -(-len(ordered) * percent // 100)) - 1]
