"""Simulated devices that use host memory, for demos, documentation and tests.

A process is on such a device if the environment it was started with lists the device in CUDA_VISIBLE_DEVICES, by its
UUID, or in a job also by its index. The
memory it uses there is its resident memory, divided equally among the listed devices. An external process can be
started by hand, as on a real card: ``CUDA_VISIBLE_DEVICES=sim-HOST-0 python …``. Two sites on one machine have devices
of the same UUIDs, so the jobs of another site, whose run directories are elsewhere, are left out.
"""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

from gpuqueue.errors import BadRequest
from gpuqueue.model.device import Device, DeviceKind, Reading
from gpuqueue.text.units import format_bytes, parse_bytes
from workers.devices.backend import DeviceTrouble, Driverless

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

PREFIX = "sim:"
MAX_DEVICES = 64

_SPEC = re.compile(r"(?:(\d{1,9})x)?(.+)", re.IGNORECASE)
_VISIBLE = b"CUDA_VISIBLE_DEVICES"
_RUN_DIR = b"GPUQUEUE_RUN_DIR"
_WARM_ROOM = b"GPUQUEUE_WARM_ROOM"  # `ROOM` in workers.inside.proc_files
_STAT_BYTES = 4096
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
# Indexes of fields in /proc/PID/stat, counted from the state, the first field after the name; see proc(5).
_FLAGS, _START, _RSS, _ENV_START, _ENV_END = 6, 19, 21, 47, 48
_KERNEL = 0x00200000  # PF_KTHREAD in linux/sched.h: a kernel thread, without memory of its own
_TICKS = os.sysconf("SC_CLK_TCK")
#: Age below which a kernel thread may still become a program, in seconds. The kernel starts helper programs this way.
YOUNG_S = 1.0


def parse_simulated(text: str) -> list[int]:
    """Return the size in bytes of each device in *text*, like ``sim:4x24G``, ``sim:24G`` or ``sim:2x24G+2x80G``.

    Raises:
        BadRequest: *text* is invalid, or asks for no device or too many.

    """
    if "," in text:
        raise BadRequest(f"{text!r} is no simulated device: put a + between kinds, as in {_by_plus(text)}")
    sizes = [size_bytes for part in text.removeprefix(PREFIX).split("+") for size_bytes in _sizes(text, part)]
    if len(sizes) > MAX_DEVICES:
        raise BadRequest(f"{text!r} asks for {len(sizes)} simulated devices: it must be 1 to {MAX_DEVICES}")
    return sizes


def _by_plus(text: str) -> str:
    """Return *text* with its commas replaced by plus signs, or an example if that is invalid too.

    Users write commas because ``gpuqueue simulate`` separates kinds of devices by commas.
    """
    meant = PREFIX + "+".join(part.strip().removeprefix(PREFIX) for part in text.split(","))
    try:
        parse_simulated(meant)
    except BadRequest:
        return "sim:1x8G+1x16G"
    return meant


def _sizes(text: str, part: str) -> list[int]:
    """Return the sizes in one *part* of *text*."""
    match = _SPEC.fullmatch(part.strip())
    if not match:
        raise BadRequest(f"{text!r} is no simulated device: write it like sim:4x24G or sim:24G")
    count = int(match[1] or 1)
    if not 1 <= count <= MAX_DEVICES:
        raise BadRequest(f"{text!r} asks for {count} simulated devices: it must be 1 to {MAX_DEVICES}")
    try:
        size_bytes = parse_bytes(match[2])
    except BadRequest as error:
        raise BadRequest(f"{text!r} is no simulated device: {error}") from error
    return [size_bytes] * count


class SimulatedBackend(Driverless):
    """Devices that exist only in this backend. Their used memory is the resident memory of real processes.

    *runs_dir* holds the run directories of this site. With None the jobs of all sites count.
    """

    def __init__(self, host: str, spec: str, runs_dir: Path | None = None) -> None:
        self._runs_dir = None if runs_dir is None else runs_dir.resolve()
        self._devices = tuple(
            Device(
                uuid=f"sim-{host}-{index}",
                index=index,
                name=f"Simulated {format_bytes(size_bytes)}",
                kind=DeviceKind.SIMULATED,
                total_bytes=size_bytes,
            )
            for index, size_bytes in enumerate(parse_simulated(spec))
        )
        self._uuids = frozenset(device.uuid for device in self._devices)
        self._by_index = {str(device.index): device.uuid for device in self._devices}
        self._listed: dict[_Identity, frozenset[str]] = {}
        self._processes = _Processes()

    def devices(self) -> tuple[Device, ...]:
        """Return the devices in the order of their index."""
        return self._devices

    def reading(self, device: Device) -> Reading:
        """Return a sample of the memory of *device*."""
        if device.uuid not in self._uuids:
            raise DeviceTrouble(f"there is no simulated device {device.uuid}")
        listed: dict[_Identity, frozenset[str]] = {}
        processes: dict[int, int | None] = {}
        for identity, rss_bytes in self._processes.sample():
            uuids = self._devices_of(identity)
            if uuids is None:
                continue
            if _is_lasting(identity):
                listed[identity] = uuids
            if device.uuid in uuids:
                processes[int(identity[0])] = rss_bytes // len(uuids)
        self._listed = listed  # drops the processes that are gone
        used_bytes = sum(held or 0 for held in processes.values())
        return Reading(
            total_bytes=device.total_bytes, free_bytes=max(0, device.total_bytes - used_bytes), processes=processes
        )

    def used_by(self, reading: Reading, pids: Collection[int]) -> int | None:
        """Return the bytes that the processes *pids* use in *reading*."""
        return sum(reading.processes.get(pid) or 0 for pid in set(pids))

    def _devices_of(self, identity: _Identity) -> frozenset[str] | None:
        """Return the devices that a process lists, None for a warm interpreter. Known results are cached."""
        known = self._listed.get(identity)
        if known is not None:
            return known
        environ = _environ(int(identity[0]))
        if _WARM_ROOM in environ:  # its environment changes when it becomes a job
            return None
        run_dir = environ.get(_RUN_DIR)
        names = [name.strip() for name in environ.get(_VISIBLE, b"").decode(errors="replace").split(",")]
        if run_dir:  # elsewhere an index is one of a real card
            names = [self._by_index.get(name, name) for name in names]
        uuids = frozenset(names) & self._uuids
        return frozenset() if uuids and self._is_of_another_site(run_dir) else uuids

    def _is_of_another_site(self, run_dir: bytes | None) -> bool:
        """Return whether a process with this run directory belongs to a job of another site on this machine."""
        if not run_dir or self._runs_dir is None:
            return False
        return self._runs_dir not in Path(os.fsdecode(run_dir)).resolve().parents


#: Identifies one program in one process: pid, start time, and the start and end address of its environment. The
#: addresses are included because exec() changes the environment but neither pid nor start time. All are kept as the
#: kernel writes them, because they are only compared.
_Identity = tuple[str, bytes, bytes, bytes]


def _is_lasting(identity: _Identity) -> bool:
    """Return whether the address of the environment is known. It is 0 during exec(), and for other users' processes."""
    return identity[2] != b"0"


class _Processes:
    """The processes of this host that have memory of their own."""

    def __init__(self) -> None:
        #: Inodes in /proc of the known kernel threads, by pid. They are cached because most processes of a host are
        #: kernel threads. A reused pid has another inode.
        self._kernels: dict[str, int] = {}

    def sample(self) -> Iterator[tuple[_Identity, int]]:
        """Yield every process that has resident memory, with its resident bytes."""
        young = (time.clock_gettime(time.CLOCK_BOOTTIME) - YOUNG_S) * _TICKS
        kernels: dict[str, int] = {}
        with os.scandir("/proc") as entries:
            for entry in entries:
                name = entry.name
                if not name.isdigit():
                    continue
                inode = entry.inode()
                if self._kernels.get(name) == inode:
                    kernels[name] = inode
                    continue
                fields = _stat(name)
                if fields is None:
                    continue
                if int(fields[_FLAGS]) & _KERNEL and int(fields[_START]) < young:
                    kernels[name] = inode
                if fields[_RSS] != b"0":
                    identity = (name, fields[_START], fields[_ENV_START], fields[_ENV_END])
                    yield identity, int(fields[_RSS]) * _PAGE_BYTES
        self._kernels = kernels


def _stat(pid: str) -> list[bytes] | None:
    """Return the fields of /proc/PID/stat from the state on, None if the process is gone."""
    try:
        # Without a file object, for speed: one sample reads thousands of these files.
        stat = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        raw = os.read(stat, _STAT_BYTES)
    except OSError:
        return None
    finally:
        os.close(stat)
    return raw[raw.rindex(b")") + 2 :].split()  # the name is in parentheses and may hold any character


def _environ(pid: int) -> dict[bytes, bytes]:
    """Return the environment that process *pid* was started with; empty if it is unreadable."""
    try:
        entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return {}
    pairs = (entry.partition(b"=") for entry in reversed(entries))  # reversed: the first entry of a name counts
    return {name: value for name, _, value in pairs}
