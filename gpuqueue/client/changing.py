"""Changes of mind: about jobs, and about devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from gpuqueue import checks, wishes
from gpuqueue.client.looking import Looking
from gpuqueue.device import DeviceWish
from gpuqueue.errors import (
    BadRequest,
    Refused,
)
from gpuqueue.job import Job, JobSpec, JobState, Level
from gpuqueue.retries import RetryOn
from gpuqueue.submission import current_account
from gpuqueue.units import parse_bytes
from gpuqueue.waits import Dependency
from gpuqueue.words import plain

if TYPE_CHECKING:
    from gpuqueue.queue.changes import Changed
    from gpuqueue.queue.lease import DeviceStatus

#: Longest reason for a drain, in characters: it is shown in one line.
MAX_REASON = 200


class Changing(Looking):
    """Cancels, holds, releases and edits jobs; drains and resumes devices."""

    def cancel(self, job: int | str) -> JobState:
        """End the job and return its state after: CANCELLED at once, or CANCELLING until its processes are gone.

        Of an array (``17``) all of it, of a member (``"17_2"``) or a part (``"17_5-9"``) that.

        Raises:
            JobNotFound: nobody knows it.
            Refused: it has ended already.

        """
        done = self._changed("cancel", job)
        if done.state.is_end and done.state is not JobState.CANCELLED:
            raise Refused(f"job {job} has {done.state} already")
        if done.moved == 0 and not done.state.is_end and done.state is not JobState.CANCELLING:
            raise Refused(f"nothing of {job} waits or runs: there is nothing to cancel")
        return done.state

    def hold(self, job: int | str) -> JobState:
        """Keep a waiting job, or what waits of an array or a part of it, from being started.

        Raises:
            JobNotFound: nobody knows it.
            Refused: it does not wait (any more).

        """
        return self._moved(job, self._changed("hold", job), JobState.HELD, "hold")

    def release(self, job: int | str) -> JobState:
        """Let a held job, or what is held of an array or a part of it, be started again.

        Raises:
            JobNotFound: nobody knows it.
            Refused: it is not held.

        """
        return self._moved(job, self._changed("release", job), JobState.QUEUED, "release")

    def edit(  # noqa: PLR0913 - each is one thing that a person may change
        self,
        job_id: int,
        *,
        mem: str | int | None = None,
        gpus: int | None = None,
        device: DeviceWish | str | None = None,
        time_limit: str | float | None = None,
        name: str | None = None,
        level: Level | None = None,
        pool: str | None = None,
        after: str | int | Dependency | Sequence[str | int | Dependency] | None = None,
        begin: str | datetime | None = None,
        retries: int | None = None,
        retry_on: str | Sequence[RetryOn] | None = None,
    ) -> Job:
        """Change what is asked for a job that waits, and return it. It keeps its place; None leaves a thing as it is.

        ``"none"`` takes back a time limit, or the jobs to come after; ``"now"`` the time to begin.

        Raises:
            JobNotFound: nobody knows it.
            Refused: it runs or has ended.
            BadRequest: something is malformed, nothing is to be changed, or it would wait for itself.
            Impossible: no known device could ever run it so; nothing was changed.

        """
        from gpuqueue.queue.unqueued import Unknown  # noqa: PLC0415 - as in queue

        wanted: dict[str, Any] = {
            "mem_bytes": parse_bytes(mem) if isinstance(mem, str) else mem,
            "gpus": gpus,
            "device": None if device is None else DeviceWish.parse(device),
            "name": name,
            "level": level,
            "pool": pool,
        }
        wanted = {field: value for field, value in wanted.items() if value is not None}
        if time_limit is not None:
            wanted["time_limit_s"] = None if time_limit == wishes.NONE else checks.time_limit(time_limit)
        waits: dict[str, Any] = {}
        if after is not None:
            waits["after"] = () if after in (wishes.NONE, (wishes.NONE,)) else wishes.dependencies(after)
        if begin is not None:
            waits["begin_at"] = wishes.begin(begin)
        if not wanted and not waits and retries is None and retry_on is None:
            raise BadRequest(f"say what to change: gpuqueue edit {job_id} --mem 8G")

        def change(spec: JobSpec) -> JobSpec:
            again = wishes.other_retries(spec.retries, retries, retry_on)
            return replace(spec, **wanted, waits=replace(spec.waits, **waits), retries=again)

        edit = partial(
            self.queue.edit,
            checks.job_id(job_id),
            change,
            level=level is not None,
            after=after is not None,
            begin=begin is not None,
        )
        try:
            state = edit()
        except Unknown as unknown:
            state = edit(ends=self._ends(unknown.job_ids))
        if state is None:
            raise Refused(f"job {job_id} is {self.show(job_id).job.state}: only a job that waits can be edited")
        return self.get(job_id)

    def _changed(self, act: str, job: int | str) -> Changed:
        """Change the mind about *job*; of a part, say where its members stand, not where the array does."""
        name = checks.job_name(job)
        if name.part is None:
            done = self.queue.change(act, name.id)
        else:
            done = self.queue.part(name.id, act, name.part)
            if done is None or done.moved == 0:
                self._must_have(name)
            elif act == "cancel":
                done = replace(done, state=JobState.CANCELLING if done.ending else JobState.CANCELLED)
        if done is not None:
            return done
        from gpuqueue.queue.changes import Changed  # noqa: PLC0415 - as in queue

        return Changed(state=self.show(name.id).job.state)

    def _moved(self, job: int | str, done: Changed, wanted: JobState, verb: str) -> JobState:
        if done.moved:
            return wanted
        if done.moved == 0 or done.state is not wanted:
            raise Refused(f"job {job} is {done.state}: there is nothing to {verb}")
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
        by = current_account(self.settings.host).name
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
