"""Devices whose memory is the host's, for demos, documentation and tests.

A process is on such a device when the environment it was started with lists the device in CUDA_VISIBLE_DEVICES,
and what it holds there is its resident memory, shared equally among the devices listed. So a stranger can be made
by hand, exactly as on a real card: ``CUDA_VISIBLE_DEVICES=sim-HOST-0 python …``.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from gpuqueue.device import Device, DeviceKind, Reading
from gpuqueue.errors import BadRequest
from gpuqueue.frozen import dataclass
from gpuqueue.units import format_bytes, parse_bytes
from workers.devices.backend import DeviceTrouble, Driverless

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

PREFIX = "sim:"
MAX_DEVICES = 64

_SPEC = re.compile(r"(?:(\d{1,9})x)?(.+)", re.IGNORECASE)
_VISIBLE = b"CUDA_VISIBLE_DEVICES="
_SPARE = b"GPUQUEUE_SPARE="  # as in workers.inside.spare
_STAT_BYTES = 4096
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
# Places in /proc/PID/stat, counted from the state, which follows the name's closing bracket; see proc(5).
_START, _RSS, _ENV_START, _ENV_END = 19, 21, 47, 48


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
        for identity, rss_bytes in _processes():
            if not rss_bytes:  # a thread of the kernel, mostly: nothing to look up
                continue
            uuids = self._devices_of(identity)
            if uuids is None:
                continue
            if identity.lasting:
                listed[identity] = uuids
            if device.uuid in uuids:
                processes[identity.pid] = rss_bytes // len(uuids)
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
            named = _visible(identity.pid)
            return None if named is None else named & self._uuids
        return known


@dataclass(frozen=True, slots=True)
class _Identity:
    """What tells one program in one process from every other.

    The place of its environment is part of it, because exec() changes the environment but neither pid nor start.
    """

    pid: int
    start: int
    env_start: int
    env_end: int

    @property
    def lasting(self) -> bool:
        """Whether the kernel told where the environment is: not in the middle of exec(), nor of a stranger."""
        return self.env_start != 0


def _processes() -> Iterator[tuple[_Identity, int]]:
    """Yield every process with its resident bytes."""
    for name in os.listdir("/proc"):  # noqa: PTH208 - a Path for each process makes the look twice as slow
        if not name.isdigit():
            continue
        try:
            stat = os.open(f"/proc/{name}/stat", os.O_RDONLY | os.O_CLOEXEC)  # no file object: a look is thousands
        except OSError:
            continue
        try:
            raw = os.read(stat, _STAT_BYTES)
        except OSError:
            continue
        finally:
            os.close(stat)
        # The name is in brackets and may itself hold any character.
        fields = raw[raw.rindex(b")") + 2 :].split()
        identity = _Identity(int(name), int(fields[_START]), int(fields[_ENV_START]), int(fields[_ENV_END]))
        yield identity, int(fields[_RSS]) * _PAGE_BYTES


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
