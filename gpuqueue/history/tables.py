"""Every table of the book. ``migrations/`` makes them in a database, and a test holds the two together."""

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

#: What PostgreSQL refuses in a text: a file name that is no UTF-8 arrives as lone surrogates.
_REFUSED = re.compile("[\0\ud800-\udfff]")


class UtcDateTime(TypeDecorator[datetime]):
    """An aware time in UTC, also in SQLite, which keeps no zone."""

    impl = sa.DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: sa.Dialect) -> datetime | None:
        """Return *value* in UTC.

        Raises:
            ValueError: it has no zone, so nobody knows which moment it is.

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
    """Return *text* as any database takes it: U+FFFD for lone surrogates and NUL."""
    if text.isascii() and "\0" not in text:  # nearly always, and ten times as fast
        return text
    return _REFUSED.sub("\N{REPLACEMENT CHARACTER}", text)


class SafeText(TypeDecorator[str]):
    """Text that any database takes: what it would refuse is replaced by U+FFFD."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: sa.Dialect) -> str | None:
        """Return *value* without lone surrogates and NUL."""
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
    """Return a column for what people, files and programs say: anything at all."""
    return sa.Column(name, SafeText, nullable=nullable)


def _word(name: str, *, nullable: bool = False) -> sa.Column[str]:
    """Return a column for text that was checked at the door, or that we wrote ourselves: plain ASCII."""
    return sa.Column(name, sa.Text, nullable=nullable)


def _moment(name: str, *, nullable: bool = True) -> sa.Column[datetime]:
    return sa.Column(name, UtcDateTime, nullable=nullable)


#: What was asked for, and where it stands after the last event that the book has read.
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
    sa.Column("level", sa.SmallInteger, nullable=False),
    #: As one would type it; for people and for searching. The exact words are in the spec.
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
    #: Of its runs, those after a failure, and those that a run asked for.
    sa.Column("retries", sa.Integer, nullable=False, server_default="0"),
    sa.Column("requeues", sa.Integer, nullable=False, server_default="0"),
    #: Not before, where that was to come.
    _moment("begins_at"),
    #: Why it was cancelled, where nobody did.
    _word("because", nullable=True),
    _moment("submitted_at", nullable=False),
    _moment("claimed_at"),
    _moment("started_at"),
    _moment("ended_at"),
    _text("host", nullable=True),
    #: The codec's payload, verbatim: a queue that lost its store can be rebuilt from it.
    _word("spec"),
    #: How the current or last run went: what a list shows of a job, it must also find and order by.
    _word("ending", nullable=True),
    sa.Column("exit_code", sa.Integer, nullable=True),
    sa.Column("duration_s", sa.Double, nullable=True),
    #: The sum over its devices; NULL if one of them is not known.
    sa.Column("peak_bytes", sa.BigInteger, nullable=True),
    #: Whose member it is.
    sa.Column("array_id", sa.BigInteger, nullable=True),
    sa.Column("array_index", sa.Integer, nullable=True),
    #: Of an array: the indexes that no device took yet, and those that are held. NULL for any other job.
    _word("array_left", nullable=True),
    _word("array_held", nullable=True),
    #: Its place before its user's others, the highest first, where it was moved to the front.
    sa.Column("front", sa.BigInteger, nullable=True),
    #: What somebody has to say of it.
    _text("note", nullable=True),
    sa.CheckConstraint(_one_of("state", JobState), name="state_known"),
    sa.CheckConstraint(
        f"({_one_of('state', (s for s in JobState if s in ENDS))}) = (ended_at IS NOT NULL)", name="end_has_time"
    ),
    sa.CheckConstraint("mem_bytes > 0", name="mem_positive"),
    sa.CheckConstraint("gpus >= 1", name="gpus_positive"),
    sa.CheckConstraint("attempt >= 0", name="attempt_counts"),
    sa.CheckConstraint("losses >= 0", name="losses_count"),
)

#: Words that people find jobs by.
job_tags = sa.Table(
    "job_tags",
    metadata,
    _key("job_id"),
    _key("tag", sa.Text),
    sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], ondelete="CASCADE"),
)

#: One attempt at a job.
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
    #: The most that it held on all its devices in the same moment.
    sa.Column("peak_at_once_bytes", sa.BigInteger, nullable=True),
    #: How it came to its start.
    _word("start_kind", nullable=True),
    sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], ondelete="CASCADE"),
    sa.CheckConstraint(_one_of("ending", EndingKind), name="ending_known"),
    sa.CheckConstraint("(ending IS NULL) = (ended_at IS NULL)", name="ending_has_time"),
    sa.CheckConstraint("exit_code IS NULL OR signal IS NULL", name="code_or_signal"),
    sa.CheckConstraint("attempt >= 1", name="attempt_counts"),
)

#: What each device was to a run: promised memory, peak and where that figure comes from.
run_devices = sa.Table(
    "run_devices",
    metadata,
    _key("job_id"),
    _key("attempt", sa.Integer),
    _key("device_uuid", SafeText),
    #: The device's position in the run: what the job's process calls cuda:0, cuda:1 and so on.
    sa.Column("device_index", sa.Integer, nullable=False),
    #: The device's index on its host; only for people.
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
    #: From the start of the run to the first sample that showed memory of it.
    sa.Column("first_memory_s", sa.Double, nullable=True),
    #: Of the whole device while the run was there, from 0 to 1.
    sa.Column("utilisation_mean", sa.Double, nullable=True),
    sa.Column("utilisation_max", sa.Double, nullable=True),
    sa.Column("temperature_max_c", sa.Double, nullable=True),
    sa.ForeignKeyConstraint(["job_id", "attempt"], ["runs.job_id", "runs.attempt"], ondelete="CASCADE"),
    sa.CheckConstraint(_one_of("peak_source", PeakSource), name="peak_source_known"),
    sa.CheckConstraint("(peak_bytes IS NULL) = (peak_source = 'none')", name="peak_has_source"),
)

#: How the memory of a run went, apart from its other figures because only one job at a time is looked at so closely.
run_timelines = sa.Table(
    "run_timelines",
    metadata,
    _key("job_id"),
    _key("attempt", sa.Integer),
    _key("device_uuid", SafeText),
    sa.Column("step_s", sa.Double, nullable=False),
    #: JSON: the largest sample of each step since the start in bytes, null for a step without one.
    _word("bytes"),
    sa.ForeignKeyConstraint(
        ["job_id", "attempt", "device_uuid"],
        ["run_devices.job_id", "run_devices.attempt", "run_devices.device_uuid"],
        ondelete="CASCADE",
    ),
    sa.CheckConstraint("step_s > 0", name="step_positive"),
)

#: Whom a job's owner lets tell of its end, and what became of that. To whom stands in the job's spec, by ``number``.
notices = sa.Table(
    "notices",
    metadata,
    _key("job_id"),
    _key("number", sa.Integer),
    #: Counted before each try, so that one that takes its sender down is counted as well.
    sa.Column("tries", sa.Integer, nullable=False),
    #: Not before; while it is being sent, when another sender may take it.
    _moment("next_at"),
    #: NULL until it is sent, given up, or not needed.
    _word("outcome", nullable=True),
    _moment("at"),
    #: Why the last try came to nothing.
    _text("trouble", nullable=True),
    sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], ondelete="CASCADE"),
    sa.CheckConstraint(_one_of("outcome", Outcome), name="outcome_known"),
    sa.CheckConstraint("(outcome IS NULL) = (at IS NULL)", name="outcome_has_time"),
)

#: A job's story, step by step. It refers to no job: a step of a job that the book missed is kept as well.
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
    #: The event's fields as JSON, without payloads that stand in another table.
    _word("detail", nullable=True),
)

#: Events that the tables above could not take, whole, for a person to look at. Their job's story says that they were.
unwritten_events = sa.Table(
    "unwritten_events",
    metadata,
    _key("epoch", sa.Text),
    _key("event_id", sa.Text),
    sa.Column("job_id", sa.BigInteger, nullable=False),
    _word("act"),
    _moment("at", nullable=False),
    #: What the database said.
    _text("why"),
    #: The event's fields as JSON.
    _word("fields"),
)

#: How far the outbox is read: a single row, moved in the transaction that writes the events down.
outbox_cursor = sa.Table(
    "outbox_cursor",
    metadata,
    _key("id", sa.SmallInteger),
    _word("epoch"),
    _word("last_id"),
    sa.CheckConstraint("id = 1", name="single_row"),
)
