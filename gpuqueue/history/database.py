"""The package's interface: one object with all operations on the history database."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

import sqlalchemy as sa

from gpuqueue.errors import HistoryUnreachable
from gpuqueue.history import (
    access_tokens,
    audit,
    environments,
    filters,
    members,
    notifications,
    queries,
    refill,
    repeating,
    writer,
)
from gpuqueue.history import statistics as figures
from gpuqueue.history.connect import check_revision, open_engine, reading, writing
from gpuqueue.history.past_runs import ARRAYS, QUERY, TELLING, arrays_of, past_runs
from gpuqueue.history.tables import jobs, runs
from gpuqueue.model.run import EndingKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from datetime import datetime

    from gpuqueue.learning.past_run import PastRun
    from gpuqueue.model.event import Cursor, Event
    from gpuqueue.model.learning_report import LearningReport
    from gpuqueue.model.run import Survivor

Arguments = ParamSpec("Arguments")
T = TypeVar("T")

_QUERY, _ARRAYS = sa.text(QUERY), sa.text(ARRAYS)
#: Most runs whose durations are read, the newest first: the durations of old runs may no longer apply.
_MOST_DURATIONS = 100


def runs_of(connection: sa.Connection, user: str, program: str) -> tuple[PastRun, ...]:
    """Return the runs of *program* by *user* that show a need, newest first."""
    rows = connection.execute(_QUERY, {"user": user, "program": program}).all()
    arrays = [connection.execute(_ARRAYS, {"id": each}).one_or_none() for each in arrays_of(rows)]
    return past_runs(rows, {row.id: row.spec for row in arrays if row is not None})


def durations_s(connection: sa.Connection, *, user: str, name: str) -> list[float]:
    """Return the durations in seconds of *user*'s newest runs of jobs called *name* that succeeded."""
    return _durations_s(connection, jobs.c.user_name == user, jobs.c.name == name)


def durations_alike_s(
    connection: sa.Connection, *, user: str, program: str, command: str, array_id: int | None
) -> list[float]:
    """Return the durations in seconds of the newest runs like a job of *user* that succeeded.

    These are those of the other members of its array, else those with the same *command*, which runs *program*.
    """
    if array_id is not None:
        return _durations_s(connection, jobs.c.array_id == array_id)
    same = (jobs.c.user_name == user, jobs.c.program == program, sa.text(f"({TELLING})"), jobs.c.command == command)
    newest = sa.select(jobs.c.id).where(*same).order_by(jobs.c.program.desc(), jobs.c.id.desc()).limit(_MOST_DURATIONS)
    return _durations_s(connection, jobs.c.id.in_(newest))


def _durations_s(connection: sa.Connection, *conditions: sa.ColumnElement[bool]) -> list[float]:
    found = (
        sa.select(runs.c.duration_s)
        .join(jobs, jobs.c.id == runs.c.job_id)
        .where(*conditions)
        .where(runs.c.ending == EndingKind.EXITED.value, runs.c.exit_code == 0, runs.c.duration_s.is_not(None))
        .order_by(runs.c.job_id.desc())
        .limit(_MOST_DURATIONS)
    )
    return list(connection.scalars(found))


def _with_connection(
    function: Callable[Concatenate[sa.Connection, Arguments], T], *, writes: bool = False
) -> Callable[Concatenate[HistoryDatabase, Arguments], T]:
    """Return *function* as a method that gives it a connection."""

    @wraps(function)
    def method(self: HistoryDatabase, /, *args: Arguments.args, **named: Arguments.kwargs) -> T:
        with self._writing() if writes else self._reading() as connection:
            return function(connection, *args, **named)

    return method


class HistoryDatabase:
    """The history of jobs and runs, in a SQL database. Threads may share an instance.

    Every method raises ``HistoryUnreachable`` when the database does not answer or does not have the tables of this
    version. A method that writes has changed nothing then.
    """

    cursor = _with_connection(queries.cursor)
    history = _with_connection(queries.history)
    folded = _with_connection(queries.folded)
    get = _with_connection(queries.get)
    events = _with_connection(queries.events)
    states = _with_connection(queries.states)
    summaries = _with_connection(queries.summaries)
    max_job_id = _with_connection(queries.max_job_id)
    gpu_hosts = _with_connection(filters.gpu_hosts)
    recorded_position = _with_connection(queries.position)
    recorded_events = _with_connection(queries.recorded_events)
    statistics = _with_connection(figures.statistics)
    course = _with_connection(figures.course)
    members_among = _with_connection(members.among)
    member_ends = _with_connection(members.ends)
    never_began = _with_connection(members.never_began)
    recorded_members = _with_connection(members.recorded)
    member_metrics = _with_connection(members.metrics)
    retries_of = _with_connection(queries.retries_of)
    retried = _with_connection(queries.retried)
    durations_s = _with_connection(durations_s)
    durations_alike_s = _with_connection(durations_alike_s)
    runs_of_program = _with_connection(runs_of)
    kept_environment = _with_connection(environments.kept)
    forget_environments = _with_connection(environments.forget, writes=True)
    due_notifications = _with_connection(notifications.due)
    take_notification = _with_connection(notifications.take, writes=True)
    settle_notification = _with_connection(notifications.settle, writes=True)
    put_off_notification = _with_connection(notifications.put_off, writes=True)

    add_token = _with_connection(access_tokens.add, writes=True)
    find_token = _with_connection(access_tokens.find)
    valid_tokens = _with_connection(access_tokens.valid)
    tokens = _with_connection(access_tokens.listed)
    revoke_token = _with_connection(access_tokens.revoke, writes=True)
    note_token_uses = _with_connection(access_tokens.note_uses, writes=True)
    add_repeating = _with_connection(repeating.add, writes=True)
    repeating_jobs = _with_connection(repeating.listed)
    due_repeating = _with_connection(repeating.due)
    next_repeating = _with_connection(repeating.next_due)
    begin_repeating = _with_connection(repeating.begin, writes=True)
    settle_repeating = _with_connection(repeating.settle, writes=True)
    remove_repeating = _with_connection(repeating.remove, writes=True)
    stop_repeating = _with_connection(repeating.stop, writes=True)
    go_on_repeating = _with_connection(repeating.go_on, writes=True)
    repeating_snapshots = _with_connection(repeating.snapshots)
    write_audit = _with_connection(audit.write, writes=True)
    drop_audit = _with_connection(audit.drop, writes=True)
    forget_audit = _with_connection(audit.forget, writes=True)
    audit_entries = _with_connection(audit.search)

    def __init__(self, url: str, *, keep_secrets: bool = False) -> None:
        """Create the engine. It does not connect yet. *keep_secrets* is for :meth:`apply`.

        Raises:
            HistoryUnreachable: *url* is no database URL, or the driver for it is not installed.

        """
        self._engine = open_engine(url)
        self._keep_secrets = keep_secrets
        self._checked = False

    def apply(self, events: Sequence[Event], *, expected: Cursor | None, epoch: str) -> bool:
        """Write *events* of the store with *epoch*, if the cursor is still at *expected*.

        Unless the database was opened with *keep_secrets*, the secrets of jobs that have ended are removed.

        Returns:
            False if another recorder was faster; nothing is changed then.
        """
        with self._trusted():
            return writer.apply(self._engine, events, expected=expected, epoch=epoch, keep_secrets=self._keep_secrets)

    def set_aside(self, event: Event, why: str, *, expected: Cursor | None, epoch: str) -> bool:
        """Store *event* as a dead letter with the reason *why*, and move the cursor as ``apply`` does.

        Returns:
            False if another recorder was faster; nothing is changed then.
        """
        with self._trusted():
            return writer.set_aside(self._engine, event, why, expected=expected, epoch=epoch)

    def turn_to(self, epoch: str, *, expected: Cursor | None) -> bool:
        """Read only the store with *epoch* from now on, if the cursor is still at *expected*.

        A recorder that holds events of the previous store can no longer write them.

        Returns:
            False if another process moved the cursor; nothing is changed then.
        """
        with self._trusted():
            return writer.turn_to(self._engine, epoch, expected=expected)

    def rebase(
        self,
        pages: Iterable[list[Survivor]],
        *,
        expected: Cursor | None,
        to: Cursor,
        last_given: int,
        at: datetime,
    ) -> int | None:
        """Record again the jobs that the store still knows. See ``refill.py``.

        Returns:
            The number of jobs. None if the cursor is not at *expected*; nothing is changed then.
        """
        with self._trusted():
            return refill.rebase(self._engine, pages, expected=expected, to=to, last_given=last_given, at=at)

    def learning(
        self, *, since: datetime, until: datetime, user: str | None = None, headroom_bytes: int = 0
    ) -> LearningReport:
        """Return how learned memory would have done over the jobs that ended from *since* to *until* (exclusive).

        *user* is the submitting account, None for all. *headroom_bytes* of a device are for no job.
        """
        from gpuqueue.history.queries import past_jobs  # noqa: PLC0415 - lazy import: few commands replay jobs
        from gpuqueue.learning.replay import replay  # noqa: PLC0415 - as above

        with self._reading() as connection:
            found, is_cut = past_jobs(connection, since=since, until=until, user=user)
        return replay(found, since=since, until=until, headroom_bytes=headroom_bytes, is_cut=is_cut)

    def survivors(self) -> Iterator[list[Survivor]]:
        """Yield all jobs that have not ended, in pages, in the order of their ids.

        A job whose request cannot be read is included.
        """
        with self._reading() as connection:
            yield from queries.survivors(connection)

    def close(self) -> None:
        """Close every connection."""
        self._engine.dispose()

    @contextmanager
    def _reading(self) -> Iterator[sa.Connection]:
        with self._trusted(), reading(self._engine) as connection:
            yield connection

    @contextmanager
    def _writing(self) -> Iterator[sa.Connection]:
        with self._trusted(), writing(self._engine) as connection:
            check_revision(connection)
            yield connection

    @contextmanager
    def _trusted(self) -> Iterator[None]:
        """Check the tables before their use. After an error check again: another database may answer then."""
        self._check()
        try:
            yield
        except HistoryUnreachable:
            self._checked = False
            raise

    def _check(self) -> None:
        """Check that the tables are of this version. A good result is valid until the next error."""
        if not self._checked:
            with reading(self._engine) as connection:
                check_revision(connection)
            self._checked = True
