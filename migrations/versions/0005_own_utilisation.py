"""Add how much each run used its devices, as far as the driver reports it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns. They stay NULL for earlier runs, of which only the use by all processes was measured."""
    for name in ("own_utilisation_mean", "own_utilisation_p95", "own_bandwidth_mean", "own_bandwidth_p95"):
        op.add_column("run_devices", sa.Column(name, sa.Double))
