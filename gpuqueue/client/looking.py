"""Reads the state of jobs and devices, and why a job waits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from gpuqueue.client import validation
from gpuqueue.client.connection import Connection
from gpuqueue.clock import from_epoch_ms
from gpuqueue.errors import BadRequest, HistoryUnreachable, JobNotFound, Unreachable, Unreadable
from gpuqueue.lazy.imports import later
from gpuqueue.model.array import Member
from gpuqueue.model.job import Job, JobState, WaitReason
from gpuqueue.model.job_ref import JobName

if TYPE_CHECKING:
    from gpuqueue.client import array_state
    from gpuqueue.client import why as whys
    from gpuqueue.client.why import Usual, Why
    from gpuqueue.model import limits as limiting
    from gpuqueue.model import preemption
    from gpuqueue.model import run as runs
    from gpuqueue.model.event import Event
    from gpuqueue.model.job_page import Listing
    from gpuqueue.model.limits import LimitsInUse
    from gpuqueue.model.run import Record
    from gpuqueue.queue import lease
    from gpuqueue.queue.explanation import Explanation
    from gpuqueue.queue.lease import DeviceStatus
else:
    limiting = later("gpuqueue.model.limits")
    preemption = later("gpuqueue.model.preemption")
    runs = later("gpuqueue.model.run")
    array_state = later("gpuqueue.client.array_state")
    lease = later("gpuqueue.queue.lease")
    whys = later("gpuqueue.client.why")

#: Largest number of jobs in one request. The store serves other clients too, and one request blocks it.
PAGE = 2000


class Looking(Connection):
    """Reads jobs and devices. Changes nothing."""

    def get(self, job: int | str) -> Job:
        """Return the current state of a job, named by its id or by a member's name such as ``"17_2"``.

        Raises:
            JobNotFound: the job does not exist.

        """
        name = validation.one_job(job)
        member = name.member
        found = self.queue.jobs.get(name.id if member is None else member.id)
        if found is not None and (member is None or found.member == member):
            return found
        return self.show(job).job

    def show(self, job: int | str, *, away: Callable[[Unreachable], None] | None = None) -> Record:
        """Return the job with all its runs: the current state from the queue, the runs from the history.

        The queue is read first. It deletes a job only after the history has it, so the job is found in one of them.
        If the queue is unreachable, *away* is given and the history has the job, *away* is called with the error, and
        the history's record is returned.

        Raises:
            JobNotFound: the job does not exist.

        """
        name = validation.one_job(job)
        try:
            return self._show(name)
        except HistoryUnreachable:
            raise
        except Unreachable as error:
            record = None if away is None else self._in_the_history(name)
            if away is None or record is None:
                raise
            away(error)
            return record

    def _in_the_history(self, name: JobName) -> Record | None:
        """Return a job's record from the history alone, or None if the job is missing or the history unreachable."""
        try:
            if name.member is None:
                return self._written(name.id)
            found = self._written(name.member.id)
            if found is not None and found.job.member == name.member:
                return found
            array = self._written(name.member.array_id)
            return None if array is None else self._untaken(name.member, array.job)
        except HistoryUnreachable:
            return None

    def _show(self, name: JobName) -> Record:
        if name.member is not None:
            return self._member(name.member)
        record = self._known(name.id)
        if record is None:
            raise JobNotFound(f"there is no job {name}: see gpuqueue queue and gpuqueue history")
        return record

    def _known(self, job_id: int) -> Record | None:
        job = self.queue.jobs.get(job_id)
        if job is not None:
            job = self._by_its_members(job)
        record = self._written(job_id)
        if job is not None:
            return self._with_current_run(replace(record or runs.Record(job=job), job=job))
        return record

    def _by_its_members(self, job: Job) -> Job:
        """Return a running array with the state that follows from its members, and any other job unchanged."""
        if job.tally is None or job.state is not JobState.RUNNING:
            return job
        return array_state.standing(job, self.queue.jobs.members(job.id))

    def _member(self, member: Member) -> Record:
        """Return a member of an array. Before a worker claims it, only the array's job has its state.

        The array is read first. A member that no longer waits in the array is in the queue or the history, unless it
        was cancelled before it was claimed.
        """
        array = self._array(member.array_id)
        if array.spec.array is None or member.index not in array.spec.array.indexes:
            raise JobNotFound(f"there is no job {member}: see gpuqueue show {member.array_id}")
        here = array.tally
        waits = here is not None and (member.index in here.left or member.index in here.held)
        return (None if waits else self._known(member.id)) or self._untaken(member, array)

    @staticmethod
    def _untaken(member: Member, array: Job) -> Record:
        """Return the record of an unclaimed member, derived from its array."""
        if array.spec.array is None or member.index not in array.spec.array.indexes:
            raise JobNotFound(f"there is no job {member}: see gpuqueue show {member.array_id}")
        here = array.tally
        waits = here is not None and member.index in here.left
        is_held = here is not None and member.index in here.held
        state = JobState.QUEUED if waits else JobState.HELD if is_held else JobState.CANCELLED
        reason = array.reason if waits else WaitReason.HELD if is_held else None
        spec = array.spec.of_member(member)
        job = Job(
            id=member.id,
            spec=spec,
            state=state,
            submitted_at=array.submitted_at,
            reason=reason,
            member=member,
            awaits=() if state.is_end else array.awaits,
            begins_at=None if state.is_end else array.begins_at,
            tags=spec.tags,
        )
        return runs.Record(job=job)

    def _array(self, array_id: int) -> Job:
        job = self.queue.jobs.get(array_id)
        return job if job is not None else self.show(array_id).job

    def _must_have(self, name: JobName) -> None:
        """Check that *name* is an array with at least one of the named members.

        Raises:
            JobNotFound: the array does not exist, or has none of these members.
            BadRequest: the job is not an array.

        """
        array = self._array(name.id).spec.array
        if array is None:
            raise BadRequest(f"job {name.id} is no array: there is no part {name}")
        if name.part is not None and not any(index in array.indexes for index in name.part):
            raise JobNotFound(f"there is no job {name}: the members of {name.id} are {array.indexes}")

    def newest(self, job: int | str) -> Record:
        """Return the job with its newest run. Reads the queue alone if the queue knows where that run's log is.

        Raises:
            JobNotFound: the job does not exist.

        """
        name = validation.one_job(job)
        record = self.queue.jobs.record(name.member.id if name.member is not None else name.id)
        if record is None or record.job.state.is_end:
            return self.show(job)
        run = record.last_run
        is_known = not record.job.attempt if run is None else run.log_path is not None
        return record if is_known else self.show(job)

    def _with_current_run(self, record: Record) -> Record:
        """Return *record* with the current run from the queue, if the history lacks that run or its log path."""
        last, attempt = record.last_run, record.job.attempt
        if not attempt or (last is not None and last.attempt == attempt and last.log_path is not None):
            return record
        reported = self.queue.jobs.record(record.job.id)
        run = reported.last_run if reported is not None else None
        if run is None or run.attempt != attempt:
            return record
        return replace(record, runs=(*(each for each in record.runs if each.attempt != attempt), run))

    def jobs(self, *, user: str | None = None, limit: int | None = None) -> list[Job]:
        """Return at most *limit* jobs that have not ended, in the order of their ids; with *user*, only that user's."""
        return list(self.listing(user=user, limit=limit).jobs)

    def listing(self, *, user: str | None = None, limit: int | None = None) -> Listing:
        """Return the jobs of :meth:`jobs`, with what the queue knows about the running ones."""
        most = None if limit is None else validation.count("limit", limit)
        whose = validation.text_or_none("user", user)
        size = PAGE if most is None or whose is not None else min(max(1, most), PAGE)
        pages = [self.queue.jobs.page(limit=size)]
        found = self._wanted(pages[0], whose)
        while pages[-1].after is not None and (most is None or len(found) < most):
            pages.append(self.queue.jobs.page(limit=size, after=pages[-1].after))
            found += self._wanted(pages[-1], whose)
        first, *others = pages
        for each in others:
            first = replace(
                first,
                held_bytes={**first.held_bytes, **each.held_bytes},
                logs={**first.logs, **each.logs},
                devices={**first.devices, **each.devices},
            )
        return replace(first, jobs=tuple(_standing(found[:most])), after=None)

    @staticmethod
    def _wanted(page: Listing, user: str | None) -> list[Job]:
        return [job for job in page.jobs if not job.state.is_end and user in {None, job.spec.account.name}]

    def story(self, job: int | str) -> tuple[Event, ...]:
        """Return all events of the job that the history has, in order."""
        name = validation.one_job(job)
        return self.database.events(name.member.id if name.member else name.id)

    def why(self, job: int | str) -> Why:
        """Return why a job waits: what blocks it on each device, its place in the order, when it may start.

        Raises:
            JobNotFound: the job does not exist.

        """
        asked = self._by_its_members(self.get(job))
        explanation = self.queue.jobs.why(asked.id)
        if explanation is None and asked.member is not None and not asked.state.is_end:
            explanation = self._why_with_its_array(asked.member)
        if explanation is None or explanation.state not in {JobState.QUEUED, JobState.HELD}:
            making_place = explanation.making_place if explanation is not None else None
            return whys.Why(job=asked, making_place=making_place)
        named = whys.named_by(explanation) | {each.job_id for each in asked.awaits}
        devices = {status.device.uuid: status for status in self.devices()}
        named |= {status.kept.job_id for status in devices.values() if status.kept is not None}
        others = {each: other for each in named if (other := self._seen(each)) is not None}
        ends = explanation.runs_in_the_way
        unlimited = [others[each] for each in ends if each in others and others[each].spec.time_limit_s is None]
        usual, outlived = self._usual(unlimited)
        return whys.Why(
            job=asked,
            explanation=explanation,
            devices=devices,
            others=others,
            usual=usual,
            outlived=outlived,
            reserve_after_s=self.settings.reserve_after_s,
            reservations=self.settings.reservations,
            silent_after_s=lease.SILENT_HEARTBEATS * self.settings.beat_s,
            preempts=preemption.parse_preempt(self.settings.preempt).get(asked.spec.level, ()),
            preempt_after_s=self.settings.preempt_after_s,
            preempt_grace_s=self.settings.preempt_grace_s,
        )

    def _why_with_its_array(self, member: Member) -> Explanation | None:
        """Return why an unclaimed member waits: the explanation of its array, behind the members before it."""
        explanation, array = self.queue.jobs.why(member.array_id), self.queue.jobs.get(member.array_id)
        if explanation is None or array is None or array.tally is None:
            return explanation
        return explanation.behind(array.tally.left.before(member.index))

    def _ends(self, job_ids: Sequence[int]) -> dict[int, bool]:
        """Return for each of these jobs, which the queue has deleted, whether it succeeded.

        Raises:
            Unknown: the history has no end of some of the jobs.
            BadRequest: one of them is a member of an array.

        """
        from gpuqueue.queue.submit_errors import Unknown, only_all_of_it  # noqa: PLC0415 - lazy import for startup time

        for member in self.database.members_among(job_ids):
            raise only_all_of_it(member)
        states = self.database.states(job_ids)
        missing = tuple(each for each in job_ids if each not in states or not states[each].is_end)
        if missing:
            raise Unknown(missing)
        return {each: state is JobState.SUCCEEDED for each, state in states.items()}

    def _seen(self, job_id: int) -> Job | None:
        try:
            return self.queue.jobs.get(job_id)
        except Unreadable:
            return None

    def _usual(self, jobs: Sequence[Job]) -> tuple[dict[int, Usual], dict[int, int]]:
        """Return the usual durations of *jobs*, and the jobs that have outlasted all their earlier runs.

        The first mapping is from a job's id to its usual duration. The second is from the id of a job that has lasted
        longer than all earlier runs of its name to the number of those runs. If the history is unreachable, jobs are
        missing from both.
        """
        found: dict[int, Usual] = {}
        outlived: dict[int, int] = {}
        now = from_epoch_ms(self.queue.now_ms())
        for job in jobs:
            try:
                before = self.database.durations_s(user=job.spec.account.name, name=job.spec.name)
            except HistoryUnreachable:
                break
            elapsed_s = (now - job.started_at).total_seconds() if job.started_at else 0.0
            usual = whys.usual_of(before, elapsed_s=elapsed_s)
            if usual is not None:
                found[job.id] = usual
            elif before:
                outlived[job.id] = len(before)
        return found, outlived

    def limits(self) -> LimitsInUse:
        """Return the limits of users, groups and pools, and the current use by users and groups."""
        limits = self.queue.rules.limits()
        return limiting.LimitsInUse(bounds=tuple(limits.bounds(self.queue.rules.uses())), pools=limits.pools)

    def devices(self) -> list[DeviceStatus]:
        """Return all devices that workers have announced."""
        return self.queue.devices.all()

    def _uuids(self, names: Sequence[str], *, all_here: bool = False) -> list[str]:
        """Return the UUIDs of the devices that *names* match.

        Raises:
            BadRequest: a name matches no device or several.

        """
        from gpuqueue.client.device_lookup import named  # noqa: PLC0415 - lazy import for startup time

        meant = named(self.devices(), names, host=self.settings.host, all_here=all_here)
        return [each.device.uuid for each in meant]


def _standing(jobs: Sequence[Job]) -> Iterator[Job]:
    """Yield *jobs*, with each array's state derived from its members if all claimed members are in *jobs*."""
    members: dict[int, list[JobState]] = {}
    for job in jobs:
        if job.member is not None:
            members.setdefault(job.member.array_id, []).append(job.state)
    for job in jobs:
        array, here = job.spec.array, job.tally
        if job.state is not JobState.RUNNING or array is None or here is None:
            yield job
            continue
        taken = len(array) - len(here.left) - len(here.held) - sum(here.ended.values())
        found = members.get(job.id, [])
        yield array_state.standing(job, found) if len(found) == taken else job
