"""Display names of the devices in the history database."""

from __future__ import annotations

from collections.abc import Iterable

import sqlalchemy as sa

from gpuqueue.history.tables import run_devices, runs
from gpuqueue.model.device import DeviceKind


def device_labels(connection: sa.Connection, uuids: Iterable[str]) -> dict[str, str]:
    """Return the display name of each device, such as ``nodeA:3``. It is the UUID if nothing else is known."""
    labels = {}
    for uuid in uuids:
        newest = (
            sa.select(run_devices.c.host_index, run_devices.c.kind, runs.c.host)
            .join(runs, (runs.c.job_id == run_devices.c.job_id) & (runs.c.attempt == run_devices.c.attempt))
            .where(run_devices.c.device_uuid == uuid, run_devices.c.kind.is_not(None))
            .order_by(run_devices.c.job_id.desc())
            .limit(1)
        )
        row = connection.execute(newest).first()
        index = "cpu" if row and row.kind == DeviceKind.CPU.value else row.host_index if row else None
        labels[uuid] = uuid if row is None or index is None else f"{row.host}:{index}"
    return labels
