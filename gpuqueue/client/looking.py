"""How things stand: jobs, devices, and why a job waits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from gpuqueue.client import validation
from gpuqueue.client.connection import Connection
from gpuqueue.clock import from_epoch_ms
from gpuqueue.errors import BadRequest, BookUnreachable, JobNotFound, Unreachable, Unreadable
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

#: Most jobs that are asked for at once: one that serves others must not stop for a whole queue.
PAGE = 2000


class Looking(Connection):
    """Looks at jobs and devices, and changes nothing."""

    def get(self, job: int | str) -> Job:
        """Return the job as it stands: by its id, or a member of an array by its name, such as ``"17_2"``.

        Raises:
            JobNotFound: nobody knows it.

        """
        name = validation.one_job(job)
        member = name.member
        found = self.queue.get(name.id if member is None else member.id)
        if found is not None and (member is None or found.member == member):
            return found
        return self.show(job).job

    def show(self, job: int | str, *, away: Callable[[Unreachable], None] | None = None) -> Record:
        """Return the job with all its runs: the newest state from the queue, the runs from the book.

        The queue is asked first: it forgets a job only when the book has it, so that none is missed between. Where it
        cannot be asked, and the book has the job, *away* is called with why, and the job is what the book says.

        Raises:
            JobNotFound: nobody knows it.

        """
        name = validation.one_job(job)
        try:
            return self._show(name)
        except BookUnreachable:
            raise
        except Unreachable as error:
            record = None if away is None else self._in_the_book(name)
            if away is None or record is None:
                raise
            away(error)
            return record

    def _in_the_book(self, name: JobName) -> Record | None:
        """Return what the book alone says of a job; None where it does not have it, or cannot be asked either."""
        try:
            if name.member is None:
                return self._written(name.id)
            found = self._written(name.member.id)
            if found is not None and found.job.member == name.member:
                return found
            array = self._written(name.member.array_id)
            return None if array is None else self._untaken(name.member, array.job)
        except BookUnreachable:
            return None

    def _show(self, name: JobName) -> Record:
        if name.member is not None:
            return self._member(name.member)
        record = self._known(name.id)
        if record is None:
            raise JobNotFound(f"there is no job {name}: see gpuqueue queue and gpuqueue history")
        return record

    def _known(self, job_id: int) -> Record | None:
        job = self.queue.get(job_id)
        if job is not None:
            job = self._by_its_members(job)
        record = self._written(job_id)
        if job is not None:
            return self._with_current_run(replace(record or runs.Record(job=job), job=job))
        return record

    def _by_its_members(self, job: Job) -> Job:
        """Return an array that has begun as its members stand; any other job as it is."""
        if job.tally is None or job.state is not JobState.RUNNING:
            return job
        return array_state.standing(job, self.queue.members(job.id))

    def _member(self, member: Member) -> Record:
        """Return a member of an array. Until a device takes it, nothing but its array tells of it.

        The array is asked first: what it has left no more, the queue or the book has, unless it was cancelled.
        """
        array = self._array(member.array_id)
        if array.spec.array is None or member.index not in array.spec.array.indexes:
            raise JobNotFound(f"there is no job {member}: see gpuqueue show {member.array_id}")
        here = array.tally
        waits = here is not None and (member.index in here.left or member.index in here.held)
        return (None if waits else self._known(member.id)) or self._untaken(member, array)

    @staticmethod
    def _untaken(member: Member, array: Job) -> Record:
        """Return a member that no device has taken, as its array tells of it."""
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
        job = self.queue.get(array_id)
        return job if job is not None else self.show(array_id).job

    def _must_have(self, name: JobName) -> None:
        """Refuse a part of what is no array, or of none that is known, and one that has no member.

        Raises:
            JobNotFound: nobody knows the array, or it has no such member.
            BadRequest: it has no members.

        """
        array = self._array(name.id).spec.array
        if array is None:
            raise BadRequest(f"job {name.id} is no array: there is no part {name}")
        if name.part is not None and not any(index in array.indexes for index in name.part):
            raise JobNotFound(f"there is no job {name}: the members of {name.id} are {array.indexes}")

    def newest(self, job: int | str) -> Record:
        """Return the job with its newest run, from the queue alone wherever that knows it: an open log is read so.

        Raises:
            JobNotFound: nobody knows it.

        """
        name = validation.one_job(job)
        record = self.queue.record(name.member.id if name.member is not None else name.id)
        if record is None or record.job.state.is_end:
            return self.show(job)
        run = record.last_run
        is_known = not record.job.attempt if run is None else run.log_path is not None
        return record if is_known else self.show(job)

    def _with_current_run(self, record: Record) -> Record:
        """Return *record* with what the queue knows of a run that the book does not know, or not where its log is."""
        last, attempt = record.last_run, record.job.attempt
        if not attempt or (last is not None and last.attempt == attempt and last.log_path is not None):
            return record
        told = self.queue.record(record.job.id)
        run = told.last_run if told is not None else None
        if run is None or run.attempt != attempt:
            return record
        return replace(record, runs=(*(each for each in record.runs if each.attempt != attempt), run))

    def jobs(self, *, user: str | None = None, limit: int | None = None) -> list[Job]:
        """Return the jobs that have not ended (of *user*), in the order of their ids, at most *limit* of them."""
        return list(self.listing(user=user, limit=limit).jobs)

    def listing(self, *, user: str | None = None, limit: int | None = None) -> Listing:
        """Return what :meth:`jobs` returns, and with it what the queue knows of the running ones."""
        most = None if limit is None else validation.count("limit", limit)
        whose = validation.text_or_none("user", user)
        size = PAGE if most is None or whose is not None else min(max(1, most), PAGE)
        pages = [self.queue.page(limit=size)]
        found = self._wanted(pages[0], whose)
        while pages[-1].after is not None and (most is None or len(found) < most):
            pages.append(self.queue.page(limit=size, after=pages[-1].after))
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
        """Return every step of the job that the book has, in order."""
        name = validation.one_job(job)
        return self.book.events(name.member.id if name.member else name.id)

    def why(self, job: int | str) -> Why:
        """Return why a job waits: what is in its way on each device, its place in the order, when it may start.

        Raises:
            JobNotFound: nobody knows it.

        """
        asked = self._by_its_members(self.get(job))
        explanation = self.queue.why(asked.id)
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
            silent_after_s=lease.SILENT_BEATS * self.settings.beat_s,
            preempts=preemption.parse_preempt(self.settings.preempt).get(asked.spec.level, ()),
            preempt_after_s=self.settings.preempt_after_s,
            preempt_grace_s=self.settings.preempt_grace_s,
        )

    def _why_with_its_array(self, member: Member) -> Explanation | None:
        """Return why a member waits that no device has taken: as its array, behind the members that come before it."""
        explanation, array = self.queue.why(member.array_id), self.queue.get(member.array_id)
        if explanation is None or array is None or array.tally is None:
            return explanation
        return explanation.behind(array.tally.left.before(member.index))

    def _ends(self, job_ids: Sequence[int]) -> dict[int, bool]:
        """Return whether each of these jobs, which the queue has forgotten, succeeded.

        Raises:
            Unknown: some never were.
            BadRequest: one is a member of an array.

        """
        from gpuqueue.queue.submit_errors import Unknown, only_all_of_it  # noqa: PLC0415 - as in queue

        for member in self.book.members_among(job_ids):
            raise only_all_of_it(member)
        states = self.book.states(job_ids)
        missing = tuple(each for each in job_ids if each not in states or not states[each].is_end)
        if missing:
            raise Unknown(missing)
        return {each: state is JobState.SUCCEEDED for each, state in states.items()}

    def _seen(self, job_id: int) -> Job | None:
        try:
            return self.queue.get(job_id)
        except Unreadable:
            return None

    def _usual(self, jobs: Sequence[Job]) -> tuple[dict[int, Usual], dict[int, int]]:
        """Return how long each of *jobs* is likely to take, and which have outlived all before them, and how many.

        Nothing where the book cannot be asked.
        """
        found: dict[int, Usual] = {}
        outlived: dict[int, int] = {}
        now = from_epoch_ms(self.queue.now_ms())
        for job in jobs:
            try:
                before = self.book.durations_s(user=job.spec.account.name, name=job.spec.name)
            except BookUnreachable:
                break
            elapsed_s = (now - job.started_at).total_seconds() if job.started_at else 0.0
            usual = whys.usual_of(before, elapsed_s=elapsed_s)
            if usual is not None:
                found[job.id] = usual
            elif before:
                outlived[job.id] = len(before)
        return found, outlived

    def limits(self) -> LimitsInUse:
        """Return what users and groups may have at a time, what they have of it now, and what the pools allow."""
        limits = self.queue.limits()
        return limiting.LimitsInUse(bounds=tuple(limits.bounds(self.queue.uses())), pools=limits.pools)

    def devices(self) -> list[DeviceStatus]:
        """Return every device that workers announced."""
        return self.queue.devices()

    def _uuids(self, names: Sequence[str], *, all_here: bool = False) -> list[str]:
        """Return the UUIDs of the devices that people call so.

        Raises:
            BadRequest: a name means no device or several.

        """
        from gpuqueue.client.device_lookup import named  # noqa: PLC0415 - as in queue

        meant = named(self.devices(), names, host=self.settings.host, all_here=all_here)
        return [each.device.uuid for each in meant]


def _standing(jobs: Sequence[Job]) -> Iterator[Job]:
    """Yield *jobs*, arrays as their members stand; one of which not every member is there stays as it is."""
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
