"""Jobs, their runs, the devices of runs, events, and the cursor in the outbox."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create all tables."""
    _create_jobs()
    _create_runs()
    _create_run_devices()
    _create_job_events()
    _create_outbox_cursor()


def downgrade() -> None:
    """Drop all tables, those first that refer to others."""
    for table in ("outbox_cursor", "job_events", "run_devices", "runs", "jobs"):
        op.drop_table(table)


def _create_jobs() -> None:
    op.create_table(
        "jobs",
        sa.Column("id", sa.BigInteger, autoincrement=False, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("user_name", sa.Text, nullable=False),
        sa.Column("user_uid", sa.BigInteger, nullable=False),
        sa.Column("submit_host", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=True),
        sa.Column("level", sa.SmallInteger, nullable=False),
        sa.Column("command", sa.Text, nullable=False),
        sa.Column("script", sa.Text, nullable=True),
        sa.Column("interpreter", sa.Text, nullable=True),
        sa.Column("cwd", sa.Text, nullable=False),
        sa.Column("mem_bytes", sa.BigInteger, nullable=False),
        sa.Column("gpus", sa.Integer, nullable=False),
        sa.Column("time_limit_s", sa.Double, nullable=True),
        sa.Column("pool", sa.Text, nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("losses", sa.Integer, nullable=False),
        sa.Column("submitted_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("claimed_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("host", sa.Text, nullable=True),
        sa.Column("spec", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_jobs")),
        sa.CheckConstraint(
            "state IN ('queued', 'held', 'starting', 'running', 'cancelling', "
            "'succeeded', 'failed', 'cancelled', 'lost')",
            name=op.f("ck_jobs_state_known"),
        ),
        sa.CheckConstraint(
            "(state IN ('succeeded', 'failed', 'cancelled', 'lost')) = (ended_at IS NOT NULL)",
            name=op.f("ck_jobs_end_has_time"),
        ),
        sa.CheckConstraint("mem_bytes > 0", name=op.f("ck_jobs_mem_positive")),
        sa.CheckConstraint("gpus >= 1", name=op.f("ck_jobs_gpus_positive")),
        sa.CheckConstraint("attempt >= 0", name=op.f("ck_jobs_attempt_counts")),
        sa.CheckConstraint("losses >= 0", name=op.f("ck_jobs_losses_count")),
    )
    op.create_index(op.f("ix_jobs_user_name_id"), "jobs", ["user_name", "id"])
    op.create_index(op.f("ix_jobs_state_id"), "jobs", ["state", "id"])
    op.create_index(op.f("ix_jobs_submitted_at"), "jobs", ["submitted_at"])
    op.create_index(op.f("ix_jobs_ended_at"), "jobs", ["ended_at"])


def _create_runs() -> None:
    op.create_table(
        "runs",
        sa.Column("job_id", sa.BigInteger, autoincrement=False, nullable=False),
        sa.Column("attempt", sa.Integer, autoincrement=False, nullable=False),
        sa.Column("token", sa.Text, nullable=False),
        sa.Column("host", sa.Text, nullable=False),
        sa.Column("worker", sa.Text, nullable=False),
        sa.Column("claimed_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("duration_s", sa.Double, nullable=True),
        sa.Column("ending", sa.Text, nullable=True),
        sa.Column("exit_code", sa.Integer, nullable=True),
        sa.Column("signal", sa.Integer, nullable=True),
        sa.Column("detail", sa.Text, nullable=True),
        sa.Column("log_path", sa.Text, nullable=True),
        sa.PrimaryKeyConstraint("job_id", "attempt", name=op.f("pk_runs")),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_runs_jobs"), ondelete="CASCADE"),
        sa.CheckConstraint(
            "ending IN ('exited', 'signalled', 'out_of_memory', 'timed_out', "
            "'cancelled', 'preempted', 'refused', 'lost')",
            name=op.f("ck_runs_ending_known"),
        ),
        sa.CheckConstraint("(ending IS NULL) = (ended_at IS NULL)", name=op.f("ck_runs_ending_has_time")),
        sa.CheckConstraint("exit_code IS NULL OR signal IS NULL", name=op.f("ck_runs_code_or_signal")),
        sa.CheckConstraint("attempt >= 1", name=op.f("ck_runs_attempt_counts")),
    )


def _create_run_devices() -> None:
    op.create_table(
        "run_devices",
        sa.Column("job_id", sa.BigInteger, autoincrement=False, nullable=False),
        sa.Column("attempt", sa.Integer, autoincrement=False, nullable=False),
        sa.Column("device_uuid", sa.Text, nullable=False),
        sa.Column("device_index", sa.Integer, nullable=False),
        sa.Column("host_index", sa.Integer, nullable=True),
        sa.Column("name", sa.Text, nullable=True),
        sa.Column("kind", sa.Text, nullable=True),
        sa.Column("total_bytes", sa.BigInteger, nullable=True),
        sa.Column("lease_bytes", sa.BigInteger, nullable=False),
        sa.Column("peak_bytes", sa.BigInteger, nullable=True),
        sa.Column("peak_source", sa.Text, nullable=False),
        sa.Column("samples", sa.Integer, nullable=False),
        sa.Column("na_samples", sa.Integer, nullable=False),
        sa.Column("interval_s", sa.Double, nullable=True),
        sa.Column("shared", sa.Boolean, nullable=True),
        sa.PrimaryKeyConstraint("job_id", "attempt", "device_uuid", name=op.f("pk_run_devices")),
        sa.ForeignKeyConstraint(
            ["job_id", "attempt"],
            ["runs.job_id", "runs.attempt"],
            name=op.f("fk_run_devices_runs"),
            ondelete="CASCADE",
        ),
        sa.CheckConstraint(
            "peak_source IN ('nvml_sampled', 'torch', 'host_rss', 'simulated', 'none')",
            name=op.f("ck_run_devices_peak_source_known"),
        ),
        sa.CheckConstraint(
            "(peak_bytes IS NULL) = (peak_source = 'none')", name=op.f("ck_run_devices_peak_has_source")
        ),
    )
    op.create_index(op.f("ix_run_devices_device_uuid"), "run_devices", ["device_uuid"])


def _create_job_events() -> None:
    op.create_table(
        "job_events",
        sa.Column("epoch", sa.Text, nullable=False),
        sa.Column("event_id", sa.Text, nullable=False),
        sa.Column("job_id", sa.BigInteger, nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("losses", sa.Integer, nullable=False),
        sa.Column("act", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("reason", sa.Text, nullable=True),
        sa.Column("detail", sa.Text, nullable=True),
        sa.PrimaryKeyConstraint("epoch", "event_id", name=op.f("pk_job_events")),
    )
    op.create_index(op.f("ix_job_events_job_id"), "job_events", ["job_id"])


def _create_outbox_cursor() -> None:
    op.create_table(
        "outbox_cursor",
        sa.Column("id", sa.SmallInteger, autoincrement=False, nullable=False),
        sa.Column("epoch", sa.Text, nullable=False),
        sa.Column("last_id", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_outbox_cursor")),
        sa.CheckConstraint("id = 1", name=op.f("ck_outbox_cursor_single_row")),
    )
