"""Changes of mind: about jobs, and about devices."""

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
    from gpuqueue.model.device import DeviceWish
    from gpuqueue.model.job import Level
    from gpuqueue.model.placement import Preference
    from gpuqueue.model.retries import RetryOn
    from gpuqueue.model.warning_signal import EarlySignal
    from gpuqueue.queue.changes import Changed
    from gpuqueue.queue.lease import DeviceStatus


class Elsewhere(str, Enum):
    """Where an index of an array stands that is no job of its own, and does not wait."""

    #: Its member was cancelled before it began, or has ended and is forgotten.
    OVER = "over"
    #: The array never had it.
    NO_MEMBER = "no member"
    #: It is over, or lies between the members, and was named within a range: that means those that there are.
    PASSED_OVER = "passed over"

    def __str__(self) -> str:
        return self.value


#: Called with members of an array, and where they stand that nothing was done to.
Missed = Callable[[Indexes, JobState | Elsewhere], None]
#: Longest reason for a drain, in characters: it is shown in one line.
MAX_REASON = 200


def _already(state: JobState) -> str:
    return f"was {state} already" if state is JobState.LOST else f"has {state} already"


class Changing(Choosing):
    """Cancels, holds, releases and edits jobs; drains and resumes devices."""

    def cancel(
        self, job: int | str, *, missed: Missed | None = None, already: Callable[[], None] | None = None
    ) -> JobState:
        """End the job and return its state after: CANCELLED at once, or CANCELLING until its processes are gone.

        Of an array (``17``) all of it, of a member (``"17_2"``) or a part (``"17_5-9"``) that. *missed* is called with
        the members that this does not concern, each time with those that stand at the same, and with where that is.
        *already* is called where all of it was cancelled before: there is nothing to do, and nothing wrong.

        Raises:
            JobNotFound: nobody knows it.
            Refused: it has ended already, or is somebody else's.

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
        """Return how a member ended, or that all of several were cancelled; else what several have come to is no state.

        Raises:
            Refused: there are several.

        """
        if name.member is None:
            if self._all_cancelled(name):
                return JobState.CANCELLED
            raise Refused(f"nothing of {name} waits or runs: there is nothing to cancel, see gpuqueue show {name.id}")
        return self.get(str(name)).state

    def _all_cancelled(self, name: JobName) -> bool:
        """Return whether all that there were of a part were cancelled; not where the history is too far behind."""
        from gpuqueue.model.history_query import HistoryQuery  # noqa: PLC0415 - as in book: most cancels ask nothing

        array = self._array(name.id)
        if array.spec.array is None or name.part is None:
            return False
        ends = tuple(state for state in JobState if state.is_end and state is not JobState.CANCELLED)
        otherwise = None if array.tally is None else sum(array.tally.ended.get(state, 0) for state in ends)
        if otherwise == 0:
            return True
        query = HistoryQuery(array_id=name.id, states=ends, limit=len(array.spec.array))
        found = [record.job.member for record in self.book.history(query)]
        if otherwise is not None and len(found) < otherwise:
            return False
        return not any(member is not None and member.index in name.part for member in found)

    def hold(self, job: int | str, *, missed: Missed | None = None) -> JobState:
        """Keep a waiting job, or what waits of an array or a part of it, from being started. *missed*: as for cancel.

        Raises:
            JobNotFound: nobody knows it.
            Refused: it does not wait (any more), or is somebody else's.

        """
        return self._moved(job, self._changed("hold", job, missed), JobState.HELD, "hold")

    def release(
        self, job: int | str, *, missed: Missed | None = None, not_held: Callable[[], None] | None = None
    ) -> JobState:
        """Let a held job, or what is held of an array or a part of it, be started again. *missed*: as for cancel.

        *not_held* is called where it waits and was not held: there is nothing to do, and nothing wrong.

        Raises:
            JobNotFound: nobody knows it.
            Refused: it is not held, or is somebody else's.

        """
        done = self._changed("release", job, missed)
        state = self._moved(job, done, JobState.QUEUED, "release")
        if done.stood and not_held is not None:
            not_held()
        return state

    def move(self, job: int | str, *, front: bool = True) -> JobState:
        """Put a job that waits before all others of its own user, or back to its place by arrival; return its state.

        Other users go before it or after it as they did. Of an array all of it is moved.

        Raises:
            JobNotFound: nobody knows it.
            Refused: it runs or has ended, or is somebody else's.
            BadRequest: it is a part of an array that waits: that goes in its own order.

        """
        name = validation.one_job(job)
        called = str(name)
        state = self.queue.move(name.member.id if name.member else name.id, front=front, by=self._by, called=called)
        if state is not None:
            return state
        known = self.show(job).job
        if known.state.is_end:
            raise Refused(f"job {name} {known.state.said}: only a job that waits can be moved")
        raise BadRequest(f"{name} waits with its array, which goes in its own order: move all of {name.id}")

    def edit(  # noqa: PLR0913 - each is one thing that a person may change, as for submit
        self,
        job: int,
        *,
        mem: str | int | None = None,
        gpus: int | None = None,
        device: DeviceWish | str | Sequence[str] | None = None,
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
        """Change what is asked for a job that waits, and return it. It keeps its place.

        Args:
            job: A job, or all of an array. Of an array that has begun only ``at_once`` can be changed.
            mem: As for ``submit``, as all the others. What is not named, or None, stays as it is.
            gpus: See ``submit``.
            device: ``"any"`` takes back a named one.
            device_type: ``"none"`` takes it back.
            exclusive: See ``submit``.
            preference: ``"none"`` takes it back.
            time_limit: ``"none"`` takes it back.
            signal: ``"none"`` takes it back.
            name: See ``submit``.
            level: See ``submit``.
            pool: See ``submit``; empty for any. What comes to another pool and has no time limit gets that pool's.
            after: ``"none"`` takes them back.
            begin: ``"now"`` takes it back.
            retries: See ``submit``.
            retry_on: See ``submit``.
            at_once: ``"none"`` for all that fit.

        Raises:
            JobNotFound: nobody knows it.
            Refused: it runs or has ended, is somebody else's, or waits for a retry that it would not have any more.
            BadRequest: something is malformed, nothing is to be changed, or it would wait for itself.
            Impossible: no known device could ever run it so; nothing was changed.

        """
        from gpuqueue.client.editing import Edit  # noqa: PLC0415 - imports are what users wait for

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
        """Do what is *wanted*; once more where the queue has forgotten a job that it is to come after."""
        from gpuqueue.queue.requests import only_waiting  # noqa: PLC0415 - as in queue
        from gpuqueue.queue.submit_errors import Unknown  # noqa: PLC0415 - as in queue

        if not wanted:
            raise BadRequest(f"say what to change: gpuqueue edit {job_id} --mem 8G")
        edit = partial(
            self.queue.edit,
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
        """Change the mind about *job*; of a part, say where its members stand, not where the array does."""
        name = validation.job_name(job)
        if name.part is None:
            done = self.queue.change(act, name.id, by=self._by)
        else:
            done = self.queue.part(name.id, act, name.part, by=self._by)
            if done is None or not done.moved:
                self._must_have(name)
            elif act == "cancel":
                done = replace(done, state=JobState.CANCELLING if done.ending else JobState.CANCELLED)
        if done is not None:
            if missed is not None and done.moved:
                self._tell_missed(name, done, missed)
            return done
        from gpuqueue.queue.changes import Changed  # noqa: PLC0415 - as in queue

        return Changed(state=self.show(name.id).job.state, stood=True)

    def _tell_missed(self, name: JobName, done: Changed, missed: Missed) -> None:
        """Tell where the members of *name* stand that were not reached."""
        stands: dict[JobState | Elsewhere, list[int]] = {}
        for index, state in done.others.items():
            stands.setdefault(state, []).append(index)
        named = set(name.part) if name.part is not None else set()
        for index, place in self._elsewhere(name, named - set(done.others) - (done.reached or set())):
            stands.setdefault(place, []).append(index)
        for where, indexes in stands.items():
            missed(Indexes.of(indexes), where)

    def _elsewhere(self, name: JobName, unknown: Collection[int]) -> Iterator[tuple[int, Elsewhere]]:
        """Yield where those of a part stand that are no jobs of their own; not what stood there before."""
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
        """Let devices take no new job until somebody resumes them; what runs there goes on. Return them as they are.

        Args:
            devices: Each an index on this host, ``HOST:INDEX``, or a UUID or its start.
            reason: Shown to everybody who looks at the devices, at most MAX_REASON characters.
            all_here: All devices of this host, in place of names.

        Raises:
            BadRequest: a name means no device or several, or the reason is too long.

        """
        from gpuqueue.queue.drains import DrainOrigin  # noqa: PLC0415 - as in queue

        why = plain(" ".join(reason.split()))
        if len(why) > MAX_REASON:
            raise BadRequest(f"a reason must have at most {MAX_REASON} characters, not {len(why)}")
        uuids = self._uuids(devices, all_here=all_here)
        by = self.account.name
        self.queue.drain(uuids, origin=DrainOrigin.PERSON, why=why, by=by)
        return self._statuses(uuids)

    def resume(self, *devices: str, all_here: bool = False) -> list[DeviceStatus]:
        """Take back what people said against devices, and what quick deaths did. Return them as they are then.

        A device of a machine that is going down stays drained for that: ``gpuqueue up`` resumes it.

        Raises:
            BadRequest: a name means no device or several.

        """
        from gpuqueue.queue.drains import BY_PEOPLE  # noqa: PLC0415 - as in queue

        uuids = self._uuids(devices, all_here=all_here)
        self.queue.resume(uuids, origins=BY_PEOPLE)
        return self._statuses(uuids)

    def _statuses(self, uuids: Sequence[str]) -> list[DeviceStatus]:
        by_uuid = {each.device.uuid: each for each in self.devices()}
        return [by_uuid[uuid] for uuid in uuids if uuid in by_uuid]
