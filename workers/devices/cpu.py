"""The host's CPU and memory as one device."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.device import Device, DeviceKind, Reading
from workers.devices.backend import Driverless

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class CpuBackend(Driverless):
    """This host as one device, within the memory limits of the cgroup that the worker runs in.

    *no_gpu* is why no GPU was found, if the CPU is served for that reason.
    """

    def __init__(
        self,
        host: str,
        *,
        no_gpu: str | None = None,
        cgroups: Path = Path("/sys/fs/cgroup"),
        membership: Path = Path("/proc/self/cgroup"),
    ) -> None:
        self._limits = tuple(_limits(cgroups, membership))
        self._device = Device(
            uuid=f"cpu-{host}",
            index=0,
            name=_model(),
            kind=DeviceKind.CPU,
            total_bytes=self._total_bytes(),
            no_gpu=no_gpu,
        )

    def devices(self) -> tuple[Device, ...]:
        """Return the one device."""
        return (self._device,)

    def reading(self, device: Device) -> Reading:  # noqa: ARG002 - there is only the one
        """Return a sample of the host's memory. It lists no processes; `used_by` measures them one by one."""
        total_bytes = self._total_bytes()
        rooms = [room for limit in self._limits if (room := limit.room_bytes()) is not None]
        free_bytes = min([int(psutil.virtual_memory().available), total_bytes, *rooms])
        return Reading(total_bytes=total_bytes, free_bytes=max(0, free_bytes), listed=False)

    def used_by(self, reading: Reading, pids: Collection[int]) -> int | None:  # noqa: ARG002 - measured now, not in the sample
        """Return the resident memory of the living processes among *pids*, in bytes."""
        return sum(resident_bytes(pid) for pid in set(pids))

    def _total_bytes(self) -> int:
        """Return the host's memory or the smallest cgroup limit, in bytes."""
        ceilings = [ceiling for limit in self._limits if (ceiling := limit.ceiling_bytes()) is not None]
        return min([int(psutil.virtual_memory().total), *ceilings])


def resident_bytes(pid: int) -> int:
    """Return the resident memory of process *pid* in bytes; 0 if the process is gone or hidden from this account."""
    try:
        fields = Path(f"/proc/{pid}/statm").read_text().split()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return 0
    return int(fields[1]) * _PAGE_BYTES


@dataclass(frozen=True, slots=True)
class _Limit:
    """The memory files of one cgroup, whose names differ between cgroup v1 and v2."""

    ceiling: Path
    usage: Path
    stat: Path
    reclaimable: str

    def ceiling_bytes(self) -> int | None:
        """Return the limit in bytes, None if there is none."""
        return _number(self.ceiling)

    def room_bytes(self) -> int | None:
        """Return the bytes left under the limit, None if there is no limit. Inactive page cache counts as left."""
        ceiling_bytes, usage_bytes = _number(self.ceiling), _number(self.usage)
        if ceiling_bytes is None or usage_bytes is None:
            return None
        return ceiling_bytes - max(0, usage_bytes - self._reclaimable_bytes())

    def _reclaimable_bytes(self) -> int:
        try:
            lines = self.stat.read_text().splitlines()
        except OSError:
            return 0
        return next((int(line.split()[1]) for line in lines if line.startswith(f"{self.reclaimable} ")), 0)


def _limits(cgroups: Path, membership: Path) -> Iterator[_Limit]:
    """Yield every memory limit on this process: that of its cgroup and those of the parent cgroups."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, inside = line.split(":", 2)
        if controllers == "":
            for group in _groups(cgroups, inside):
                yield _Limit(group / "memory.max", group / "memory.current", group / "memory.stat", "inactive_file")
        elif "memory" in controllers.split(","):
            for group in _groups(cgroups / "memory", inside):
                yield _Limit(
                    group / "memory.limit_in_bytes",
                    group / "memory.usage_in_bytes",
                    group / "memory.stat",
                    "total_inactive_file",
                )


def _groups(root: Path, inside: str) -> Iterator[Path]:
    """Yield the directory of the cgroup *inside* and of each parent, up to *root*.

    Inside a container *inside* can be a path of the host. Then only *root* exists, the cgroup of the container.
    """
    parts = [part for part in inside.split("/") if part]
    if ".." in parts:
        parts = []
    for depth in range(len(parts), -1, -1):
        yield root.joinpath(*parts[:depth])


def _number(path: Path) -> int | None:
    """Return the number in the file *path*, None if the file is unreadable or says ``max``."""
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _model() -> str:
    """Return the name of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine() or "CPU"
