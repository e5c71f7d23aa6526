"""Devices whose memory is the host's, for demos, documentation and tests.

A process is on such a device when the environment it was started with lists the device in CUDA_VISIBLE_DEVICES,
and what it holds there is its resident memory, shared equally among the devices listed. So a stranger can be made
by hand, exactly as on a real card: ``CUDA_VISIBLE_DEVICES=sim-HOST-0 python …``.
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
_VISIBLE = b"CUDA_VISIBLE_DEVICES="
_SPARE = b"GPUQUEUE_SPARE="  # as in workers.inside.warm_start
_STAT_BYTES = 4096
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
# Places in /proc/PID/stat, counted from the state, which follows the name's closing bracket; see proc(5).
_FLAGS, _START, _RSS, _ENV_START, _ENV_END = 6, 19, 21, 47, 48
_KERNEL = 0x00200000  # PF_KTHREAD in linux/sched.h: it has no memory of its own
_TICKS = os.sysconf("SC_CLK_TCK")
#: A thread of the kernel that is younger may be about to become a program, in seconds: so the kernel starts those.
YOUNG_S = 1.0


def parse_simulated(text: str) -> list[int]:
    """Return the size in bytes of each device in *text*, like ``sim:4x24G``, ``sim:24G`` or ``sim:2x24G+2x80G``.

    Raises:
        BadRequest: *text* is nothing like that, or asks for no device or too many.

    """
    if "," in text:
        raise BadRequest(f"{text!r} is no simulated device: put a + between kinds, as in {_by_plus(text)}")
    sizes = [size_bytes for part in text.removeprefix(PREFIX).split("+") for size_bytes in _sizes(text, part)]
    if len(sizes) > MAX_DEVICES:
        raise BadRequest(f"{text!r} asks for {len(sizes)} simulated devices: it must be 1 to {MAX_DEVICES}")
    return sizes


def _by_plus(text: str) -> str:
    """Return what *text* may have meant by its commas, which ``gpuqueue simulate`` has between kinds."""
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
    """Devices that exist only here; their memory is really held by processes."""

    def __init__(self, host: str, spec: str) -> None:
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
        self._listed: dict[_Identity, frozenset[str]] = {}
        self._processes = _Processes()

    def devices(self) -> tuple[Device, ...]:
        """Return the devices in the order of their index."""
        return self._devices

    def reading(self, device: Device) -> Reading:
        """Return a look at *device* as it is now.

        Raises:
            DeviceTrouble: *device* is none of these.

        """
        if device.uuid not in self._uuids:
            raise DeviceTrouble(f"there is no simulated device {device.uuid}")
        listed: dict[_Identity, frozenset[str]] = {}
        processes: dict[int, int | None] = {}
        for identity, rss_bytes in self._processes.look():
            uuids = self._devices_of(identity)
            if uuids is None:
                continue
            if _is_lasting(identity):
                listed[identity] = uuids
            if device.uuid in uuids:
                processes[int(identity[0])] = rss_bytes // len(uuids)
        self._listed = listed  # those that are gone are forgotten
        used_bytes = sum(held or 0 for held in processes.values())
        return Reading(
            total_bytes=device.total_bytes, free_bytes=max(0, device.total_bytes - used_bytes), processes=processes
        )

    def used_by(self, reading: Reading, pids: Collection[int]) -> int | None:
        """Return the bytes that the processes *pids* hold in *reading*."""
        return sum(reading.processes.get(pid) or 0 for pid in set(pids))

    def _devices_of(self, identity: _Identity) -> frozenset[str] | None:
        """Return the devices that a process lists; looked up once in its life, but None while it waits for a job."""
        known = self._listed.get(identity)
        if known is None:
            named = _visible(int(identity[0]))
            return None if named is None else named & self._uuids
        return known


#: What tells one program in one process from every other: pid, start, and the place of its environment, because exec()
#: changes the environment but neither pid nor start. As the kernel writes them: they are compared, never counted with.
_Identity = tuple[str, bytes, bytes, bytes]


def _is_lasting(identity: _Identity) -> bool:
    """Return whether the kernel told where the environment is: not in the middle of exec(), nor of a stranger."""
    return identity[2] != b"0"


class _Processes:
    """The processes of this host that have memory of their own."""

    def __init__(self) -> None:
        #: Threads of the kernel, mostly more than all others, by name and inode: another inode is another process.
        self._kernels: dict[str, int] = {}

    def look(self) -> Iterator[tuple[_Identity, int]]:
        """Yield every process with its resident bytes."""
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
    """Return the fields of /proc/PID/stat from the state on, None of a process that is gone."""
    try:
        stat = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)  # no file object: a look is thousands
    except OSError:
        return None
    try:
        raw = os.read(stat, _STAT_BYTES)
    except OSError:
        return None
    finally:
        os.close(stat)
    return raw[raw.rindex(b")") + 2 :].split()  # the name is in brackets and may itself hold any character


def _visible(pid: int) -> frozenset[str] | None:
    """Return what process *pid* lists in CUDA_VISIBLE_DEVICES; nothing where its environment cannot be read.

    None for a spare: its environment changes when it becomes a job.
    """
    try:
        environ = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return frozenset()
    for entry in environ.split(b"\0"):
        if entry.startswith(_SPARE):
            return None
        if entry.startswith(_VISIBLE):
            names = entry[len(_VISIBLE) :].decode(errors="replace").split(",")
            return frozenset(name.strip() for name in names)
    return frozenset()
