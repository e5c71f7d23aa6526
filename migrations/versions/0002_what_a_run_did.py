"""Activity, timelines and start kinds of runs, the last run of each job, and dead letters."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

ACTIVITY = ("first_memory_s", "utilisation_mean", "utilisation_max", "temperature_max_c")
OLD_SOURCES = "'nvml_sampled', 'torch', 'host_rss', 'simulated', 'none'"
SOURCES = "'nvml_accounting', 'nvml_sampled', 'torch', 'device_delta', 'host_rss', 'simulated', 'none'"
KNOWN = "ck_run_devices_peak_source_known"

#: Results of a job's last run, stored with the job: the history is filtered and sorted by them.
LAST_RUN = {"ending": sa.Text, "exit_code": sa.Integer, "duration_s": sa.Double, "peak_bytes": sa.BigInteger}
INDEXES = {
    "ix_jobs_name_id": ("jobs", ["name", "id"], None),
    "ix_jobs_host_id": ("jobs", ["host", "id"], None),
    "ix_jobs_duration_s_id": ("jobs", ["duration_s", "id"], None),
    "ix_jobs_peak_bytes_id": ("jobs", ["peak_bytes", "id"], None),
    "ix_jobs_ending_id": ("jobs", ["ending", "id"], "ending <> 'exited'"),
    "ix_jobs_exit_code_id": ("jobs", ["exit_code", "id"], "exit_code <> 0"),
    "ix_runs_ended_at": ("runs", ["ended_at"], None),
    "ix_run_devices_device_uuid_job_id": ("run_devices", ["device_uuid", "job_id"], None),
}


def upgrade() -> None:
    """Add the columns, the tables of timelines and dead letters, and the indexes."""
    op.add_column("runs", sa.Column("peak_at_once_bytes", sa.BigInteger, nullable=True))
    op.add_column("runs", sa.Column("start_kind", sa.Text, nullable=True))
    with op.batch_alter_table("run_devices") as run_devices:
        for name in ACTIVITY:
            run_devices.add_column(sa.Column(name, sa.Double, nullable=True))
        run_devices.drop_constraint(op.f(KNOWN), type_="check")
        run_devices.create_check_constraint(op.f(KNOWN), f"peak_source IN ({SOURCES})")
    op.create_table(
        "run_timelines",
        sa.Column("job_id", sa.BigInteger, autoincrement=False, nullable=False),
        sa.Column("attempt", sa.Integer, autoincrement=False, nullable=False),
        sa.Column("device_uuid", sa.Text, nullable=False),
        sa.Column("step_s", sa.Double, nullable=False),
        sa.Column("bytes", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("job_id", "attempt", "device_uuid", name=op.f("pk_run_timelines")),
        sa.ForeignKeyConstraint(
            ["job_id", "attempt", "device_uuid"],
            ["run_devices.job_id", "run_devices.attempt", "run_devices.device_uuid"],
            name=op.f("fk_run_timelines_run_devices"),
            ondelete="CASCADE",
        ),
        sa.CheckConstraint("step_s > 0", name=op.f("ck_run_timelines_step_positive")),
    )
    op.create_table(
        "unwritten_events",
        sa.Column("epoch", sa.Text, autoincrement=False, nullable=False),
        sa.Column("event_id", sa.Text, autoincrement=False, nullable=False),
        sa.Column("job_id", sa.BigInteger, nullable=False),
        sa.Column("act", sa.Text, nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("why", sa.Text, nullable=False),
        sa.Column("fields", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("epoch", "event_id", name=op.f("pk_unwritten_events")),
    )
    _tell_jobs_of_their_last_run()
    for index, (table, columns, where) in INDEXES.items():
        only = sa.text(where) if where else None
        op.create_index(op.f(index), table, columns, sqlite_where=only, postgresql_where=only)
    op.drop_index(op.f("ix_run_devices_device_uuid"), "run_devices")


def _tell_jobs_of_their_last_run() -> None:
    """Add the columns by which the history is filtered and sorted, and fill them for existing jobs."""
    for name, kind in LAST_RUN.items():
        op.add_column("jobs", sa.Column(name, kind, nullable=True))
    last = "FROM runs WHERE runs.job_id = jobs.id AND runs.attempt = jobs.attempt"
    for name in ("ending", "exit_code", "duration_s"):
        op.execute(f"UPDATE jobs SET {name} = (SELECT {name} {last})")  # noqa: S608 - names of our own
    op.execute(
        "UPDATE jobs SET peak_bytes = (SELECT CASE WHEN count(*) = count(d.peak_bytes) THEN sum(d.peak_bytes) END "
        "FROM run_devices AS d WHERE d.job_id = jobs.id AND d.attempt = jobs.attempt)"
    )


def downgrade() -> None:
    """Drop the additions.

    A peak from ``nvml_accounting`` is relabelled ``nvml_sampled``. A peak from ``device_delta`` is dropped.
    """
    op.drop_table("unwritten_events")
    op.create_index(op.f("ix_run_devices_device_uuid"), "run_devices", ["device_uuid"])
    for index, (table, _, _) in INDEXES.items():
        op.drop_index(op.f(index), table)
    for name in LAST_RUN:
        op.drop_column("jobs", name)
    op.drop_table("run_timelines")
    op.execute("UPDATE run_devices SET peak_source = 'nvml_sampled' WHERE peak_source = 'nvml_accounting'")
    op.execute("UPDATE run_devices SET peak_source = 'none', peak_bytes = NULL WHERE peak_source = 'device_delta'")
    with op.batch_alter_table("run_devices") as run_devices:
        run_devices.drop_constraint(op.f(KNOWN), type_="check")
        run_devices.create_check_constraint(op.f(KNOWN), f"peak_source IN ({OLD_SOURCES})")
        for name in reversed(ACTIVITY):
            run_devices.drop_column(name)
    with op.batch_alter_table("runs") as runs:
        runs.drop_column("start_kind")
        runs.drop_column("peak_at_once_bytes")
