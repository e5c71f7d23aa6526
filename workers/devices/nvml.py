"""NVIDIA GPUs through NVML: which there are, and the memory, health and utilisation of each.

Only the files nvml*.py import pynvml, and they are imported only if GPUs are requested. The functions below the backend
raise Refusal if NVML gives an error that they do not handle. A call that a card does not support leaves only its own
field of the health None.
"""

from __future__ import annotations

import logging
import math
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import fields, replace
from datetime import datetime, timezone
from typing import Any

import pynvml

from gpuqueue.model.device import (
    EXCLUSIVE_PROCESS,
    FAILED,
    HARDWARE_SLOWDOWN,
    HARDWARE_THERMAL,
    MIG_STEP,
    PENDING,
    POWER_BRAKE,
    PROHIBITED,
    SOFTWARE_THERMAL,
    Device,
    DeviceKind,
    Health,
    Reading,
    Utilisation,
    Xid,
)
from workers.devices.nvml_calls import NO_DRIVER, UNSUPPORTED, Refusal, Session, text

_log = logging.getLogger(__name__)

# Constants of nvml.h, written as numbers because older versions of pynvml lack some of the names.
_GPU_SENSOR = 0
_SLOWDOWN, _GPU_MAX = 1, 3
_SLOWDOWN_TLIMIT, _GPU_MAX_TLIMIT = 194, 196
_UNCORRECTED, _SINCE_THE_DRIVER_STARTED = 1, 0
#: Throttle reasons by bit. The other bits (idle, clocks set by a user, the normal power cap) are not alarming.
_THROTTLED = {0x8: HARDWARE_SLOWDOWN, 0x20: SOFTWARE_THERMAL, 0x40: HARDWARE_THERMAL, 0x80: POWER_BRAKE}
#: Compute modes. Mode 1 (exclusive to a thread) is obsolete and stricter than mode 3, so it is mapped to mode 3.
_MODES = {0: "default", 1: EXCLUSIVE_PROCESS, 2: PROHIBITED, 3: EXCLUSIVE_PROCESS}
#: The union member that holds a field's value, by the value's type.
_VALUES = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
#: From this value on, a threshold field is a temperature in degrees Celsius. Smaller values are distances from T.Limit,
#: which are near 0.
_DEGREES_FROM = 40
#: Errors of drivers before R510, which lack version 2 of the memory call.
_NO_MEMORY_V2 = frozenset({pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH})
#: The value of a figure that the driver does not report.
_NOT_AVAILABLE = 2**64 - 1
#: How often a process list is read at most, if it grows while it is read.
_LIST_TRIES = 5
#: How often a sample is taken at most, if the free memory changes during the sample.
_SAMPLES = 3
#: Errors that mean that no process used the GPU: no entry was found, or pynvml got an empty list at its first call.
_NOBODY = frozenset({pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_SUCCESS})
#: The type of the event that reports an Xid error.
_XID = 0x8
#: How many Xid errors of a card are kept, and how many are read at once.
_MAX_XIDS, _MAX_READ = 8, 64
#: The number of an instance in an event that concerns the whole card.
_WHOLE_CARD = 0xFFFFFFFF
#: The causes for which older cards retire pages of memory: several corrected errors, and one that could not be.
_RETIRED_FOR = (0, 1)
#: Time between two readings of the retired memory of a card, in seconds.
_RETIRED_S = 60.0
#: The largest valid figure. Some drivers give garbage instead of a figure that they do not have.
_MAX_PERCENT = 100


class NvmlBackend:
    """The NVIDIA GPUs of this host. It opens its session at the first call, and again after a session error."""

    def __init__(self) -> None:
        self._session = Session()
        #: The time of the newest utilisation by process that was read, by UUID, in microseconds on the driver's clock.
        self._read_us: dict[str, int] = {}
        #: The processes of the last sample, by UUID.
        self._held: dict[str, dict[int, int | None]] = {}
        #: What reports the Xid errors of each device, and its retired memory, by UUID.
        self._errors: dict[str, _Errors] = {}

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

    def count(self) -> int:
        """Return the number of cards."""
        return int(self._session.ask(pynvml.nvmlDeviceGetCount))

    def card(self, index: int) -> tuple[Device, ...]:
        """Return the card at *index* as a device. A card in MIG mode is replaced by its instances."""
        handle = self._session.ask(pynvml.nvmlDeviceGetHandleByIndex, index)
        bus = text(self._session.ask(pynvml.nvmlDeviceGetPciInfo, handle).busId)
        mode = self._session.maybe("nvmlDeviceGetMigMode", handle, forgive=UNSUPPORTED)
        if mode is None or mode[0] != pynvml.NVML_DEVICE_MIG_ENABLE:
            return (self._device(handle, index, bus),)
        return self._instances(handle, index, bus)

    def reading(self, device: Device) -> Reading:
        """Return a sample of the memory of *device*."""
        handle, known = self._session.handle(device.uuid), self._held.get(device.uuid)
        total_bytes, free_bytes, held = sample(self._session, handle, known)
        self._held[device.uuid] = held
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
        handle = self._session.handle(device.uuid)
        parent = None if device.mig_parent is None else self._session.handle(device.mig_parent)
        errors = self._errors.setdefault(device.uuid, _Errors(self._session))
        xids = errors.xids(handle, parent)  # first: a card that is lost after an error answers nothing else
        retired_rows, retirement = errors.retired(handle if parent is None else parent)
        health = health_of(self._session, handle, parent)
        return replace(health, xids=xids, retired_rows=retired_rows, retirement=retirement)

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
        return tuple(self._device(handle, MIG_STEP * (card + 1) + slot, bus, parent) for slot, handle in found.items())

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


class _Errors:
    """The errors of one device: its Xid errors since the first call, and the memory that its card has retired.

    A driver or card that does not support one of these calls is asked for it once for each session.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        #: The session in which the events were registered, and the set that has them, None if they are unsupported.
        self._events: tuple[int, Any] = (0, None)
        self._xids: tuple[Xid, ...] = ()
        #: The session of the last reading of the retired memory, when it is due again, and its result.
        self._retired: tuple[int, float, tuple[int | None, str | None]] = (0, 0.0, (None, None))

    def xids(self, handle: Any, parent: Any) -> tuple[Xid, ...] | None:
        """Return the last Xid errors, oldest first; None if they are not reported. *parent* is a MIG instance's card.

        No call waits: events that the driver has noted since the last call are read, and no others.
        """
        if self._events[0] != self._session.number:
            events = self._session.maybe(_registered, handle if parent is None else parent)
            self._events = self._session.number, events
        if self._events[1] is None:
            return self._xids or None
        own = None if parent is None else self._session.maybe("nvmlDeviceGetGpuInstanceId", handle)
        for _ in range(_MAX_READ):
            event = self._session.maybe(self._next_event)
            if event is None:
                break
            is_ours = own is None or event.gpuInstanceId in {own, _WHOLE_CARD}
            if event.eventType == _XID and is_ours:
                xid = Xid(int(event.eventData), datetime.now(timezone.utc))
                self._xids = (*self._xids, xid)[-_MAX_XIDS:]
        return self._xids

    def _next_event(self) -> Any:
        """Return the next event, None if the session of the set is over. The set must not be used after it."""
        session, events = self._events
        return pynvml.nvmlEventSetWait_v2(events, 0) if session == self._session.number else None

    def retired(self, card: Any) -> tuple[int | None, str | None]:
        """Return how many rows of memory, or pages, the card has retired, and what becomes of a further one."""
        session, due_s, known = self._retired
        now_s = time.monotonic()
        if session != self._session.number or now_s >= due_s:
            known = _retired_rows(self._session, card)
            due_s = now_s + _RETIRED_S if known[0] is not None else math.inf
            self._retired = self._session.number, due_s, known
        return known


def _registered(handle: Any) -> Any:
    """Return a new set of events that gets the Xid errors of *handle* from now on; None if the card reports none."""
    if not pynvml.nvmlDeviceGetSupportedEventTypes(handle) & _XID:
        return None
    events = pynvml.nvmlEventSetCreate()
    try:
        pynvml.nvmlDeviceRegisterEvents(handle, _XID, events)
    except pynvml.NVMLError:
        pynvml.nvmlEventSetFree(events)
        raise
    return events


def _retired_rows(session: Session, card: Any) -> tuple[int | None, str | None]:
    """Return the retired rows of memory of a card, or pages of an older one, and what becomes of a further one."""
    rows = session.maybe("nvmlDeviceGetRemappedRows", card)
    if rows is not None:
        corrected, uncorrected, is_pending, has_failed = rows
        return corrected + uncorrected, FAILED if has_failed else PENDING if is_pending else None
    pages = [session.maybe("nvmlDeviceGetRetiredPages", card, cause) for cause in _RETIRED_FOR]
    known = [len(list(of_cause)) for of_cause in pages if of_cause is not None]
    is_pending = bool(known) and session.maybe("nvmlDeviceGetRetiredPagesPendingStatus", card)
    return sum(known) if known else None, PENDING if is_pending else None


def health_of(session: Session, handle: Any, parent: Any = None) -> Health:
    """Return the health of the GPU *handle*. For a MIG instance, its card *parent* supplies the missing fields."""
    own = _health_of_handle(session, handle)
    if parent is None:
        return own
    card = _health_of_handle(session, parent)
    names = [field.name for field in fields(Health)]
    known = {name: getattr(own, name) for name in names}
    return Health(**{name: getattr(card, name) if known[name] is None else known[name] for name in names})


def _health_of_handle(session: Session, handle: Any) -> Health:
    """Return the health that *handle* itself reports."""
    temperature_c = _temperature_c(session, handle)
    rates = session.maybe("nvmlDeviceGetUtilizationRates", handle)
    power_mw = session.maybe("nvmlDeviceGetPowerUsage", handle)
    errors = session.maybe("nvmlDeviceGetTotalEccErrors", handle, _UNCORRECTED, _SINCE_THE_DRIVER_STARTED)
    return Health(
        temperature_c=temperature_c,
        limit_c=_limit_c(session, handle, temperature_c, _field_values(session, handle)),
        utilisation=None if rates is None else rates.gpu / 100,
        memory_utilisation=None if rates is None else rates.memory / 100,
        power_w=None if power_mw is None else power_mw / 1000,
        throttled=_throttled(session, handle),
        ecc_uncorrected=None if errors is None else int(errors),
        compute_mode=_MODES.get(session.maybe("nvmlDeviceGetComputeMode", handle)),
    )


def _temperature_c(session: Session, handle: Any) -> float | None:
    """Return the temperature in degrees Celsius, by the new call or else by the older one."""
    temperature = session.maybe("nvmlDeviceGetTemperatureV", handle, _GPU_SENSOR)
    if temperature is None:
        temperature = session.maybe("nvmlDeviceGetTemperature", handle, _GPU_SENSOR)
    return None if temperature is None else float(temperature)


def _field_values(session: Session, handle: Any) -> dict[int, float]:
    """Return the values of the numbered NVML fields that this card supports, by field id."""
    ids = [_SLOWDOWN_TLIMIT, _GPU_MAX_TLIMIT]
    values = session.maybe("nvmlDeviceGetFieldValues", handle, ids) or ()
    return {
        int(each.fieldId): float(getattr(each.value, _VALUES[each.valueType]))
        for each in values
        if each.nvmlReturn == pynvml.NVML_SUCCESS and each.valueType < len(_VALUES)
    }


def _limit_c(session: Session, handle: Any, temperature_c: float | None, further: dict[int, float]) -> float | None:
    """Return the temperature in degrees Celsius at which the card slows itself down, None if it is unknown.

    It is the GPU maximum, at which the card may slow down, or else the slowdown threshold, at which it must. Ada and
    later cards no longer support the old call for these thresholds, and report them as numbered fields instead.
    """
    for threshold, field in ((_GPU_MAX, _GPU_MAX_TLIMIT), (_SLOWDOWN, _SLOWDOWN_TLIMIT)):
        degrees = session.maybe("nvmlDeviceGetTemperatureThreshold", handle, threshold)
        if degrees:
            return float(degrees)
        line = further.get(field)
        if line is None:
            continue
        if line >= 2**31:  # a negative value in an unsigned field
            line -= 2**32
        if line >= _DEGREES_FROM:
            return line
        # The margin is the distance from now to T.Limit. A threshold of -2 is two degrees above T.Limit.
        margin = session.maybe("nvmlDeviceGetMarginTemperature", handle)
        if margin is not None and temperature_c is not None:
            return temperature_c + float(margin) - line
    return None


def _throttled(session: Session, handle: Any) -> tuple[str, ...] | None:
    """Return what slows the card down now, None if unknown. The call has a new name in newer versions."""
    bits = session.maybe("nvmlDeviceGetCurrentClocksEventReasons", handle)
    if bits is None:
        bits = session.maybe("nvmlDeviceGetCurrentClocksThrottleReasons", handle)
    return None if bits is None else tuple(word for bit, word in _THROTTLED.items() if bits & bit)


def memory(session: Session, handle: Any) -> Any:
    """Return NVML's memory figures. Total and free mean the same in versions 1 and 2 of the call."""
    if session.memory_v2:
        try:
            return session.ask(pynvml.nvmlDeviceGetMemoryInfo, handle, pynvml.nvmlMemory_v2)
        except Refusal as refusal:
            if refusal.code not in _NO_MEMORY_V2:
                raise
            session.memory_v2 = False
    return session.ask(pynvml.nvmlDeviceGetMemoryInfo, handle)


def sample(
    session: Session, handle: Any, known: dict[int, int | None] | None = None
) -> tuple[int, int, dict[int, int | None]]:
    """Return a GPU's total bytes, its free bytes, and the bytes of each process, as one consistent sample.

    NVML needs several calls for this. The memory of unlisted processes is the used memory minus that of the listed
    ones, so what a process frees or takes between two calls could hide as much of it. The free memory is therefore read
    before and after the process list. The sample is consistent if both values are equal and the list is the one before
    it: *known*, that of the last sample, or that of the attempt before. Equal values alone do not suffice, since one
    process may have grown by what another one has freed. If no attempt is consistent, the smaller free value of the
    last one is used, less what the listed processes have grown by since the list before.
    """
    before, listed = memory(session, handle), known or {}
    for _ in range(_SAMPLES):
        earlier, listed = listed, processes(session, handle)
        after = memory(session, handle)
        free_bytes = min(int(before.free), int(after.free))
        if before.free == after.free and listed == earlier:
            break
        before = after
    else:
        free_bytes -= sum(max(0, (held or 0) - (earlier.get(pid) or 0)) for pid, held in listed.items())
    return int(after.total), max(0, free_bytes), listed


def processes(session: Session, handle: Any) -> dict[int, int | None]:
    """Return every process on the GPU with its bytes, None if the driver does not report them."""
    entries = _process_list(session, pynvml.nvmlDeviceGetComputeRunningProcesses_v3, handle)
    # Some cards do not support graphics, and some drivers do not support MPS, whose clients have a list of their own.
    # An error of the compute list is always raised: without that list every job would seem to use 0 bytes.
    for name in ("nvmlDeviceGetGraphicsRunningProcesses_v3", "nvmlDeviceGetMPSComputeRunningProcesses_v3"):
        call = getattr(pynvml, name, None)
        if call is None:
            continue
        try:
            entries += _process_list(session, call, handle)
        except Refusal as refusal:
            if refusal.code not in UNSUPPORTED:
                raise
    return largest_by_pid(entries)


def accounted(session: Session, handle: Any, pids: Iterable[int]) -> dict[int, int]:
    """Return the driver's own peak memory of each of *pids*, in bytes, including processes that have ended.

    Only an administrator can enable accounting, and MIG instances do not support it. The result is empty without
    accounting. For a reused pid the figure is that of the later process (nvml.h, nvmlDeviceGetAccountingStats).
    """
    if session.maybe("nvmlDeviceGetAccountingMode", handle) != pynvml.NVML_FEATURE_ENABLED:
        return {}
    stats = {pid: session.maybe("nvmlDeviceGetAccountingStats", handle, pid) for pid in pids}
    return {
        pid: int(each.maxMemoryUsage)
        for pid, each in stats.items()
        if each is not None and each.maxMemoryUsage not in (None, _NOT_AVAILABLE)
    }


def largest_by_pid(entries: Iterable[tuple[int, int | None]]) -> dict[int, int | None]:
    """Return the largest figure of each pid. A process that uses compute and graphics is in both lists."""
    held: dict[int, int | None] = {}
    for pid, size_bytes in entries:
        known = held.get(pid)
        held[pid] = size_bytes if known is None else max(known, size_bytes or 0)
    return held


def _process_list(session: Session, call: Callable[..., Iterable[Any]], handle: Any) -> list[tuple[int, int | None]]:
    """Return one process list. It is read again if it grew between the two NVML calls that pynvml makes for it."""
    tries_left = _LIST_TRIES
    while True:
        tries_left -= 1
        try:
            return [(int(entry.pid), entry.usedGpuMemory) for entry in session.ask(call, handle)]
        except Refusal as refusal:
            if refusal.code != pynvml.NVML_ERROR_INSUFFICIENT_SIZE or not tries_left:
                raise


def utilisations(session: Session, handle: Any, since_us: int) -> tuple[dict[int, Utilisation], int] | None:
    """Return the utilisation by each process after *since_us*, and the time of the newest figure.

    Times are in microseconds on the driver's clock. The driver lists only processes that used the GPU. For several
    figures of one process, the result is their mean. Video engines count as well: a process that decodes works.

    Returns:
        None if the driver does not report it, or reports impossible figures.
    """
    entries = session.maybe("nvmlDeviceGetProcessUtilization", handle, since_us, empty=_NOBODY)
    if entries is None:
        return None
    found: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for entry in entries:
        busy, memory = max(entry.smUtil, entry.encUtil, entry.decUtil), entry.memUtil
        if busy > _MAX_PERCENT or memory > _MAX_PERCENT:
            return None
        found[int(entry.pid)].append((busy / _MAX_PERCENT, memory / _MAX_PERCENT))
    means = {
        pid: Utilisation(busy=_mean([busy for busy, _ in each]), memory=_mean([memory for _, memory in each]))
        for pid, each in found.items()
    }
    return means, max((int(entry.timeStamp) for entry in entries), default=since_us)


def _mean(figures: list[float]) -> float:
    return sum(figures) / len(figures)
