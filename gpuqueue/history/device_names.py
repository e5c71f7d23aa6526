"""The devices in the history database, and their display names."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import sqlalchemy as sa

from gpuqueue.history.tables import run_devices, runs
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.device import DeviceKind

#: Kinds of devices that are named by their kind: a host serves one of them.
WITHOUT_INDEX = frozenset((DeviceKind.CPU.value, DeviceKind.SLURM.value))


def device_labels(connection: sa.Connection, uuids: Iterable[str]) -> dict[str, str]:
    """Return the display name of each device, such as ``nodeA:3``. It is the UUID if nothing else is known."""
    labels = {}
    for uuid in uuids:
        row = _newest(connection, uuid)
        index = None if row is None else row.kind if row.kind in WITHOUT_INDEX else row.host_index
        labels[uuid] = uuid if row is None or index is None else f"{row.host}:{index}"
    return labels


def _newest(connection: sa.Connection, uuid: str) -> sa.Row[Any, Any, Any, Any] | None:
    """Return index, kind and host of a device by its newest run that reported them, and when that was claimed."""
    newest = (
        sa.select(run_devices.c.host_index, run_devices.c.kind, runs.c.host, runs.c.claimed_at)
        .join(runs, (runs.c.job_id == run_devices.c.job_id) & (runs.c.attempt == run_devices.c.attempt))
        .where(run_devices.c.device_uuid == uuid, run_devices.c.kind.is_not(None))
        .order_by(run_devices.c.job_id.desc())
        .limit(1)
    )
    return connection.execute(newest).first()


def gpu_hosts(connection: sa.Connection) -> set[str]:
    """Return the hosts whose latest run had a GPU: one that has run on its CPU since then may have lost them for good.

    Runs on simulated devices do not count.
    """
    rows = [row for each in devices(connection) if (row := _newest(connection, each.uuid)) is not None]
    rows = sorted((row for row in rows if row.kind != DeviceKind.SIMULATED.value), key=lambda row: row.claimed_at)
    latest = {row.host: row.kind for row in rows}
    return {host for host, kind in latest.items() if kind == DeviceKind.GPU.value}


@dataclass(frozen=True, kw_only=True, slots=True)
class KnownDevice:
    """A device in the history database: its name in the newest run that reported one, and its range of jobs."""

    uuid: str
    name: str | None
    first_job: int
    last_job: int


def devices(connection: sa.Connection) -> list[KnownDevice]:
    """Return every device in the history database. Each costs a few steps in the index, not a full scan."""
    column = run_devices.c.device_uuid
    smallest = sa.select(sa.func.min(column).label("uuid"))
    each = smallest.cte("each_device", recursive=True)
    following = smallest.where(column > each.c.uuid).scalar_subquery()
    each = each.union_all(sa.select(following).where(each.c.uuid.is_not(None)))
    newest_name = (
        sa.select(run_devices.c.name)
        .where(column == each.c.uuid, run_devices.c.name.is_not(None))
        .order_by(run_devices.c.job_id.desc())
        .limit(1)
    )
    first, last = (
        sa.select(end(run_devices.c.job_id)).where(column == each.c.uuid) for end in (sa.func.min, sa.func.max)
    )
    found = sa.select(
        each.c.uuid,
        newest_name.scalar_subquery().label("name"),
        first.scalar_subquery().label("first_job"),
        last.scalar_subquery().label("last_job"),
    ).where(each.c.uuid.is_not(None))
    return [KnownDevice(**row) for row in connection.execute(found).mappings()]
