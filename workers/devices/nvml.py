"""NVIDIA GPUs through NVML. Only the files nvml*.py import pynvml, and they are imported only if GPUs are wanted."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import Any

import pynvml

from gpuqueue.model.device import Device, DeviceKind, Health, Reading, Utilisation
from workers.devices.nvml_calls import NO_DRIVER, SESSION_GONE, UNSUPPORTED, Refusal, Session, text
from workers.devices.nvml_health import health_of
from workers.devices.nvml_memory import accounted, memory, sample
from workers.devices.nvml_utilisation import utilisations

_log = logging.getLogger(__name__)

#: The index of a MIG instance is 100 (card + 1) + slot. It never equals the index of a card, even after repartitioning.
_CARD_STEP = 100


class NvmlBackend:
    """The NVIDIA GPUs of this host. It opens its session at the first call, and again after a session error."""

    def __init__(self) -> None:
        self._session = Session()
        #: The last known devices by UUID, each with the index of its card. Devices of a silent card stay in it.
        self._known: dict[str, tuple[int, Device]] = {}
        #: The time of the newest utilisation by process that was read, by UUID, in microseconds on the driver's clock.
        self._read_us: dict[str, int] = {}

    @classmethod
    def probe(cls) -> NvmlBackend | None:
        """Return a backend with an open session, or None if there is no driver.

        Raises:
            DeviceTrouble: there is a driver, but it is broken.

        """
        backend = cls()
        try:
            backend._session.open()
        except Refusal as refusal:
            if refusal.code in NO_DRIVER:
                return None
            raise
        return backend

    def devices(self) -> tuple[Device, ...]:
        """Return this host's GPUs in the order of their index. A card in MIG mode is replaced by its instances.

        A GPU that stops answering stays in the list. A GPU that has never answered has no known UUID and is left out.
        """
        found = [self._identify(card) for card in range(int(self._session.ask(pynvml.nvmlDeviceGetCount)))]
        silent = {card: each for card, each in enumerate(found) if isinstance(each, Refusal)}
        answering = {
            device.uuid: (card, device)
            for card, each in enumerate(found)
            if not isinstance(each, Refusal)
            for device in each
        }
        remembered = {uuid: known for uuid, known in self._known.items() if known[0] in silent}
        self._known = remembered | answering
        if silent and not self._known:
            raise next(iter(silent.values()))
        for card in sorted(silent.keys() - {card for card, _ in remembered.values()}):
            _log.warning("GPU %d is left out: %s", card, silent[card])
        return tuple(sorted((device for _, device in self._known.values()), key=lambda device: device.index))

    def reading(self, device: Device) -> Reading:
        """Return a sample of the memory of *device*."""
        total_bytes, free_bytes, held = sample(self._session, self._session.handle(device.uuid))
        return Reading(total_bytes=total_bytes, free_bytes=min(free_bytes, total_bytes), processes=held)

    def used_by(self, reading: Reading, pids: Collection[int]) -> int | None:
        """Return the bytes that *pids* use in *reading*; None if the driver does not report those of one of them."""
        total_bytes = 0
        for pid in set(pids) & reading.processes.keys():
            held_bytes = reading.processes[pid]
            if held_bytes is None:
                return None
            total_bytes += held_bytes
        return total_bytes

    def health(self, device: Device) -> Health:
        """Return the current health of *device*. Values that a MIG instance lacks are those of its card."""
        parent = None if device.mig_parent is None else self._session.handle(device.mig_parent)
        return health_of(self._session, self._session.handle(device.uuid), parent)

    def utilisations(self, device: Device) -> Mapping[int, Utilisation] | None:
        """Return the utilisation of *device* by each process since the last call; None for a MIG instance."""
        if device.mig_parent is not None:  # the figures of its card cover other instances too
            return None
        found = utilisations(self._session, self._session.handle(device.uuid), self._read_us.get(device.uuid, 0))
        if found is None:
            return None
        by_pid, self._read_us[device.uuid] = found
        return by_pid

    def accounted(self, device: Device, pids: Collection[int]) -> Mapping[int, int]:
        """Return the driver's own peak memory of each process of *pids*, in bytes; empty if accounting is off."""
        return accounted(self._session, self._session.handle(device.uuid), pids)

    def distance(self, a: Device, b: Device) -> int | None:
        """Return the distance of two GPUs: 0 for a direct NVLink or the same card, None if it is unknown."""
        cards = [device.mig_parent or device.uuid for device in (a, b)]
        handles = [self._session.handle(card) for card in cards]
        if cards[0] == cards[1]:
            return 0
        # This call also reports links through an NVSwitch. Listing the links of one card would miss them.
        link = self._session.maybe("nvmlDeviceGetP2PStatus", *handles, pynvml.NVML_P2P_CAPS_INDEX_NVLINK)
        if link == pynvml.NVML_P2P_STATUS_OK:
            return 0
        level = self._session.maybe("nvmlDeviceGetTopologyCommonAncestor", *handles)
        return None if level is None else int(level)

    def _identify(self, card: int) -> tuple[Device, ...] | Refusal:
        """Return the GPU at index *card* or its MIG instances, or the error if only this GPU does not answer."""
        try:
            handle = self._session.ask(pynvml.nvmlDeviceGetHandleByIndex, card)
            bus = text(self._session.ask(pynvml.nvmlDeviceGetPciInfo, handle).busId)
            mode = self._session.maybe("nvmlDeviceGetMigMode", handle, forgive=UNSUPPORTED)
            if mode is None or mode[0] != pynvml.NVML_DEVICE_MIG_ENABLE:
                return (self._device(handle, card, bus),)
            return self._instances(handle, card, bus)
        except Refusal as refusal:
            if refusal.code in SESSION_GONE:
                raise
            return refusal

    def _instances(self, card_handle: Any, card: int, bus: str) -> tuple[Device, ...]:
        """Return the MIG instances of a card. No job can use the card itself."""
        parent = text(self._session.ask(pynvml.nvmlDeviceGetUUID, card_handle))
        slots = range(int(self._session.ask(pynvml.nvmlDeviceGetMaxMigDeviceCount, card_handle)))
        hole = frozenset({pynvml.NVML_ERROR_NOT_FOUND})
        found = {
            slot: handle
            for slot in slots
            if (handle := self._session.maybe("nvmlDeviceGetMigDeviceHandleByIndex", card_handle, slot, forgive=hole))
        }
        if not found:
            _log.warning("GPU %d (%s) is in MIG mode and has no instance: no job can use it", card, parent)
        return tuple(
            self._device(handle, _CARD_STEP * (card + 1) + slot, bus, parent) for slot, handle in found.items()
        )

    def _device(self, handle: Any, index: int, bus: str, parent: str | None = None) -> Device:
        """Return the device for the GPU or MIG instance *handle*."""
        return Device(
            uuid=text(self._session.ask(pynvml.nvmlDeviceGetUUID, handle)),
            index=index,
            name=text(self._session.ask(pynvml.nvmlDeviceGetName, handle)),
            kind=DeviceKind.GPU,
            total_bytes=int(memory(self._session, handle).total),
            pci_bus=bus,
            mig_parent=parent,
        )
