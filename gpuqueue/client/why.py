"""Explains why a job waits, with data from the queue and the history."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING

from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.job import Job
from gpuqueue.model.job_spec import Priority

if TYPE_CHECKING:
    from gpuqueue.model.why_sentences import WhySentences
    from gpuqueue.queue.explanation import Explanation, Preemption, Verdict
    from gpuqueue.queue.lease import DeviceStatus


@dataclass(frozen=True, kw_only=True, slots=True)
class Usual:
    """Usual duration of a running job, from earlier runs of the same user and name.

    Only runs that lasted at least as long as the job has by now are counted. ``median_s`` and ``p90_s`` are durations
    of whole runs in seconds. ``runs`` is the number of runs counted.
    """

    median_s: float
    p90_s: float
    runs: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Why:
    """A job, and why it does not run.

    ``explanation`` is None for a job that runs or has ended. ``devices`` maps UUIDs to all announced devices.
    ``others`` maps ids to the jobs that the explanation names and the queue has. ``usual`` maps ids to the usual
    duration of those of them that have no time limit, where the history has earlier runs.
    """

    job: Job
    explanation: Explanation | None = None
    #: For a job that does not wait: whether its run is being preempted.
    preemption: Preemption | None = None
    devices: Mapping[str, DeviceStatus] = field(default_factory=dict)
    others: Mapping[int, Job] = field(default_factory=dict)
    usual: Mapping[int, Usual] = field(default_factory=dict)
    #: Number of earlier runs, for each of ``others`` that has lasted longer than all earlier runs of its name.
    outlived: Mapping[int, int] = field(default_factory=dict)
    #: Wait after which devices are reserved for a job, in seconds (None: never), and reservations per host at a time.
    reserve_after_s: float | None = None
    reservations: int = 0
    #: Age of the last heartbeat above which a worker is silent, in seconds, as in ``gpus``. None: no worker is.
    silent_after_s: float | None = None
    #: The priorities that the job may preempt, the least age of a preempted run, and the run's grace, in seconds.
    preempts: tuple[Priority, ...] = ()
    preempt_after_s: float = 0.0
    preempt_grace_s: float = 0.0
    #: Time after which half of the memory that an external process has freed still counts, in seconds.
    external_half_life_s: float | None = None
    #: The same in sentences, in an answer of the service. The command line makes them itself, in its own time zone.
    sentences: WhySentences | None = None

    def without_secrets(self) -> Why:
        """Return it as it is printed: all jobs without secrets."""
        others = {job_id: job.without_secrets() for job_id, job in self.others.items()}
        return replace(self, job=self.job.without_secrets(), others=others)

    def silent_s(self, device: str) -> float | None:
        """Return how long the worker of *device*, a UUID, has been silent, in seconds, or None if it is not."""
        status = self.devices.get(device)
        if status is None or self.silent_after_s is None or status.seen_s_ago <= self.silent_after_s:
            return None
        return status.seen_s_ago

    def together(self, devices: Iterable[Verdict]) -> list[list[Verdict]]:
        """Return *devices* in groups of one host and kind. All devices of a run are in one such group."""
        groups: dict[tuple[str, str], list[Verdict]] = {}
        for each in devices:
            status = self.devices.get(each.device)
            groups.setdefault((each.host, str(status.device.kind) if status else ""), []).append(each)
        return list(groups.values())

    def with_enough(self, devices: Iterable[Verdict]) -> list[Verdict]:
        """Return the devices that are in a group large enough for the job's number of devices."""
        return [each for group in self.together(devices) if len(group) >= self.job.spec.gpus for each in group]


def named_by(explanation: Explanation) -> set[int]:
    """Return the ids of the other jobs that *explanation* names."""
    runs = {run.job_id for device in explanation.devices for run in device.runs}
    for limit in explanation.limits:
        runs |= {*limit.runs, *filter(None, [limit.reserved_for])}
    if explanation.room is not None:
        runs |= {*explanation.room.runs, *filter(None, [explanation.room.reserved_for])}
    if explanation.start is not None:
        runs |= {*filter(None, [explanation.start.behind])}
    return runs | {device.reserved_for for device in explanation.devices if device.reserved_for is not None}


def usual_of(durations_s: Iterable[float], *, elapsed_s: float) -> Usual | None:
    """Return the usual duration among runs of *durations_s*, for a run that has lasted *elapsed_s*.

    Return None if no run lasted that long. The quantiles are nearest ranks, so each is an observed duration.
    """
    longer = sorted(each for each in durations_s if each >= elapsed_s)
    if not longer:
        return None
    return Usual(median_s=_rank(longer, 50), p90_s=_rank(longer, 90), runs=len(longer))


def _rank(ordered: Sequence[float], percent: int) -> float:
    """Return the smallest value that at least *percent* of all values do not exceed."""
    return ordered[max(1, -(-len(ordered) * percent // 100)) - 1]
