"""Diagnostics of the NVIDIA driver and of each card, including cards that do not answer.

The backend (:mod:`workers.devices.nvml`) lists the devices that can run jobs. This module explains why a device cannot.
"""

from __future__ import annotations

import contextlib
from enum import Enum
from typing import Any

import pynvml

from gpuqueue.lazy.frozen import dataclass
from workers.devices.nvml_calls import Refusal, Session, text


class DriverState(str, Enum):
    """The result of the first call to the driver."""

    WELL = "well"
    #: There is no driver library.
    NO_LIBRARY = "no library"
    #: The library is there, but finds no kernel driver, or no device of it.
    NOT_LOADED = "not loaded"
    #: The library and the kernel driver have different versions.
    MISMATCH = "mismatch"
    #: This account may not access the driver.
    NO_PERMISSION = "no permission"
    #: The driver fails in another way.
    BROKEN = "broken"

    def __str__(self) -> str:
        return self.value


_STATES = {
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: DriverState.NO_LIBRARY,
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: DriverState.NOT_LOADED,
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: DriverState.MISMATCH,
    pynvml.NVML_ERROR_NO_PERMISSION: DriverState.NO_PERMISSION,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class CardFacts:
    """What is known of the card at ``index``. A field that the card does not report is None.

    ``trouble`` is why the card does not answer, None if it does. ``divided`` is whether MIG mode is on. ``parts`` is
    the number of MIG instances.
    """

    index: int
    uuid: str | None = None
    trouble: str | None = None
    persistent: bool | None = None
    divided: bool | None = None
    parts: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class DriverFacts:
    """What is known of the driver. ``words`` is its error message if ``state`` is not WELL."""

    state: DriverState
    words: str = ""
    driver: str | None = None
    library: str | None = None
    #: The newest CUDA version that the driver supports, major and minor.
    cuda: tuple[int, int] | None = None
    #: The number of cards. The caller fills in ``cards`` with `card_facts`, because each of those calls may hang.
    count: int = 0
    cards: tuple[CardFacts, ...] = ()


def driver_facts(session: Session) -> DriverFacts:
    """Return the facts about the driver, or why it does not answer. The call may take seconds, or hang."""
    try:
        session.open()
        count = int(session.ask(pynvml.nvmlDeviceGetCount))
    except Refusal as refusal:
        state = _STATES.get(refusal.code, DriverState.BROKEN)
        return DriverFacts(state=state, words=str(refusal), library=_library())
    version = session.maybe("nvmlSystemGetCudaDriverVersion")
    return DriverFacts(
        state=DriverState.WELL,
        driver=text(session.maybe("nvmlSystemGetDriverVersion")) or None,
        library=_library(),
        cuda=None if version is None else (version // 1000, version % 1000 // 10),
        count=count,
    )


def _library() -> str | None:
    """Return the version of the library. The library may report it even without an open session."""
    with contextlib.suppress(pynvml.NVMLError):
        return text(pynvml.nvmlSystemGetNVMLVersion())
    return None


def card_facts(session: Session, index: int) -> CardFacts:
    """Return the facts about the card at *index*, or why it does not answer. The call may hang."""
    try:
        handle = session.ask(pynvml.nvmlDeviceGetHandleByIndex, index)
        mode = session.maybe("nvmlDeviceGetMigMode", handle)
        divided = None if mode is None else mode[0] == pynvml.NVML_DEVICE_MIG_ENABLE
        persistence = session.maybe("nvmlDeviceGetPersistenceMode", handle)
        return CardFacts(
            index=index,
            uuid=text(session.ask(pynvml.nvmlDeviceGetUUID, handle)),
            persistent=None if persistence is None else bool(persistence),
            divided=divided,
            parts=_parts(session, handle) if divided else 0,
        )
    except Refusal as refusal:
        return CardFacts(index=index, trouble=str(refusal))


def _parts(session: Session, handle: Any) -> int:
    slots = range(int(session.maybe("nvmlDeviceGetMaxMigDeviceCount", handle) or 0))
    found = (session.maybe("nvmlDeviceGetMigDeviceHandleByIndex", handle, slot) for slot in slots)
    return sum(each is not None for each in found)
