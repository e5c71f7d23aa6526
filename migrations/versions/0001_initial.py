"""Create the tables of the first version, their indexes, and the text index."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from gpuqueue.history import text_index

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

#: A copy of the tables as of this revision. It stays as it is when ``gpuqueue.history.tables`` changes.
METADATA = sa.MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)
MOMENT = sa.DateTime(timezone=True)


def _partial_index(condition: str, *columns: str) -> sa.Index:
    """Return an index of the rows for which *condition* is true."""
    return sa.Index(None, *columns, sqlite_where=sa.text(condition), postgresql_where=sa.text(condition))


sa.Table(
    "jobs",
    METADATA,
    sa.Column("id", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("user_name", sa.Text, nullable=False),
    sa.Column("user_uid", sa.BigInteger, nullable=False),
    sa.Column("submit_host", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("reason", sa.Text),
    sa.Column("priority", sa.SmallInteger, nullable=False),
    sa.Column("command", sa.Text, nullable=False),
    sa.Column("script", sa.Text),
    sa.Column("interpreter", sa.Text),
    sa.Column("cwd", sa.Text, nullable=False),
    sa.Column("mem_bytes", sa.BigInteger, nullable=False),
    sa.Column("gpus", sa.Integer, nullable=False),
    sa.Column("time_limit_s", sa.Double),
    sa.Column("pool", sa.Text, nullable=False),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("losses", sa.Integer, nullable=False),
    sa.Column("retries", sa.Integer, nullable=False, server_default="0"),
    sa.Column("requeues", sa.Integer, nullable=False, server_default="0"),
    sa.Column("begins_at", MOMENT),
    sa.Column("because", sa.Text),
    sa.Column("submitted_at", MOMENT, nullable=False),
    sa.Column("claimed_at", MOMENT),
    sa.Column("started_at", MOMENT),
    sa.Column("ended_at", MOMENT),
    sa.Column("host", sa.Text),
    sa.Column("spec", sa.Text, nullable=False),
    sa.Column("ending", sa.Text),
    sa.Column("exit_code", sa.Integer),
    sa.Column("duration_s", sa.Double),
    sa.Column("peak_bytes", sa.BigInteger),
    sa.Column("array_id", sa.BigInteger),
    sa.Column("array_index", sa.Integer),
    sa.Column("array_left", sa.Text),
    sa.Column("array_held", sa.Text),
    sa.Column("front", sa.BigInteger),
    sa.Column("note", sa.Text),
    sa.CheckConstraint(
        "state IN ('queued', 'held', 'starting', 'running', 'cancelling', 'succeeded', 'failed', 'cancelled', 'lost')",
        name="state_known",
    ),
    sa.CheckConstraint(
        "(state IN ('succeeded', 'failed', 'cancelled', 'lost')) = (ended_at IS NOT NULL)", name="end_has_time"
    ),
    sa.CheckConstraint("mem_bytes > 0", name="mem_positive"),
    sa.CheckConstraint("gpus >= 1", name="gpus_positive"),
    sa.CheckConstraint("attempt >= 0", name="attempt_counts"),
    sa.CheckConstraint("losses >= 0", name="losses_count"),
    sa.Index(None, "user_name", "id"),
    sa.Index(None, "state", "id"),
    sa.Index(None, "submitted_at", "id"),
    sa.Index(None, "ended_at"),
    sa.Index(None, "name", "id"),
    sa.Index(None, "host", "id"),
    sa.Index(None, "duration_s", "id"),
    sa.Index(None, "peak_bytes", "id"),
    _partial_index("ending <> 'exited'", "ending", "id"),
    _partial_index("exit_code <> 0", "exit_code", "id"),
    _partial_index("array_id IS NOT NULL", "array_id", "array_index"),
)
sa.Table(
    "environments",
    METADATA,
    sa.Column("job_id", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("variables", sa.Text, nullable=False),
    sa.Column("secrets", sa.Text),
    sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], ondelete="CASCADE"),
)
sa.Table(
    "job_tags",
    METADATA,
    sa.Column("job_id", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("tag", sa.Text, primary_key=True),
    sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], ondelete="CASCADE"),
    sa.Index(None, "tag", "job_id"),
)
sa.Table(
    "runs",
    METADATA,
    sa.Column("job_id", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("attempt", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("token", sa.Text, nullable=False),
    sa.Column("host", sa.Text, nullable=False),
    sa.Column("worker", sa.Text, nullable=False),
    sa.Column("claimed_at", MOMENT, nullable=False),
    sa.Column("started_at", MOMENT),
    sa.Column("ended_at", MOMENT),
    sa.Column("duration_s", sa.Double),
    sa.Column("ending", sa.Text),
    sa.Column("exit_code", sa.Integer),
    sa.Column("signal", sa.Integer),
    sa.Column("detail", sa.Text),
    sa.Column("log_path", sa.Text),
    sa.Column("peak_at_once_bytes", sa.BigInteger),
    sa.Column("start_kind", sa.Text),
    sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], ondelete="CASCADE"),
    sa.CheckConstraint(
        "ending IN ('exited', 'signalled', 'out_of_memory', 'timed_out', 'cancelled', 'preempted', 'refused', 'lost')",
        name="ending_known",
    ),
    sa.CheckConstraint("(ending IS NULL) = (ended_at IS NULL)", name="ending_has_time"),
    sa.CheckConstraint("exit_code IS NULL OR signal IS NULL", name="code_or_signal"),
    sa.CheckConstraint("attempt >= 1", name="attempt_counts"),
    sa.Index(None, "ended_at"),
)
sa.Table(
    "run_devices",
    METADATA,
    sa.Column("job_id", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("attempt", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("device_uuid", sa.Text, primary_key=True),
    sa.Column("device_index", sa.Integer, nullable=False),
    sa.Column("host_index", sa.Integer),
    sa.Column("name", sa.Text),
    sa.Column("kind", sa.Text),
    sa.Column("total_bytes", sa.BigInteger),
    sa.Column("lease_bytes", sa.BigInteger, nullable=False),
    sa.Column("peak_bytes", sa.BigInteger),
    sa.Column("peak_source", sa.Text, nullable=False),
    sa.Column("samples", sa.Integer, nullable=False),
    sa.Column("na_samples", sa.Integer, nullable=False),
    sa.Column("interval_s", sa.Double),
    sa.Column("shared", sa.Boolean),
    sa.Column("first_memory_s", sa.Double),
    sa.Column("utilisation_mean", sa.Double),
    sa.Column("utilisation_max", sa.Double),
    sa.Column("temperature_max_c", sa.Double),
    sa.ForeignKeyConstraint(["job_id", "attempt"], ["runs.job_id", "runs.attempt"], ondelete="CASCADE"),
    sa.CheckConstraint(
        "peak_source IN ('nvml_accounting', 'nvml_sampled', 'torch', 'device_delta', 'host_rss', 'simulated', 'none')",
        name="peak_source_known",
    ),
    sa.CheckConstraint("(peak_bytes IS NULL) = (peak_source = 'none')", name="peak_has_source"),
    sa.Index(None, "device_uuid", "job_id"),
)
sa.Table(
    "run_timelines",
    METADATA,
    sa.Column("job_id", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("attempt", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("device_uuid", sa.Text, primary_key=True),
    sa.Column("step_s", sa.Double, nullable=False),
    sa.Column("bytes", sa.Text, nullable=False),
    sa.ForeignKeyConstraint(
        ["job_id", "attempt", "device_uuid"],
        ["run_devices.job_id", "run_devices.attempt", "run_devices.device_uuid"],
        ondelete="CASCADE",
    ),
    sa.CheckConstraint("step_s > 0", name="step_positive"),
)
sa.Table(
    "notifications",
    METADATA,
    sa.Column("job_id", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("tries", sa.Integer, nullable=False),
    sa.Column("next_at", MOMENT),
    sa.Column("outcome", sa.Text),
    sa.Column("at", MOMENT),
    sa.Column("trouble", sa.Text),
    sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], ondelete="CASCADE"),
    sa.CheckConstraint("outcome IN ('sent', 'given_up', 'not_needed')", name="outcome_known"),
    sa.CheckConstraint("(outcome IS NULL) = (at IS NULL)", name="outcome_has_time"),
    _partial_index("outcome IS NULL", "job_id"),
)
sa.Table(
    "job_events",
    METADATA,
    sa.Column("epoch", sa.Text, primary_key=True),
    sa.Column("event_id", sa.Text, primary_key=True),
    sa.Column("job_id", sa.BigInteger, nullable=False),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("losses", sa.Integer, nullable=False),
    sa.Column("act", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("at", MOMENT, nullable=False),
    sa.Column("reason", sa.Text),
    sa.Column("detail", sa.Text),
    sa.Index(None, "job_id"),
)
sa.Table(
    "dead_letters",
    METADATA,
    sa.Column("epoch", sa.Text, primary_key=True),
    sa.Column("event_id", sa.Text, primary_key=True),
    sa.Column("job_id", sa.BigInteger, nullable=False),
    sa.Column("act", sa.Text, nullable=False),
    sa.Column("at", MOMENT, nullable=False),
    sa.Column("error", sa.Text, nullable=False),
    sa.Column("fields", sa.Text, nullable=False),
)
sa.Table(
    "outbox_cursor",
    METADATA,
    sa.Column("id", sa.SmallInteger, primary_key=True, autoincrement=False),
    sa.Column("epoch", sa.Text, nullable=False),
    sa.Column("last_id", sa.Text, nullable=False),
    sa.CheckConstraint("id = 1", name="single_row"),
)
sa.Table(
    "access_tokens",
    METADATA,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("digest", sa.Text, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("account", sa.Text, nullable=False),
    sa.Column("uid", sa.BigInteger),
    sa.Column("scopes", sa.Text, nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("made_by", sa.Text, nullable=False),
    sa.Column("made_at", MOMENT, nullable=False),
    sa.Column("expires_at", MOMENT),
    sa.Column("last_used_at", MOMENT),
    sa.Column("revoked_at", MOMENT),
    sa.CheckConstraint("kind IN ('person', 'host')", name="kind_known"),
    sa.CheckConstraint("(kind = 'person') = (uid IS NOT NULL)", name="person_has_uid"),
    sa.Index(None, "account"),
)
sa.Table(
    "audit_entries",
    METADATA,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("at", MOMENT, nullable=False),
    sa.Column("account", sa.Text, nullable=False),
    sa.Column("uid", sa.BigInteger),
    sa.Column("via", sa.Text, nullable=False),
    sa.Column("token_id", sa.Text),
    sa.Column("address", sa.Text, nullable=False),
    sa.Column("action", sa.Text, nullable=False),
    sa.Column("jobs", sa.Text, nullable=False),
    sa.Column("detail", sa.Text),
    sa.Column("outcome", sa.Text),
    sa.Column("reason", sa.Text),
    sa.CheckConstraint("outcome IN ('done', 'refused', 'failed')", name="outcome_known"),
    sa.Index(None, "at"),
    sa.Index(None, "account", "at"),
    sa.Index(None, "action", "at"),
)


def upgrade() -> None:
    """Create everything. If the database does not support the text index, each ``gpuqueue db upgrade`` tries again."""
    METADATA.create_all(op.get_bind(), checkfirst=False)
    text_index.make(op.get_bind())
