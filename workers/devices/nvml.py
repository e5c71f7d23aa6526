"""NVIDIA GPUs, asked through NVML. The only file that imports pynvml, and imported only where GPUs are wanted."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from typing import TYPE_CHECKING, Any, TypeVar

import pynvml

from gpuqueue.device import Device, DeviceKind, PeakSource, Reading
from workers.devices.backend import DeviceTrouble

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

_Answer = TypeVar("_Answer")
_log = logging.getLogger(__name__)

_WORDS: Mapping[int, str] = {
    pynvml.NVML_ERROR_UNINITIALIZED: "the connection to the NVIDIA driver is closed; the next look opens it again",
    pynvml.NVML_ERROR_NOT_SUPPORTED: "the GPU does not support this question",
    pynvml.NVML_ERROR_NO_PERMISSION: "no permission to ask the NVIDIA driver; check the rights on /dev/nvidia*",
    pynvml.NVML_ERROR_NOT_FOUND: "the NVIDIA driver knows no such GPU",
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: "the NVIDIA driver is not loaded",
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: "the NVIDIA driver's library libnvidia-ml.so.1 was not found",
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: "the NVIDIA driver is too old for this question",
    pynvml.NVML_ERROR_GPU_IS_LOST: "the GPU is lost: it no longer answers on its bus; reset it or reboot",
    pynvml.NVML_ERROR_RESET_REQUIRED: "the GPU must be reset before it can be used; reset it or reboot",
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: (
        "the NVIDIA driver and its library have different versions, as after an update: reboot or reload the driver"
    ),
    pynvml.NVML_ERROR_UNKNOWN: (
        "the NVIDIA driver failed for an unknown reason; inside a container, start the container again"
    ),
}

#: There is simply no driver: a machine without GPUs, no trouble.
_NO_DRIVER = frozenset({pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, pynvml.NVML_ERROR_DRIVER_NOT_LOADED})
#: The session with the driver is worth nothing any more.
_SESSION_GONE = frozenset(
    {
        pynvml.NVML_ERROR_UNINITIALIZED,
        pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
        pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
        pynvml.NVML_ERROR_UNKNOWN,
    }
)
#: One GPU is gone, its neighbours are well; after its reset it needs a new session to be seen.
_GPU_GONE = frozenset({pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED})
#: Opening a session can take seconds, so for the sake of one lost GPU it is done no more often than this.
_REOPEN_FOR_ONE_GPU_S = 30.0
#: Drivers before R510 have no second version of the memory call.
_NO_MEMORY_V2 = frozenset({pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH})
#: How often a process list that grew while it was read is read again.
_LIST_TRIES = 5


class _Refusal(DeviceTrouble):
    """NVML refused; ``code`` is its number for why."""

    def __init__(self, words: str, code: int = pynvml.NVML_ERROR_UNKNOWN) -> None:
        super().__init__(words)
        self.code = code


def _door(call: Callable[..., _Answer], *args: object) -> _Answer:
    """Make one NVML call; every one goes through here.

    Raises:
        _Refusal: NVML gave an error.

    """
    try:
        return call(*args)
    except pynvml.NVMLError as error:
        code = int(error.value)
        words = _WORDS.get(code, f"the NVIDIA driver answered: {error}")
        raise _Refusal(f"{words} (NVML error {code})", code) from error


class NvmlBackend:
    """The NVIDIA GPUs of this host. Opens its session at the first question, and again after trouble."""

    peak_source = PeakSource.NVML_SAMPLED

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._opened_by: int | None = None
        self._opened_at_s = 0.0
        self._stale = False
        self._memory_v2 = True
        self._handles: dict[str, Any] = {}
        self._known: dict[str, Device] = {}

    @classmethod
    def probe(cls) -> NvmlBackend | None:
        """Return a backend with an open session, or None where there simply is no driver.

        Raises:
            DeviceTrouble: there is a driver, but it is broken.

        """
        backend = cls()
        try:
            backend._open()
        except _Refusal as refusal:
            if refusal.code in _NO_DRIVER:
                return None
            raise
        return backend

    def devices(self) -> tuple[Device, ...]:
        """Return this host's GPUs in the order of their index.

        A GPU that stops answering stays in the list; one that never answered has no identity and is left out.

        Raises:
            DeviceTrouble: the driver does not answer, or no GPU at all does.

        """
        looks = [self._identify(index) for index in range(int(self._ask(pynvml.nvmlDeviceGetCount)))]
        answering = {look.uuid: look for look in looks if isinstance(look, Device)}
        silent = {index: look for index, look in enumerate(looks) if not isinstance(look, Device)}
        remembered = {uuid: device for uuid, device in self._known.items() if device.index in silent}
        self._known = remembered | answering
        if silent and not self._known:
            raise silent[0]
        for index in sorted(silent.keys() - {device.index for device in remembered.values()}):
            _log.warning("GPU %d is left out: %s", index, silent[index])
        return tuple(sorted(self._known.values(), key=lambda device: device.index))

    def reading(self, device: Device) -> Reading:
        """Return a look at *device* as it is now.

        Raises:
            DeviceTrouble: the GPU does not answer, or will not tell its memory or its processes.

        """
        handle = self._handle(device.uuid)
        # Processes first: one that comes between the two looks then counts as foreign, never as free memory.
        processes = self._processes(handle)
        memory = self._memory(handle)
        total_bytes = int(memory.total)
        return Reading(total_bytes=total_bytes, free_bytes=min(int(memory.free), total_bytes), processes=processes)

    def used_by(self, reading: Reading, pids: Collection[int]) -> int | None:
        """Return the bytes that *pids* hold in *reading*; None when the driver will not say for one of them."""
        total_bytes = 0
        for pid in set(pids) & reading.processes.keys():
            held_bytes = reading.processes[pid]
            if held_bytes is None:
                return None
            total_bytes += held_bytes
        return total_bytes

    def _ask(self, call: Callable[..., _Answer], *args: object) -> _Answer:
        """Make *call* in an open session, and note when its error says that the session is over.

        Raises:
            _Refusal: NVML gave an error.

        """
        self._open()
        try:
            return _door(call, *args)
        except _Refusal as refusal:
            age_s = time.monotonic() - self._opened_at_s
            if refusal.code in _SESSION_GONE or (refusal.code in _GPU_GONE and age_s >= _REOPEN_FOR_ONE_GPU_S):
                self._stale = True
            raise

    def _open(self) -> None:
        """Open a session unless a good one is open.

        Raises:
            _Refusal: NVML gave an error.

        """
        with self._lock:
            # A session does not survive a fork: the child opens its own.
            if self._opened_by == os.getpid() and not self._stale:
                return
            if self._opened_by is not None:
                with contextlib.suppress(_Refusal):
                    _door(pynvml.nvmlShutdown)
            self._opened_by = None
            _door(pynvml.nvmlInit)
            self._handles = {}
            # A new session can be a newer driver.
            self._memory_v2 = True
            self._stale = False
            self._opened_at_s = time.monotonic()
            self._opened_by = os.getpid()

    def _identify(self, index: int) -> Device | _Refusal:
        """Return the GPU at *index*, or why it alone does not answer.

        Raises:
            _Refusal: the driver as a whole does not answer.

        """
        try:
            handle = self._ask(pynvml.nvmlDeviceGetHandleByIndex, index)
            return Device(
                uuid=_text(self._ask(pynvml.nvmlDeviceGetUUID, handle)),
                index=index,
                name=_text(self._ask(pynvml.nvmlDeviceGetName, handle)),
                kind=DeviceKind.GPU,
                total_bytes=int(self._memory(handle).total),
                pci_bus=_text(self._ask(pynvml.nvmlDeviceGetPciInfo, handle).busId),
            )
        except _Refusal as refusal:
            if refusal.code in _SESSION_GONE:
                raise
            return refusal

    def _handle(self, uuid: str) -> Any:
        """Return the session's handle of the GPU *uuid*.

        Raises:
            _Refusal: NVML gave an error.

        """
        self._open()  # first, because it empties the handles of a session that is over
        handle = self._handles.get(uuid)
        if handle is None:
            handle = self._ask(pynvml.nvmlDeviceGetHandleByUUID, uuid)
            self._handles[uuid] = handle
        return handle

    def _memory(self, handle: Any) -> Any:
        """Return NVML's memory figures; total and free mean the same in both versions.

        Raises:
            _Refusal: NVML gave an error, or has no figures for this GPU.

        """
        if self._memory_v2:
            try:
                return self._ask(pynvml.nvmlDeviceGetMemoryInfo, handle, pynvml.nvmlMemory_v2)
            except _Refusal as refusal:
                if refusal.code not in _NO_MEMORY_V2:
                    raise
                self._memory_v2 = False
        return self._ask(pynvml.nvmlDeviceGetMemoryInfo, handle)

    def _processes(self, handle: Any) -> dict[int, int | None]:
        """Return every process on the GPU with its bytes, None where the driver will not say.

        Raises:
            _Refusal: NVML gave an error.

        """
        compute = self._list(pynvml.nvmlDeviceGetComputeRunningProcesses_v3, handle)
        try:
            graphics = self._list(pynvml.nvmlDeviceGetGraphicsRunningProcesses_v3, handle)
        except _Refusal as refusal:
            # Some cards cannot draw. The compute list is not forgiven: without it every job would seem to hold 0.
            if refusal.code != pynvml.NVML_ERROR_NOT_SUPPORTED:
                raise
            graphics = []
        return merged([*compute, *graphics])

    def _list(self, call: Callable[..., Iterable[Any]], handle: Any) -> list[tuple[int, int | None]]:
        """Return one process list, read again when it grew under pynvml's hands.

        Raises:
            _Refusal: NVML gave an error.

        """
        tries_left = _LIST_TRIES
        while True:
            tries_left -= 1
            try:
                return [(int(entry.pid), entry.usedGpuMemory) for entry in self._ask(call, handle)]
            except _Refusal as refusal:
                if refusal.code != pynvml.NVML_ERROR_INSUFFICIENT_SIZE or not tries_left:
                    raise


def merged(entries: Iterable[tuple[int, int | None]]) -> dict[int, int | None]:
    """Return each pid once with its largest figure: one that computes and draws is in both lists."""
    held: dict[int, int | None] = {}
    for pid, size_bytes in entries:
        known = held.get(pid)
        held[pid] = size_bytes if known is None else max(known, size_bytes or 0)
    return held


def _text(raw: str | bytes) -> str:
    """Return *raw* as text; pynvml gives bytes in some versions and text in others."""
    return raw.decode() if isinstance(raw, bytes) else raw
