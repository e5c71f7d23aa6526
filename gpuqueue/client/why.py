"""Explains why a job waits, with data from the queue and the history."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING

from gpuqueue.client import reads
from gpuqueue.client.connection import Connection
from gpuqueue.client.progress import Usual, job_progress, readings, runs_before
from gpuqueue.clock import SystemClock
from gpuqueue.errors import HistoryUnreachable, Unreadable
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.lazy.imports import later
from gpuqueue.model.array import Member
from gpuqueue.model.job import Job, JobState
from gpuqueue.model.job_spec import Priority
from gpuqueue.model.preemption import parse_preempt
from gpuqueue.model.progress import Progress
from gpuqueue.queue.explanation import Explanation
from gpuqueue.queue.lease import SILENT_HEARTBEATS

if TYPE_CHECKING:
    from gpuqueue.model import lending
    from gpuqueue.model.lending import Lender
    from gpuqueue.model.why_sentences import WhySentences
    from gpuqueue.queue.explanation import Preemption, Verdict
    from gpuqueue.queue.lease import DeviceStatus
else:  # few sites borrow
    lending = later("gpuqueue.model.lending")


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
    #: The progress of the runs that must end first, by the id of the job, where their output shows it.
    progress: Mapping[int, Progress] = field(default_factory=dict)
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
    #: The engines that could lend a device to the job.
    lenders: tuple[Lender, ...] = ()
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
        return [each for group in self.together(devices) if len(group) >= self.job.spec.device_count for each in group]


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


def why(connection: Connection, job: int | str) -> Why:
    """Return why a job waits: what blocks it on each device, its place in the order, when it may start.

    Raises:
        JobNotFound: the job does not exist.

    """
    asked = reads.by_its_members(connection, reads.get(connection, job))
    explanation = connection.queue.jobs.why(asked.id)
    if explanation is None and asked.member is not None and not asked.state.is_end:
        explanation = _with_its_array(connection, asked.member)
    if explanation is None or explanation.state not in {JobState.QUEUED, JobState.HELD}:
        place = explanation.preemption if explanation is not None else None
        by = None if place is None or place.by is None else _seen(connection, place.by)
        return Why(job=asked, preemption=place, others={} if by is None else {by.id: by})
    devices = {status.device.uuid: status for status in connection.queue.devices.all()}
    named = named_by(explanation) | {each.job_id for each in asked.awaits}
    named |= {status.reservation.job_id for status in devices.values() if status.reservation is not None}
    others = {each: other for each in named if (other := _seen(connection, each)) is not None}
    in_the_way = [others[each] for each in explanation.runs_in_the_way if each in others]
    usual, outlived = _usual(connection, [each for each in in_the_way if each.spec.time_limit_s is None])
    settings = connection.settings
    return Why(
        job=asked,
        explanation=explanation,
        devices=devices,
        others=others,
        usual=usual,
        outlived=outlived,
        progress=job_progress(connection, in_the_way, readings(connection, in_the_way)),
        reserve_after_s=settings.reserve_after_s,
        reservations=settings.reservations,
        silent_after_s=SILENT_HEARTBEATS * settings.heartbeat_s,
        preempts=parse_preempt(settings.preempt).get(asked.spec.priority, ()),
        preempt_after_s=settings.preempt_after_s,
        preempt_grace_s=settings.preempt_grace_s,
        external_half_life_s=settings.external_half_life_s,
        lenders=_lenders(connection, asked) if settings.burst else (),
    )


def _lenders(connection: Connection, job: Job) -> tuple[Lender, ...]:
    """Return the engines that could lend a device to *job*."""
    try:
        tokens = connection.database.tokens()
    except HistoryUnreachable:  # then the rule cannot ask either
        tokens = []
    return tuple(lending.lenders_of(connection.settings.burst, job, SystemClock().now(), tokens))


def _with_its_array(connection: Connection, member: Member) -> Explanation | None:
    """Return why an unclaimed member waits: the explanation of its array, behind the members before it."""
    queue = connection.queue
    explanation, array = queue.jobs.why(member.array_id), queue.jobs.get(member.array_id)
    if explanation is None or array is None or array.tally is None:
        return explanation
    return explanation.behind(array.tally.left.before(member.index))


def _seen(connection: Connection, job_id: int) -> Job | None:
    try:
        return connection.queue.jobs.get(job_id)
    except Unreadable:
        return None


def _usual(connection: Connection, jobs: Sequence[Job]) -> tuple[dict[int, Usual], dict[int, int]]:
    """Return the usual durations of *jobs*, and the jobs that have outlasted all their earlier runs.

    The first mapping is from a job's id to its usual duration. The second is from the id of a job that has lasted
    longer than all earlier runs of its name to the number of those runs. If the history is unreachable, jobs are
    missing from both.
    """
    found: dict[int, Usual] = {}
    outlived: dict[int, int] = {}
    for before in runs_before(connection, jobs):
        usual = before.usual
        if usual is not None:
            found[before.job.id] = usual
        elif before.durations_s:
            outlived[before.job.id] = len(before.durations_s)
    return found, outlived
