"""The NVIDIA driver as a whole, and each card, also one that does not answer: for whoever wants to know what is wrong.

The backend (:mod:`workers.devices.nvml`) tells what can run jobs; this tells why something cannot.
"""

from __future__ import annotations

import contextlib
from enum import Enum
from typing import Any

import pynvml

from gpuqueue.lazy.frozen import dataclass
from workers.devices.nvml_calls import Refusal, Session


class DriverState(str, Enum):
    """How the driver answers its first question."""

    WELL = "well"
    #: There is no driver library to ask.
    NO_LIBRARY = "no library"
    #: The library is there, and finds no driver in the kernel, or no device of it.
    NOT_LOADED = "not loaded"
    #: The library and the kernel's part are of different versions.
    MISMATCH = "mismatch"
    #: We may not ask it.
    NO_PERMISSION = "no permission"
    #: It fails in another way.
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
    """A card by its index. ``trouble`` is why it does not answer; the others are None where it will not tell.

    ``parts`` counts the MIG instances of a divided card.
    """

    index: int
    uuid: str | None = None
    trouble: str | None = None
    persistent: bool | None = None
    divided: bool | None = None
    parts: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class DriverFacts:
    """The driver. ``words`` say what it answered where it is not well."""

    state: DriverState
    words: str = ""
    driver: str | None = None
    library: str | None = None
    #: The newest CUDA that it serves, major and minor.
    cuda: tuple[int, int] | None = None
    #: How many cards it has; ``cards`` are filled in by whoever asks each, since any of them may hang.
    count: int = 0
    cards: tuple[CardFacts, ...] = ()


def driver_facts(session: Session) -> DriverFacts:
    """Return what the driver tells of itself, or why it does not. It may take seconds, or hang."""
    try:
        session.open()
        count = int(session.ask(pynvml.nvmlDeviceGetCount))
    except Refusal as refusal:
        state = _STATES.get(refusal.code, DriverState.BROKEN)
        return DriverFacts(state=state, words=str(refusal), library=_library())
    version = session.maybe("nvmlSystemGetCudaDriverVersion")
    return DriverFacts(
        state=DriverState.WELL,
        driver=_text(session.maybe("nvmlSystemGetDriverVersion")),
        library=_library(),
        cuda=None if version is None else (version // 1000, version % 1000 // 10),
        count=count,
    )


def _library() -> str | None:
    """Return the version of the library; it tells that even where it cannot open a session."""
    with contextlib.suppress(pynvml.NVMLError):
        return _text(pynvml.nvmlSystemGetNVMLVersion())
    return None


def card_facts(session: Session, index: int) -> CardFacts:
    """Return what the card at *index* tells, or why it does not. It may hang."""
    try:
        handle = session.ask(pynvml.nvmlDeviceGetHandleByIndex, index)
        mode = session.maybe("nvmlDeviceGetMigMode", handle)
        divided = None if mode is None else mode[0] == pynvml.NVML_DEVICE_MIG_ENABLE
        persistence = session.maybe("nvmlDeviceGetPersistenceMode", handle)
        return CardFacts(
            index=index,
            uuid=_text(session.ask(pynvml.nvmlDeviceGetUUID, handle)),
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


def _text(raw: str | bytes | None) -> str | None:
    return raw.decode() if isinstance(raw, bytes) else raw
