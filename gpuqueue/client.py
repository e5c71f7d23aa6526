"""The front door: what people and programs do with the queue and its history.

    >>> from gpuqueue import Client
    >>> client = Client()
    >>> job = client.submit("train.py", ["--epochs", "5"], mem="6G")
    >>> record = client.wait(job.id)
    >>> record.job.state, record.last_run.peak_bytes

The command line is a thin layer over this class; both speak in the same frozen values. Connections are made
when they are first needed: a submit never touches SQL.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from gpuqueue import checks
from gpuqueue.clock import from_epoch_ms
from gpuqueue.device import DeviceWish
from gpuqueue.errors import (
    BadRequest,
    BookUnreachable,
    JobNotFound,
    Refused,
    StoreUnreachable,
    Unreadable,
    WaitTimeout,
)
from gpuqueue.job import Job, JobSpec, JobState, Level
from gpuqueue.logs import LogTail
from gpuqueue.run import EndingKind, Record
from gpuqueue.settings import Settings
from gpuqueue.submission import command_of, current_account, current_umask, name_of, travelling, working_directory
from gpuqueue.units import format_duration, parse_bytes
from gpuqueue.why import Usual, Why, named_by, usual_of
from gpuqueue.words import plain

if TYPE_CHECKING:
    from gpuqueue.book.book import Book
    from gpuqueue.event import Event
    from gpuqueue.figures import By, Course, Statistics
    from gpuqueue.history import Sort
    from gpuqueue.queue.jobqueue import JobQueue
    from gpuqueue.queue.lease import DeviceStatus

#: Longest time between two looks while waiting for an end, in seconds. The doorbell usually rings before.
LOOK_S = 1.0
#: How long an ended job may take to reach the book before we answer without it, in seconds.
RECORD_S = 5.0
#: Time between two looks at a log that is followed, in seconds.
FOLLOW_S = 0.1
#: What statistics are of if nobody says since when.
STATS_PERIOD = timedelta(days=30)
#: Longest reason for a drain, in characters: it is shown in one line.
MAX_REASON = 200


class Client:
    """One user's view of one queue. Every method may raise StoreUnreachable or BookUnreachable."""

    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = settings or Settings.load()
        self._queue: JobQueue | None = None
        self._book: Book | None = None

    @property
    def queue(self) -> JobQueue:
        """Return the store's side, connected when first used."""
        if self._queue is None:
            from gpuqueue.queue.jobqueue import JobQueue  # noqa: PLC0415 - importing redis is a latency that users feel

            self._queue = JobQueue(self.settings.redis_url)
        return self._queue

    @property
    def book(self) -> Book:
        """Return the history's side, connected when first used."""
        if self._book is None:
            from gpuqueue.book.book import Book  # noqa: PLC0415 - as above: sqlalchemy

            self._book = Book(self.settings.database_url)
        return self._book

    def close(self) -> None:
        """Close the connections."""
        if self._queue is not None:
            self._queue.close()
        if self._book is not None:
            self._book.close()

    def __enter__(self) -> Client:  # noqa: PYI034 - typing.Self is of 3.11
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ---- submit --------------------------------------------------------------------------------------------------

    def submit(  # noqa: PLR0913 - each is one thing that a person may say about a job
        self,
        command: str | Sequence[str],
        args: Sequence[str] = (),
        *,
        mem: str | int | None = None,
        gpus: int = 1,
        device: DeviceWish | str | None = None,
        time_limit: str | float | None = None,
        name: str | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        level: Level = Level.NORMAL,
        pool: str = "",
        requeue: bool = True,
        cap: bool = True,
        python: str | None = None,
    ) -> Job:
        """Put a job into the queue and return it.

        Args:
            command: A script's path (``"train.py"``), or a whole command line as a list.
            args: The script's arguments.
            mem: Memory that must be free on each device: bytes, or a size such as ``"6G"`` (binary).
            gpus: Number of devices, all on one host and of one kind.
            device: ``"gpu"``, ``"cpu"`` or ``"any"``; if nothing is said, a GPU wherever the queue knows of one.
            time_limit: Seconds, or a duration such as ``"2h"``; the job is ended when it is over.
            name: What to call it; the script's name by default.
            env: Variables on top of this process's environment, which travels with the job.
            cwd: Where it runs; the current directory by default.
            level: Priority band.
            pool: Only devices of this pool.
            requeue: Whether it may run again after its worker and its processes vanished.
            cap: Whether its frameworks are told to stay within ``mem``, where the worker's site does that.
            python: The interpreter of a ``.py`` script; that of the active environment by default.

        Raises:
            BadRequest: something is malformed, or there is no such script.
            Impossible: no known device could ever run it.

        """
        directory = working_directory(checks.path_or_none("cwd", cwd))
        command_line, script, chosen = command_of(
            command if isinstance(command, str) else checks.words("command", command),
            checks.words("args", args),
            cwd=directory,
            python=checks.path_or_none("python", python),
        )
        spec = JobSpec(
            argv=command_line,
            cwd=str(directory),
            env={**travelling(os.environ), **checks.environment(env)},
            account=current_account(self.settings.host),
            mem_bytes=self._mem_bytes(mem),
            gpus=gpus,
            device=self.settings.default_device if device is None else DeviceWish.parse(device),
            time_limit_s=checks.time_limit(time_limit),
            name=name_of(command_line, script) if name is None or name == "" else name,
            level=level,
            pool=pool,
            requeue=requeue,
            cap=cap,
            umask=current_umask(),
            script=script,
            interpreter=chosen,
        )
        return self._queued(spec)

    def _queued(self, spec: JobSpec) -> Job:
        """Submit *spec*; once more where the reply got lost: the same nonce makes the same job."""
        from gpuqueue.queue.jobqueue import new_nonce  # noqa: PLC0415 - as in queue

        nonce = new_nonce()
        try:
            return self.queue.submit(spec, nonce=nonce)
        except StoreUnreachable:
            return self.queue.submit(spec, nonce=nonce)

    def _mem_bytes(self, mem: str | int | None) -> int:
        if mem is None:
            if self.settings.default_mem_bytes is None:
                raise BadRequest("say how much device memory the job needs: --mem 6G")
            return self.settings.default_mem_bytes
        return parse_bytes(mem) if isinstance(mem, str) else mem

    # ---- look ----------------------------------------------------------------------------------------------------

    def get(self, job_id: int) -> Job:
        """Return the job as it stands.

        Raises:
            JobNotFound: nobody knows it.

        """
        job = self.queue.get(checks.job_id(job_id))
        return job if job is not None else self.show(job_id).job

    def show(self, job_id: int) -> Record:
        """Return the job with all its runs: the newest state from the queue, the runs from the book.

        The queue is asked first: it forgets a job only when the book has it, so that none is missed between.

        Raises:
            JobNotFound: nobody knows it.

        """
        job = self.queue.get(checks.job_id(job_id))
        record = self.book.get(job_id)
        if job is not None:
            return Record(job=job) if record is None else replace(record, job=job)
        if record is None:
            raise JobNotFound(f"there is no job {job_id}: see gpuqueue queue and gpuqueue history")
        return record

    def jobs(self, *, user: str | None = None, limit: int | None = None) -> list[Job]:
        """Return the jobs that have not ended (of *user*), in the order of their ids, at most *limit* of them."""
        most = None if limit is None else checks.count("limit", limit)
        return list(islice(self._live(checks.text_or_none("user", user)), most))

    def _live(self, user: str | None) -> Iterator[Job]:
        after: int | None = 0
        while after is not None:
            page, after = self.queue.page(after=after)
            for job in page:
                if not job.state.is_end and user in {None, job.spec.account.name}:
                    yield job

    def story(self, job_id: int) -> tuple[Event, ...]:
        """Return every step of the job that the book has, in order."""
        return self.book.events(checks.job_id(job_id))

    def why(self, job_id: int) -> Why:
        """Return why a job waits: what is in its way on each device, its place in the order, when it may start.

        Raises:
            JobNotFound: nobody knows it.

        """
        job = self.get(job_id)
        explanation = self.queue.why(job_id)
        if explanation is None or explanation.state not in {JobState.QUEUED, JobState.HELD}:
            return Why(job=job)
        others = {each: other for each in named_by(explanation) if (other := self._seen(each)) is not None}
        blockers = explanation.start.blockers if explanation.start is not None else ()
        unlimited = [others[each] for each in blockers if each in others and others[each].spec.time_limit_s is None]
        return Why(
            job=job,
            explanation=explanation,
            devices={status.device.uuid: status for status in self.devices()},
            others=others,
            usual=self._usual(unlimited),
        )

    def _seen(self, job_id: int) -> Job | None:
        try:
            return self.queue.get(job_id)
        except Unreadable:
            return None

    def _usual(self, jobs: Sequence[Job]) -> dict[int, Usual]:
        """Return how long each of *jobs* is likely to take; nothing where the book cannot be asked."""
        found = {}
        now = from_epoch_ms(self.queue.now_ms())
        for job in jobs:
            try:
                before = self.book.durations_s(user=job.spec.account.name, name=job.spec.name)
            except BookUnreachable:
                break
            elapsed_s = (now - job.started_at).total_seconds() if job.started_at else 0.0
            usual = usual_of(before, elapsed_s=elapsed_s)
            if usual is not None:
                found[job.id] = usual
        return found

    def devices(self) -> list[DeviceStatus]:
        """Return every device that workers announced."""
        return self.queue.devices()

    def history(  # noqa: PLR0913 - each is one thing that a person may ask for
        self,
        *,
        user: str | None = None,
        name: str | None = None,
        states: Sequence[JobState] = (),
        endings: Sequence[EndingKind] = (),
        exit_code: int | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        device: str | None = None,
        model: str | None = None,
        host: str | None = None,
        min_peak: str | int | None = None,
        min_duration: str | float | None = None,
        max_duration: str | float | None = None,
        text: str | None = None,
        sort: Sort | str = "id",
        reverse: bool = False,
        limit: int = 50,
        before_id: int | None = None,
        after_id: int | None = None,
    ) -> list[Record]:
        """Return the first *limit* jobs that match all that is given, with their runs, in the order of *sort*.

        Args:
            user: The submitting account.
            name: The whole name.
            states: One of these.
            endings: How the current or last run ended: one of these.
            exit_code: That of the current or last run.
            since: Submitted then or later.
            until: Submitted before.
            device: A UUID or its start; a job matches if any of its runs was there.
            model: A part of a device's name, such as ``"A100"``; as with *device*.
            host: Where the current or last run is or was.
            min_peak: Peak memory of the current or last run, over all its devices, in bytes or such as ``"20G"``.
            min_duration: How long it took, in seconds or such as ``"2h"``.
            max_duration: As *min_duration*.
            text: A part of the command; the case of ASCII letters does not count.
            sort: ``"id"`` (newest first), ``"ended"``, ``"duration"``, ``"peak"`` or ``"user"``.
            reverse: The other way round. What is not known stands last in either.
            limit: How many at most.
            before_id: Only jobs older than this one.
            after_id: Go on after this job in the order asked for: the next page, where it was the last seen.

        Raises:
            BadRequest: something makes no sense.
            JobNotFound: the book does not have the job *after_id*, and the order needs it.

        """
        from gpuqueue.history import MAX_TEXT, HistoryQuery, Sort  # noqa: PLC0415 - as in book: a submit asks nothing

        query = HistoryQuery(
            user=checks.text_or_none("user", user),
            name=checks.text_or_none("name", name),
            states=checks.words_of("states", states, JobState),
            endings=checks.words_of("endings", endings, EndingKind),
            exit_code=None if exit_code is None else checks.count("exit_code", exit_code),
            since=checks.moment_or_none("since", since),
            until=checks.moment_or_none("until", until),
            device=checks.text_or_none("device", device),
            model=checks.text_or_none("model", model),
            host=checks.text_or_none("host", host),
            min_peak_bytes=checks.size_or_none("min_peak", min_peak),
            min_duration_s=checks.duration_or_none("min_duration", min_duration),
            max_duration_s=checks.duration_or_none("max_duration", max_duration),
            text=checks.text_or_none("text", text, most=MAX_TEXT),
            sort=checks.word("sort", sort, Sort),
            reverse=bool(reverse),
            limit=checks.count("limit", limit),
            before_id=None if before_id is None else checks.job_id(before_id),
            after_id=None if after_id is None else checks.job_id(after_id),
        )
        return self.book.history(query)

    def stats(
        self,
        by: By | str = "user",
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        user: str | None = None,
    ) -> Statistics:
        """Return what the runs of a period come to, by ``"user"``, ``"device"``, ``"host"`` or local ``"day"``.

        Args:
            by: What makes a group.
            since: The last thirty days if nothing is said.
            until: Now if nothing is said; what lies in the future is left out.
            user: Only this user's jobs.

        Raises:
            BadRequest: something makes no sense, or the period has more than MAX_STEPS days to tell apart.

        """
        from gpuqueue.figures import MAX_STEPS, By  # noqa: PLC0415 - as in history

        start, end = self._period(since, until)
        if checks.word("by", by, By) is By.DAY and (end - start).days >= MAX_STEPS:
            raise BadRequest(f"a table by day takes at most {MAX_STEPS} days: ask for a part of them")
        name = checks.text_or_none("user", user)
        return self.book.statistics(by=checks.word("by", by, By), since=start, until=end, user=name)

    def course(
        self,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        steps: int = 30,
        user: str | None = None,
    ) -> Course:
        """Return how a period went, in so many equal *steps*; its ends and *user* as in :meth:`stats`.

        Raises:
            BadRequest: something makes no sense.

        """
        from gpuqueue.figures import MAX_STEPS  # noqa: PLC0415 - as in history

        start, end = self._period(since, until)
        if not 1 <= checks.count("steps", steps) <= MAX_STEPS:
            raise BadRequest(f"steps must be from 1 to {MAX_STEPS}, not {steps}")
        return self.book.course(since=start, until=end, count=steps, user=checks.text_or_none("user", user))

    def _period(self, since: datetime | None, until: datetime | None) -> tuple[datetime, datetime]:
        now = datetime.now(timezone.utc)
        given = checks.moment_or_none("until", until)
        end = now if given is None else min(given, now)
        start = checks.moment_or_none("since", since) or end - STATS_PERIOD
        if end <= start:
            raise BadRequest("nothing lies between since and until, or it is all in the future")
        return start, end

    # ---- wait ----------------------------------------------------------------------------------------------------

    def wait(self, job_id: int, *, timeout_s: float | None = None, held: Callable[[Job], None] | None = None) -> Record:
        """Wait until the job has ended and return it with its runs.

        A held job waits for a person, perhaps for the one who waits here: *held* is called with the job each time it
        becomes held.

        Raises:
            JobNotFound: nobody knows it.
            WaitTimeout: it has not ended after *timeout_s*; it goes on.

        """
        checks.seconds_or_none("timeout_s", timeout_s)
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        notice = _HeldNotice(held)
        for job in self.watch(job_id):
            if job.state.is_end:
                return self._recorded(job)
            notice.look(job)
            if deadline is not None and time.monotonic() >= deadline:
                raise WaitTimeout(f"job {job_id} is still {job.state} after {timeout_s:g} s: it goes on")
        raise AssertionError("watch ends only with an ended job")  # pragma: no cover

    def watch(self, job_id: int) -> Iterator[Job]:
        """Yield the job as it stands, again and again (at least once a second), up to its end.

        Raises:
            JobNotFound: nobody knows it.

        """
        from gpuqueue.queue import keys  # noqa: PLC0415 - as in queue
        from gpuqueue.queue.doorbell import Doorbell  # noqa: PLC0415 - as in queue

        with Doorbell(self.settings.redis_url, keys.END) as bell:
            while True:
                job = self.get(job_id)
                yield job
                if job.state.is_end:
                    return
                until = time.monotonic() + LOOK_S
                while (left_s := until - time.monotonic()) > 0:
                    ring = bell.wait(left_s)
                    if ring is not None and ring.job_id == job_id:
                        break

    def _recorded(self, job: Job) -> Record:
        """Return the ended *job* from the book, or without its runs if the book does not get it in time."""
        deadline = time.monotonic() + RECORD_S
        while time.monotonic() < deadline:
            try:
                record = self.book.get(job.id)
            except BookUnreachable:
                break
            if record is not None and record.job.state.is_end:
                return record
            time.sleep(0.01)
        return Record(job=job)

    # ---- change of mind ------------------------------------------------------------------------------------------

    def cancel(self, job_id: int) -> JobState:
        """End the job and return its state after: CANCELLED at once, or CANCELLING until its processes are gone.

        Raises:
            JobNotFound: nobody knows it.
            Refused: it has ended already.

        """
        state = self.queue.cancel(checks.job_id(job_id)) or self.show(job_id).job.state
        if state.is_end and state is not JobState.CANCELLED:
            raise Refused(f"job {job_id} has {state} already")
        return state

    def hold(self, job_id: int) -> JobState:
        """Keep a waiting job from being started.

        Raises:
            JobNotFound: nobody knows it.
            Refused: it does not wait (any more).

        """
        return self._moved(job_id, self.queue.hold(checks.job_id(job_id)), JobState.HELD, "hold")

    def release(self, job_id: int) -> JobState:
        """Let a held job be started again.

        Raises:
            JobNotFound: nobody knows it.
            Refused: it is not held.

        """
        return self._moved(job_id, self.queue.release(checks.job_id(job_id)), JobState.QUEUED, "release")

    def _moved(self, job_id: int, state: JobState | None, wanted: JobState, verb: str) -> JobState:
        state = state or self.show(job_id).job.state
        if state is not wanted:
            raise Refused(f"job {job_id} is {state}: there is nothing to {verb}")
        return state

    # ---- devices -------------------------------------------------------------------------------------------------

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

    def _uuids(self, names: Sequence[str], *, all_here: bool) -> list[str]:
        from gpuqueue.naming import named  # noqa: PLC0415 - as in queue

        meant = named(self.devices(), names, host=self.settings.host, all_here=all_here)
        return [each.device.uuid for each in meant]

    def _statuses(self, uuids: Sequence[str]) -> list[DeviceStatus]:
        by_uuid = {each.device.uuid: each for each in self.devices()}
        return [by_uuid[uuid] for uuid in uuids if uuid in by_uuid]

    # ---- logs ----------------------------------------------------------------------------------------------------

    def log_path(self, job_id: int) -> Path:
        """Return where the newest run's log lies, if that is on this machine.

        Raises:
            JobNotFound: nobody knows the job.
            Refused: it has not run yet, or its log lies on another host or is gone.

        """
        record = self.show(job_id)
        path = self._log_path_of(record)
        if path is None:
            raise Refused(f"job {job_id} ({record.job.state}) has no log yet: it has not run")
        if record.job.state.is_end and _is_gone(path):
            keep_s = self.settings.keep_logs_s
            kept = f"; logs are kept for {format_duration(keep_s)} (GPUQUEUE_KEEP_LOGS)" if keep_s is not None else ""
            raise Refused(f"the log of job {job_id} is not there any more: {path}{kept}")
        return path

    def _log_path_of(self, record: Record) -> Path | None:
        run = next((run for run in reversed(record.runs) if run.log_path), None)
        if run is None or run.log_path is None:
            return None
        if run.host != self.settings.host:
            raise Refused(f"the log of job {record.job.id} lies on host {run.host}: {run.log_path}")
        return Path(run.log_path)

    def follow(
        self, job_id: int, tail: LogTail | None = None, *, held: Callable[[Job], None] | None = None
    ) -> Iterator[bytes]:
        """Yield the job's output as it is written, from its beginning, over all its runs, up to its end.

        With the *tail* of an earlier call it goes on where that one was left. *held* is called with the job each time
        it becomes held.

        Raises:
            JobNotFound: nobody knows it.
            Refused: its log lies on another host, or it ended without ever running.

        """
        from gpuqueue.queue import keys  # noqa: PLC0415 - as in queue
        from gpuqueue.queue.doorbell import Doorbell  # noqa: PLC0415 - as in queue

        tail = tail or LogTail()
        notice = _HeldNotice(held)
        with Doorbell(self.settings.redis_url, keys.END) as bell:
            while True:
                job = self.get(job_id)
                ended = job.state.is_end  # asked before reading: what was written by then is read
                if ended:
                    self._recorded(job)  # where the log is stands in the book; wait for that a little
                notice.look(job)
                tail.turn_to(self._log_path_of(self.show(job_id)))
                yield from tail.rest()
                if ended:
                    self.log_path(job_id)  # says why there is none
                    return
                until = time.monotonic() + (FOLLOW_S if tail.path is None else LOOK_S)
                while time.monotonic() < until:
                    ring = bell.wait(FOLLOW_S)
                    yield from tail.rest()
                    if ring is not None and ring.job_id == job_id:
                        break


def _is_gone(path: Path) -> bool:
    try:
        path.stat()
    except FileNotFoundError:
        return True
    except OSError:  # it may not be looked at: whoever opens it says so
        return False
    return False


class _HeldNotice:
    """Calls *tell* once each time that a job becomes held."""

    def __init__(self, tell: Callable[[Job], None] | None) -> None:
        self._tell = tell
        self._was_held = False

    def look(self, job: Job) -> None:
        """Take note of where the job stands."""
        is_held = job.state is JobState.HELD
        if is_held and not self._was_held and self._tell is not None:
            self._tell(job)
        self._was_held = is_held
