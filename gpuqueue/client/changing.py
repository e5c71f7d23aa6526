"""Changes to jobs (cancel, hold, release, move, edit) and to devices (drain, resume)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING

from gpuqueue.client import validation
from gpuqueue.client.choosing import Choosing
from gpuqueue.errors import BadRequest, Refused
from gpuqueue.model.array import Indexes
from gpuqueue.model.job import Job, JobState
from gpuqueue.model.job_ref import JobName
from gpuqueue.text.sanitize import plain

if TYPE_CHECKING:
    from datetime import datetime

    from gpuqueue.client.editing import Edit
    from gpuqueue.model.dependencies import Dependency
    from gpuqueue.model.device import DeviceFilter
    from gpuqueue.model.job import Level
    from gpuqueue.model.placement import Preference
    from gpuqueue.model.retries import RetryOn
    from gpuqueue.model.warning_signal import EarlySignal
    from gpuqueue.queue.changes import Changed
    from gpuqueue.queue.lease import DeviceStatus


class Elsewhere(str, Enum):
    """State of an array index that has no job of its own and does not wait."""

    #: The member was cancelled before it started, or it has ended and the queue has deleted it.
    OVER = "over"
    #: The array never had this index.
    NO_MEMBER = "no member"
    #: The index was named within a range, and is over or not a member. A range names existing members only.
    PASSED_OVER = "passed over"

    def __str__(self) -> str:
        return self.value


#: Called with the array members that a call did not change, and their state.
Missed = Callable[[Indexes, JobState | Elsewhere], None]
#: Longest reason for a drain, in characters. The reason is shown on one line.
MAX_REASON = 200


def _already(state: JobState) -> str:
    return f"was {state} already" if state is JobState.LOST else f"has {state} already"


class Changing(Choosing):
    """Cancels, holds, releases and edits jobs; drains and resumes devices."""

    def cancel(
        self, job: int | str, *, missed: Missed | None = None, already: Callable[[], None] | None = None
    ) -> JobState:
        """End the job and return its new state: CANCELLED, or CANCELLING until its processes are gone.

        Args:
            job: A job, an array (``17``), a member (``"17_2"``) or a part of an array (``"17_5-9"``).
            missed: Called once for each state of the members that were not cancelled, with the members and the state.
            already: Called if everything named was cancelled before. This is not an error.

        Raises:
            JobNotFound: the job does not exist.
            Refused: the job has ended already, or belongs to another user.

        """
        done = self._changed("cancel", job, missed)
        name = validation.job_name(job)
        if name.part is not None and not done.moved:
            done = replace(done, state=self._state_of_ended(name), stood=True)
        if done.state.is_end and done.state is not JobState.CANCELLED:
            raise Refused(f"job {job} {_already(done.state)}: see gpuqueue show {job}")
        if already is not None and done.state is JobState.CANCELLED and (done.stood or done.moved == 0):
            already()
        return done.state

    def _state_of_ended(self, name: JobName) -> JobState:
        """Return the state of a member that has ended, or CANCELLED for a part whose members were all cancelled.

        Raises:
            Refused: *name* is a part of several members, and some of them were not cancelled.

        """
        if name.member is None:
            if self._all_cancelled(name):
                return JobState.CANCELLED
            raise Refused(f"nothing of {name} waits or runs: there is nothing to cancel, see gpuqueue show {name.id}")
        return self.get(str(name)).state

    def _all_cancelled(self, name: JobName) -> bool:
        """Return whether all members of a part were cancelled; False if the history lags too far to tell."""
        from gpuqueue.model.history_query import HistoryQuery  # noqa: PLC0415 - lazy import: most cancels need no history

        array = self._array(name.id)
        if array.spec.array is None or name.part is None:
            return False
        ends = tuple(state for state in JobState if state.is_end and state is not JobState.CANCELLED)
        otherwise = None if array.tally is None else sum(array.tally.ended.get(state, 0) for state in ends)
        if otherwise == 0:
            return True
        query = HistoryQuery(array_id=name.id, states=ends, limit=len(array.spec.array))
        found = [record.job.member for record in self.database.history(query)]
        if otherwise is not None and len(found) < otherwise:
            return False
        return not any(member is not None and member.index in name.part for member in found)

    def hold(self, job: int | str, *, missed: Missed | None = None) -> JobState:
        """Hold a waiting job, or the waiting members of an array or of a part, so that none starts.

        *missed* is the callback of :meth:`cancel`.

        Raises:
            JobNotFound: the job does not exist.
            Refused: the job does not wait, or belongs to another user.

        """
        return self._moved(job, self._changed("hold", job, missed), JobState.HELD, "hold")

    def release(
        self, job: int | str, *, missed: Missed | None = None, not_held: Callable[[], None] | None = None
    ) -> JobState:
        """Release a held job, or the held members of an array or of a part, so that they can start.

        *missed* is the callback of :meth:`cancel`. *not_held* is called if the job waits and was not held, which is
        not an error.

        Raises:
            JobNotFound: the job does not exist.
            Refused: the job is not held, or belongs to another user.

        """
        done = self._changed("release", job, missed)
        state = self._moved(job, done, JobState.QUEUED, "release")
        if done.stood and not_held is not None:
            not_held()
        return state

    def move(self, job: int | str, *, front: bool = True) -> JobState:
        """Move a waiting job before all other jobs of its user, or back to its place by arrival; return its state.

        The order among users does not change. An array moves as a whole.

        Raises:
            JobNotFound: the job does not exist.
            Refused: the job runs or has ended, or belongs to another user.
            BadRequest: the job is a member that waits with its array. Members start in the order of the array.

        """
        name = validation.one_job(job)
        called = str(name)
        state = self.queue.jobs.move(
            name.member.id if name.member else name.id, front=front, by=self._by, called=called
        )
        if state is not None:
            return state
        known = self.show(job).job
        if known.state.is_end:
            raise Refused(f"job {name} {known.state.said}: only a job that waits can be moved")
        raise BadRequest(f"{name} waits with its array, which goes in its own order: move all of {name.id}")

    def edit(  # noqa: PLR0913 - one argument for each field, as in submit
        self,
        job: int,
        *,
        mem: str | int | None = None,
        gpus: int | None = None,
        device: DeviceFilter | str | Sequence[str] | None = None,
        device_type: str | Sequence[str] | None = None,
        exclusive: bool | None = None,
        preference: Preference | str | None = None,
        time_limit: str | float | None = None,
        signal: EarlySignal | str | None = None,
        name: str | None = None,
        level: Level | None = None,
        pool: str | None = None,
        after: str | int | Dependency | Sequence[str | int | Dependency] | None = None,
        begin: str | datetime | None = None,
        retries: int | None = None,
        retry_on: str | Sequence[RetryOn] | None = None,
        at_once: int | str | None = None,
    ) -> Job:
        """Change the request of a waiting job and return the job. The job keeps its place in the queue.

        All arguments but *job* have the forms that ``submit`` takes. None leaves a field unchanged.

        Args:
            job: A job, or a whole array. After an array has started, only ``at_once`` can be changed.
            mem: See ``submit``.
            gpus: See ``submit``.
            device: See ``submit``. ``"any"`` removes named devices.
            device_type: See ``submit``. ``"none"`` removes it.
            exclusive: See ``submit``.
            preference: See ``submit``. ``"none"`` removes it.
            time_limit: See ``submit``. ``"none"`` removes it.
            signal: See ``submit``. ``"none"`` removes it.
            name: See ``submit``.
            level: See ``submit``.
            pool: See ``submit``. Empty means any pool. A job without a time limit gets the limit of its new pool.
            after: See ``submit``. ``"none"`` removes all dependencies.
            begin: See ``submit``. ``"now"`` removes it.
            retries: See ``submit``.
            retry_on: See ``submit``.
            at_once: See ``submit``. ``"none"`` removes the concurrency limit.

        Raises:
            JobNotFound: the job does not exist.
            Refused: the job runs or has ended, belongs to another user, or waits for a retry that the change removes.
            BadRequest: an argument is malformed, no change was named, or the job would depend on itself.
            Impossible: no known device could ever run the changed job. Nothing was changed.

        """
        from gpuqueue.client.editing import Edit  # noqa: PLC0415 - lazy import for startup time

        wanted = Edit(
            mem=mem,
            gpus=gpus,
            device=device,
            device_type=device_type,
            exclusive=exclusive,
            preference=preference,
            time_limit=time_limit,
            signal=signal,
            name=name,
            level=level,
            pool=pool,
            after=after,
            begin=begin,
            retries=retries,
            retry_on=retry_on,
            at_once=at_once,
        )
        return self._edited(validation.job_id(job), wanted)

    def _edited(self, job_id: int, wanted: Edit) -> Job:
        """Apply *wanted*; if the queue has deleted a dependency, apply again with its ending from the history."""
        from gpuqueue.queue.requests import only_waiting  # noqa: PLC0415 - lazy import for startup time
        from gpuqueue.queue.submit_errors import Unknown  # noqa: PLC0415 - lazy import for startup time

        if not wanted:
            raise BadRequest(f"say what to change: gpuqueue edit {job_id} --mem 8G")
        edit = partial(
            self.queue.requests.edit,
            job_id,
            wanted.change(self._uuids),
            level=wanted.level is not None,
            after=wanted.after is not None,
            begin=wanted.begin is not None,
            time=wanted.time_limit is not None,
            by=self._by,
        )
        try:
            state = edit()
        except Unknown as unknown:
            state = edit(ends=self._ends(unknown.job_ids))
        if state is None:
            raise only_waiting(job_id, self.show(job_id).job.state)
        return self.get(job_id)

    def _changed(self, act: str, job: int | str, missed: Missed | None) -> Changed:
        """Apply *act* to *job*. For a part, the result is about its members, not about the array."""
        name = validation.job_name(job)
        if name.part is None:
            done = self.queue.jobs.change(act, name.id, by=self._by)
        else:
            done = self.queue.jobs.part(name.id, act, name.part, by=self._by)
            if done is None or not done.moved:
                self._must_have(name)
            elif act == "cancel":
                done = replace(done, state=JobState.CANCELLING if done.ending else JobState.CANCELLED)
        if done is not None:
            if missed is not None and done.moved:
                self._report_missed(name, done, missed)
            return done
        from gpuqueue.queue.changes import Changed  # noqa: PLC0415 - lazy import for startup time

        return Changed(state=self.show(name.id).job.state, stood=True)

    def _report_missed(self, name: JobName, done: Changed, missed: Missed) -> None:
        """Call *missed* with the members of *name* that were not changed, grouped by state."""
        stands: dict[JobState | Elsewhere, list[int]] = {}
        for index, state in done.others.items():
            stands.setdefault(state, []).append(index)
        named = set(name.part) if name.part is not None else set()
        for index, place in self._elsewhere(name, named - set(done.others) - (done.reached or set())):
            stands.setdefault(place, []).append(index)
        for where, indexes in stands.items():
            missed(Indexes.of(indexes), where)

    def _elsewhere(self, name: JobName, unknown: Collection[int]) -> Iterator[tuple[int, Elsewhere]]:
        """Yield the indexes of *unknown* that neither wait nor are held in the array, and why."""
        array = self._array(name.id) if unknown else None
        if array is None or array.spec.array is None or name.part is None:
            return
        members, here = array.spec.array.indexes, array.tally
        singles = {each[0] for each in name.part.ranges if len(each) == 1}
        last = max(each[-1] for each in members.ranges)
        for index in sorted(unknown):
            if here is None or (index not in here.left and index not in here.held):
                if index not in singles and index <= last:
                    yield index, Elsewhere.PASSED_OVER
                else:
                    yield index, Elsewhere.OVER if index in members else Elsewhere.NO_MEMBER

    def _moved(self, job: int | str, done: Changed, wanted: JobState, verb: str) -> JobState:
        if done.moved:
            return wanted
        if done.moved == 0 or done.state is not wanted:
            name = validation.job_name(job)
            if name.part is not None and name.member is None:
                what = "is held" if verb == "release" else "waits"
                raise Refused(f"nothing of {name} {what}: there is nothing to {verb}, see gpuqueue show {name.id}")
            state = self.get(job).state if name.member else done.state
            raise Refused(f"job {job} {state.said}: there is nothing to {verb}, see gpuqueue show {job}")
        return done.state

    def drain(self, *devices: str, reason: str = "", all_here: bool = False) -> list[DeviceStatus]:
        """Drain devices and return their status. A drained device takes no new job until it is resumed.

        Running jobs continue.

        Args:
            devices: For each device an index on this host, ``HOST:INDEX``, or a UUID or a prefix of one.
            reason: Shown wherever the devices are listed. At most MAX_REASON characters.
            all_here: Drain all devices of this host, instead of named ones.

        Raises:
            BadRequest: a name matches no device or several, or the reason is too long.

        """
        from gpuqueue.queue.drains import DrainOrigin  # noqa: PLC0415 - lazy import for startup time

        why = plain(" ".join(reason.split()))
        if len(why) > MAX_REASON:
            raise BadRequest(f"a reason must have at most {MAX_REASON} characters, not {len(why)}")
        uuids = self._uuids(devices, all_here=all_here)
        by = self.account.name
        self.queue.devices.drain(uuids, origin=DrainOrigin.PERSON, why=why, by=by)
        return self._statuses(uuids)

    def resume(self, *devices: str, all_here: bool = False) -> list[DeviceStatus]:
        """Resume devices that a person drained, or that were drained after early failures; return their status.

        A device whose machine is going down stays drained until ``gpuqueue up`` resumes it.

        Raises:
            BadRequest: a name matches no device or several.

        """
        from gpuqueue.queue.drains import BY_PEOPLE  # noqa: PLC0415 - lazy import for startup time

        uuids = self._uuids(devices, all_here=all_here)
        self.queue.devices.resume(uuids, origins=BY_PEOPLE)
        return self._statuses(uuids)

    def _statuses(self, uuids: Sequence[str]) -> list[DeviceStatus]:
        by_uuid = {each.device.uuid: each for each in self.devices()}
        return [by_uuid[uuid] for uuid in uuids if uuid in by_uuid]
