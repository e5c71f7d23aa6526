"""All tables of the history database. ``migrations/`` creates them, and a test checks that both agree."""

from __future__ import annotations

import re
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.types import TypeDecorator

from gpuqueue.model.device import PeakSource
from gpuqueue.model.job import ENDS, JobState
from gpuqueue.model.notification import Outcome
from gpuqueue.model.run import EndingKind

if TYPE_CHECKING:
    from collections.abc import Iterable
    from enum import Enum

#: Characters that PostgreSQL refuses in a text. A file name that is not UTF-8 contains lone surrogates.
_REFUSED = re.compile("[\0\ud800-\udfff]")


class UtcDateTime(TypeDecorator[datetime]):
    """An aware time in UTC, also in SQLite, which stores no zone."""

    impl = sa.DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: sa.Dialect) -> datetime | None:
        """Return *value* in UTC.

        Raises:
            ValueError: *value* has no zone, so its moment is unknown.

        """
        del dialect
        if value is None or value.tzinfo is timezone.utc:
            return value
        if value.tzinfo is None:
            raise ValueError(f"{value} has no time zone")
        return value.astimezone(timezone.utc)

    def process_result_value(self, value: datetime | None, dialect: sa.Dialect) -> datetime | None:
        """Return *value* as an aware time in UTC."""
        del dialect
        if value is None:
            return None
        return value.replace(tzinfo=timezone.utc) if value.tzinfo is None else value.astimezone(timezone.utc)


def safe(text: str) -> str:
    """Return *text* in a form that every database accepts: U+FFFD replaces lone surrogates and NUL."""
    if text.isascii() and "\0" not in text:  # the usual case, and ten times as fast
        return text
    return _REFUSED.sub("\N{REPLACEMENT CHARACTER}", text)


class SafeText(TypeDecorator[str]):
    """Text that every database accepts. U+FFFD replaces the characters that PostgreSQL refuses."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: sa.Dialect) -> str | None:
        """Return *value* with U+FFFD in place of lone surrogates and NUL."""
        del dialect
        return None if value is None else safe(value)


metadata = sa.MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def _one_of(column: str, words: Iterable[Enum]) -> str:
    return f"{column} IN ({', '.join(repr(word.value) for word in words)})"


def _key(name: str, kind: type[sa.types.TypeEngine[Any]] = sa.BigInteger) -> sa.Column[Any]:
    return sa.Column(name, kind, primary_key=True, autoincrement=False)


def _text(name: str, *, nullable: bool = False) -> sa.Column[str]:
    """Return a column for any text from users, files and programs."""
    return sa.Column(name, SafeText, nullable=nullable)


def _word(name: str, *, nullable: bool = False) -> sa.Column[str]:
    """Return a column for ASCII text that is validated on input, or that gpuqueue writes itself."""
    return sa.Column(name, sa.Text, nullable=nullable)


def _moment(name: str, *, nullable: bool = True) -> sa.Column[datetime]:
    return sa.Column(name, UtcDateTime, nullable=nullable)


#: The request of each job, and its state after the last event read.
jobs = sa.Table(
    "jobs",
    metadata,
    _key("id"),
    _text("name"),
    _word("user_name"),
    sa.Column("user_uid", sa.BigInteger, nullable=False),
    _text("submit_host"),
    _word("state"),
    _word("reason", nullable=True),
    sa.Column("priority", sa.SmallInteger, nullable=False),
    #: The command as typed in a shell, for display and search. The exact arguments are in ``spec``.
    _text("command"),
    _text("script", nullable=True),
    _text("interpreter", nullable=True),
    _text("cwd"),
    sa.Column("mem_bytes", sa.BigInteger, nullable=False),
    sa.Column("gpus", sa.Integer, nullable=False),
    sa.Column("time_limit_s", sa.Double, nullable=True),
    _word("pool"),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("losses", sa.Integer, nullable=False),
    #: Number of runs after a failure, of runs that an earlier run requested, and of runs after a lack of device memory.
    sa.Column("retries", sa.Integer, nullable=False, server_default="0"),
    sa.Column("requeues", sa.Integer, nullable=False, server_default="0"),
    sa.Column("mem_retries", sa.Integer, nullable=False, server_default="0"),
    #: The earliest start, if it was in the future.
    _moment("begins_at"),
    #: Why the job was cancelled, if no user cancelled it, or why no host can start it.
    _text("because", nullable=True),
    _moment("submitted_at", nullable=False),
    _moment("claimed_at"),
    _moment("started_at"),
    _moment("ended_at"),
    _text("host", nullable=True),
    #: The codec's payload with an empty environment. With ``environments`` a queue that lost its store can be rebuilt
    #: from it.
    _word("spec"),
    #: Results of the current or last run, stored here so that lists can filter and sort by them.
    _word("ending", nullable=True),
    sa.Column("exit_code", sa.Integer, nullable=True),
    sa.Column("duration_s", sa.Double, nullable=True),
    #: The sum over the devices. NULL if the peak of one device is unknown.
    sa.Column("peak_bytes", sa.BigInteger, nullable=True),
    #: The array that the job is a member of, and its index there.
    sa.Column("array_id", sa.BigInteger, nullable=True),
    sa.Column("array_index", sa.Integer, nullable=True),
    #: For an array: the indexes that no device has taken yet, and the held ones. NULL for any other job.
    _word("array_left", nullable=True),
    _word("array_held", nullable=True),
    #: Order before the user's other jobs, the highest number first, if the job was moved to the front.
    sa.Column("front", sa.BigInteger, nullable=True),
    #: A note by a user.
    _text("note", nullable=True),
    #: The program that the command runs: see :func:`gpuqueue.learning.signature.program_of`, whose texts all databases
    #: accept.
    _word("program", nullable=True),
    sa.CheckConstraint(_one_of("state", JobState), name="state_known"),
    sa.CheckConstraint(
        f"({_one_of('state', (s for s in JobState if s in ENDS))}) = (ended_at IS NOT NULL)", name="end_has_time"
    ),
    sa.CheckConstraint("mem_bytes > 0", name="mem_positive"),
    sa.CheckConstraint("gpus >= 1", name="gpus_positive"),
    sa.CheckConstraint("attempt >= 0", name="attempt_counts"),
    sa.CheckConstraint("losses >= 0", name="losses_count"),
)

#: The environments of requests: one for a job, and one for all members of an array. They are apart from ``jobs``
#: because others may not read them, and because they are removed a while after the end of the job.
environments = sa.Table(
    "environments",
    metadata,
    _key("job_id"),
    #: JSON: the variables in their order; null in place of a secret.
    _word("variables"),
    #: JSON: the variables that look like secrets. NULL if there are none, and from the end of the job on.
    _word("secrets", nullable=True),
    sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], ondelete="CASCADE"),
)

#: Tags of jobs, for searching.
job_tags = sa.Table(
    "job_tags",
    metadata,
    _key("job_id"),
    _key("tag", sa.Text),
    sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], ondelete="CASCADE"),
)

#: Runs: each is one attempt at a job.
runs = sa.Table(
    "runs",
    metadata,
    _key("job_id"),
    _key("attempt", sa.Integer),
    _word("token"),
    _text("host"),
    _text("worker"),
    _moment("claimed_at", nullable=False),
    _moment("started_at"),
    _moment("ended_at"),
    sa.Column("duration_s", sa.Double, nullable=True),
    _word("ending", nullable=True),
    sa.Column("exit_code", sa.Integer, nullable=True),
    sa.Column("signal", sa.Integer, nullable=True),
    _text("detail", nullable=True),
    _text("log_path", nullable=True),
    #: The most memory that the run used on all its devices in the same moment.
    sa.Column("peak_at_once_bytes", sa.BigInteger, nullable=True),
    #: How the run came to its start: see :class:`gpuqueue.model.run.StartKind`.
    _word("start_kind", nullable=True),
    #: JSON: its :class:`gpuqueue.model.run.RunNote`s; NULL if there are none.
    _word("notes", nullable=True),
    #: JSON: its :class:`gpuqueue.model.run_mark.RunMark`s, also those that are over; NULL if there were none.
    _word("marks", nullable=True),
    #: JSON: the parameters and the result that the job reported; NULL if it reported none.
    _word("params", nullable=True),
    _word("result", nullable=True),
    sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], ondelete="CASCADE"),
    sa.CheckConstraint(_one_of("ending", EndingKind), name="ending_known"),
    sa.CheckConstraint("(ending IS NULL) = (ended_at IS NULL)", name="ending_has_time"),
    sa.CheckConstraint("exit_code IS NULL OR signal IS NULL", name="code_or_signal"),
    sa.CheckConstraint("attempt >= 1", name="attempt_counts"),
)

#: The devices of each run: allocated memory, peak, and the source of the peak.
run_devices = sa.Table(
    "run_devices",
    metadata,
    _key("job_id"),
    _key("attempt", sa.Integer),
    _key("device_uuid", SafeText),
    #: The device's position in the run. The process of the job sees it as cuda:0, cuda:1 and so on.
    sa.Column("device_index", sa.Integer, nullable=False),
    #: The device's index on its host, only for display.
    sa.Column("host_index", sa.Integer, nullable=True),
    _text("name", nullable=True),
    _word("kind", nullable=True),
    sa.Column("total_bytes", sa.BigInteger, nullable=True),
    sa.Column("lease_bytes", sa.BigInteger, nullable=False),
    sa.Column("peak_bytes", sa.BigInteger, nullable=True),
    _word("peak_source"),
    sa.Column("samples", sa.Integer, nullable=False),
    sa.Column("na_samples", sa.Integer, nullable=False),
    sa.Column("interval_s", sa.Double, nullable=True),
    sa.Column("shared", sa.Boolean, nullable=True),
    #: Time from the start of the run to the first sample that showed memory of the run.
    sa.Column("first_memory_s", sa.Double, nullable=True),
    #: Utilisation of the whole device during the run, from 0 to 1.
    sa.Column("utilisation_mean", sa.Double, nullable=True),
    sa.Column("utilisation_max", sa.Double, nullable=True),
    sa.Column("temperature_max_c", sa.Double, nullable=True),
    #: Utilisation of the device, and of its memory, by the run alone; NULL if it is unknown.
    sa.Column("own_utilisation_mean", sa.Double, nullable=True),
    sa.Column("own_utilisation_p95", sa.Double, nullable=True),
    sa.Column("own_bandwidth_mean", sa.Double, nullable=True),
    sa.Column("own_bandwidth_p95", sa.Double, nullable=True),
    sa.ForeignKeyConstraint(["job_id", "attempt"], ["runs.job_id", "runs.attempt"], ondelete="CASCADE"),
    sa.CheckConstraint(_one_of("peak_source", PeakSource), name="peak_source_known"),
    sa.CheckConstraint("(peak_bytes IS NULL) = (peak_source = 'none')", name="peak_has_source"),
)

#: The memory of a run over time. It has its own table because it is read for one job at a time.
run_timelines = sa.Table(
    "run_timelines",
    metadata,
    _key("job_id"),
    _key("attempt", sa.Integer),
    _key("device_uuid", SafeText),
    sa.Column("step_s", sa.Double, nullable=False),
    #: JSON: the largest sample of each step since the start, in bytes; null for a step without a sample.
    _word("bytes"),
    sa.ForeignKeyConstraint(
        ["job_id", "attempt", "device_uuid"],
        ["run_devices.job_id", "run_devices.attempt", "run_devices.device_uuid"],
        ondelete="CASCADE",
    ),
    sa.CheckConstraint("step_s > 0", name="step_positive"),
)

#: The metrics that the job of a run reported.
run_metrics = sa.Table(
    "run_metrics",
    metadata,
    _key("job_id"),
    _key("attempt", sa.Integer),
    _key("name", sa.Text),
    #: NULL if it is NaN or infinite, and of the others if no value was a finite number.
    sa.Column("last_value", sa.Double, nullable=True),
    sa.Column("min_value", sa.Double, nullable=True),
    sa.Column("max_value", sa.Double, nullable=True),
    #: JSON: the :class:`gpuqueue.model.job_values.Metric` without its name and its curve.
    _word("detail"),
    sa.ForeignKeyConstraint(["job_id", "attempt"], ["runs.job_id", "runs.attempt"], ondelete="CASCADE"),
)

#: Their values over time. They have their own table because they are read for one job at a time.
run_curves = sa.Table(
    "run_curves",
    metadata,
    _key("job_id"),
    _key("attempt", sa.Integer),
    _key("name", sa.Text),
    #: JSON: for each point the seconds since the start of the run, the step or null, and the value.
    _word("points"),
    sa.ForeignKeyConstraint(
        ["job_id", "attempt", "name"],
        ["run_metrics.job_id", "run_metrics.attempt", "run_metrics.name"],
        ondelete="CASCADE",
    ),
)

#: Notifications about the end of a job, and their outcomes. Their targets are in the job's spec, by ``number``.
notifications = sa.Table(
    "notifications",
    metadata,
    _key("job_id"),
    _key("number", sa.Integer),
    #: Counted before each try, so that a try that crashes its sender counts as well.
    sa.Column("tries", sa.Integer, nullable=False),
    #: The earliest time of the next try. During a try: when another sender may take over.
    _moment("next_at"),
    #: NULL until the notification is sent, given up, or not needed.
    _word("outcome", nullable=True),
    _moment("at"),
    #: Why the last try failed.
    _text("trouble", nullable=True),
    sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], ondelete="CASCADE"),
    sa.CheckConstraint(_one_of("outcome", Outcome), name="outcome_known"),
    sa.CheckConstraint("(outcome IS NULL) = (at IS NULL)", name="outcome_has_time"),
)

#: The events of each job. There is no foreign key: an event is kept even if its job has no row.
job_events = sa.Table(
    "job_events",
    metadata,
    _key("epoch", sa.Text),
    _key("event_id", sa.Text),
    sa.Column("job_id", sa.BigInteger, nullable=False),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("losses", sa.Integer, nullable=False),
    _word("act"),
    _word("state"),
    _moment("at", nullable=False),
    _word("reason", nullable=True),
    #: The event's fields as JSON, without the payloads that other tables store.
    _word("detail", nullable=True),
)

#: Dead letters: whole events that the tables above refused. ``job_events`` lists them as well.
dead_letters = sa.Table(
    "dead_letters",
    metadata,
    _key("epoch", sa.Text),
    _key("event_id", sa.Text),
    sa.Column("job_id", sa.BigInteger, nullable=False),
    _word("act"),
    _moment("at", nullable=False),
    #: The error of the database.
    _text("error"),
    #: The event's fields as JSON.
    _word("fields"),
)

#: The cursor in the outbox: a single row, moved in the transaction that writes the events.
outbox_cursor = sa.Table(
    "outbox_cursor",
    metadata,
    _key("id", sa.SmallInteger),
    _word("epoch"),
    _word("last_id"),
    sa.CheckConstraint("id = 1", name="single_row"),
)


#: Access tokens. The secret itself is not stored: ``digest`` is its SHA-256.
access_tokens = sa.Table(
    "access_tokens",
    metadata,
    #: The public part of the token, by which it is found.
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("digest", sa.Text, nullable=False),
    #: ``person``, or ``host`` for a worker host.
    sa.Column("kind", sa.Text, nullable=False),
    #: The account, or the name of the worker host, which has no uid.
    sa.Column("account", SafeText, nullable=False),
    sa.Column("uid", sa.BigInteger, nullable=True),
    #: The scopes, with spaces between them.
    sa.Column("scopes", sa.Text, nullable=False),
    sa.Column("name", SafeText, nullable=False),
    sa.Column("made_by", sa.Text, nullable=False),
    sa.Column("made_at", UtcDateTime, nullable=False),
    sa.Column("expires_at", UtcDateTime, nullable=True),
    sa.Column("last_used_at", UtcDateTime, nullable=True),
    sa.Column("revoked_at", UtcDateTime, nullable=True),
    sa.CheckConstraint("kind IN ('person', 'host')", name="kind_known"),
    sa.CheckConstraint("(kind = 'person') = (uid IS NOT NULL)", name="person_has_uid"),
)

#: The audit log: one row for each requested change.
audit_entries = sa.Table(
    "audit_entries",
    metadata,
    #: Made from the time, so that ids are in the order of the changes.
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("at", UtcDateTime, nullable=False),
    sa.Column("account", SafeText, nullable=False),
    sa.Column("uid", sa.BigInteger, nullable=True),
    #: How the account was authenticated: ``socket``, ``token``, ``direct`` or ``anonymous``.
    sa.Column("via", sa.Text, nullable=False),
    sa.Column("token_id", sa.Text, nullable=True),
    #: The network address, or ``pid 123``.
    sa.Column("address", SafeText, nullable=False),
    sa.Column("action", SafeText, nullable=False),
    #: The ids of the jobs, with spaces between them.
    sa.Column("jobs", SafeText, nullable=False),
    #: Further details of the request, as JSON, without secrets.
    sa.Column("detail", SafeText, nullable=True),
    #: ``done``, ``refused``, ``failed``; NULL if the service ended before the outcome was known.
    sa.Column("outcome", sa.Text, nullable=True),
    #: Why it was refused or failed.
    sa.Column("reason", SafeText, nullable=True),
    sa.CheckConstraint("outcome IN ('done', 'refused', 'failed')", name="outcome_known"),
)

#: Repeating jobs: requests that the service submits again at each time of an expression of cron.
repeating_jobs = sa.Table(
    "repeating_jobs",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("name", SafeText, nullable=False),
    #: The account that made it, and the host where it was made.
    sa.Column("account", SafeText, nullable=False),
    sa.Column("uid", sa.BigInteger, nullable=False),
    sa.Column("host", SafeText, nullable=False),
    #: The access token that proved the account, NULL for an account of the machine.
    sa.Column("token_id", sa.Text, nullable=True),
    #: The expression of cron, and the time zone that it means.
    sa.Column("times", sa.Text, nullable=False),
    sa.Column("zone", sa.Text, nullable=False),
    #: Whether a job may start while the last one waits or runs, and whether one runs late after missed times.
    sa.Column("overlap", sa.Boolean, nullable=False),
    sa.Column("catch_up", sa.Boolean, nullable=False),
    #: The body of a submit as JSON, with the environment.
    sa.Column("request", sa.Text, nullable=False),
    #: The signature of a service that signs jobs.
    sa.Column("seal", sa.Text, nullable=True),
    sa.Column("made_at", UtcDateTime, nullable=False),
    #: The earliest time that is not dealt with. NULL if it has stopped.
    sa.Column("next_at", UtcDateTime, nullable=True),
    #: Why it has stopped: ``paused``, or a text.
    sa.Column("stopped", SafeText, nullable=True),
    #: A time whose job is being submitted, and the id that was taken for it.
    sa.Column("begun_at", UtcDateTime, nullable=True),
    sa.Column("begun_job_id", sa.BigInteger, nullable=True),
    #: The last time at which a job was submitted, and that job.
    sa.Column("last_at", UtcDateTime, nullable=True),
    sa.Column("last_job_id", sa.BigInteger, nullable=True),
    #: The number of times without a job, the last of them, and why there was none.
    sa.Column("missed", sa.Integer, nullable=False),
    sa.Column("missed_at", UtcDateTime, nullable=True),
    sa.Column("missed_why", SafeText, nullable=True),
    sa.UniqueConstraint("account", "uid", "name"),
    sa.CheckConstraint("(begun_at IS NULL) = (begun_job_id IS NULL)", name="begun_has_id"),
    sa.CheckConstraint("(next_at IS NULL) = (stopped IS NOT NULL)", name="stopped_has_reason"),
)
