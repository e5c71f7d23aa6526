"""Add what jobs report about their runs: metrics with their curves, parameters and a result."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the tables and add the columns. Earlier runs have none of them."""
    for name in ("params", "result"):
        op.add_column("runs", sa.Column(name, sa.Text))
    op.create_table(
        "run_metrics",
        sa.Column("job_id", sa.BigInteger, nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("last_value", sa.Double),
        sa.Column("min_value", sa.Double),
        sa.Column("max_value", sa.Double),
        sa.Column("detail", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("job_id", "attempt", "name", name="pk_run_metrics"),
        sa.ForeignKeyConstraint(
            ["job_id", "attempt"], ["runs.job_id", "runs.attempt"], name="fk_run_metrics_runs", ondelete="CASCADE"
        ),
    )
    op.create_index("ix_run_metrics_name_last_value_job_id", "run_metrics", ["name", "last_value", "job_id"])
    op.create_table(
        "run_curves",
        sa.Column("job_id", sa.BigInteger, nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("points", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("job_id", "attempt", "name", name="pk_run_curves"),
        sa.ForeignKeyConstraint(
            ["job_id", "attempt", "name"],
            ["run_metrics.job_id", "run_metrics.attempt", "run_metrics.name"],
            name="fk_run_curves_run_metrics",
            ondelete="CASCADE",
        ),
    )
