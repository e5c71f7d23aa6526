"""Calls to the NVIDIA driver through NVML: the session they are made in, and messages for their errors.

A function here raises Refusal if NVML gives an error that it does not handle.

The backend (:mod:`workers.devices.nvml`) lists the devices that can run jobs. This module explains why a device cannot.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Container, Iterator, Mapping
from enum import Enum
from typing import Any, TypeVar

import pynvml

from gpuqueue.lazy.frozen import dataclass
from workers.devices.backend import DeviceTrouble

_Answer = TypeVar("_Answer")

_WORDS: Mapping[int, str] = {
    pynvml.NVML_ERROR_UNINITIALIZED: "the connection to the NVIDIA driver is closed; the next sample opens it again",
    pynvml.NVML_ERROR_NOT_SUPPORTED: "the GPU does not support this query",
    pynvml.NVML_ERROR_NO_PERMISSION: "no permission to ask the NVIDIA driver; check the rights on /dev/nvidia*",
    pynvml.NVML_ERROR_NOT_FOUND: "the NVIDIA driver knows no such GPU",
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: "the NVIDIA driver is not loaded",
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: "the NVIDIA driver's library libnvidia-ml.so.1 was not found",
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: "the NVIDIA driver is too old for this query",
    pynvml.NVML_ERROR_GPU_IS_LOST: "the GPU is lost: it no longer answers on its bus; reset it or reboot",
    pynvml.NVML_ERROR_RESET_REQUIRED: "the GPU must be reset before it can be used; reset it or reboot",
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: (
        "the NVIDIA driver and its library have different versions, as after an update: reboot or reload the driver"
    ),
    pynvml.NVML_ERROR_UNKNOWN: (
        "the NVIDIA driver failed for an unknown reason; inside a container, start the container again"
    ),
}

#: Errors that mean that the machine has no driver. A machine without GPUs gives them, so they are not a fault.
NO_DRIVER = frozenset({pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, pynvml.NVML_ERROR_DRIVER_NOT_LOADED})
#: Errors after which the session with the driver is unusable, unless they are those of one card.
_SESSION_GONE = frozenset(
    {
        pynvml.NVML_ERROR_UNINITIALIZED,
        pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
        pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
        pynvml.NVML_ERROR_UNKNOWN,
    }
)
#: Errors that mean that one GPU is lost while the others work. After a reset the GPU is visible only in a new session.
_GPU_GONE = frozenset({pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED})
#: Errors that `Session.maybe` raises unless *forgive* lists them. UNKNOWN is not among them: a single unusual call can
#: give UNKNOWN on a healthy card. If the whole driver has failed, the next memory call reports it.
_NEVER_FORGIVEN = (_SESSION_GONE | _GPU_GONE) - {pynvml.NVML_ERROR_UNKNOWN}
#: Shortest age of a session that is reopened because of one lost GPU, in seconds. Opening a session can take seconds.
_REOPEN_FOR_ONE_GPU_S = 30.0
#: Errors of a driver or a card that does not support a call.
UNSUPPORTED = frozenset({pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND})
#: UUID prefix of MIG instances. Their handles are not cached, because repartitioning the card invalidates them.
_PASSING = "MIG-"


class Refusal(DeviceTrouble):
    """An NVML call failed. ``code`` is the NVML error code."""

    def __init__(self, words: str, code: int = pynvml.NVML_ERROR_UNKNOWN) -> None:
        super().__init__(words)
        self.code = code


def _resp(call: Callable[..., _Answer], *args: object) -> _Answer:
    """Make one NVML call, and translate its error."""
    try:
        return call(*args)
    except pynvml.NVMLError as error:
        code = int(error.value)
        words = _WORDS.get(code, f"the NVIDIA driver answered: {error}")
        raise Refusal(f"{words} (NVML error {code})", code) from error


class Session:
    """A session with the driver. It is opened at the first call, and again after an error that ends the session.

    ``memory_v2`` is whether this driver may have version 2 of the memory call.
    """

    def __init__(self) -> None:
        self.memory_v2 = True
        self._lock = threading.Lock()
        #: The number of sessions so far. What was made in one is gone in the next.
        self.number = 0
        self._opened_by: int | None = None
        self._opened_at_s = 0.0
        #: Whether a new session is needed, and whether one GPU needs one, which waits until no call is being made.
        self._stale = self._stale_for_one = False
        #: The number of calls that are being made.
        self._calls = 0
        self._handles: dict[str, Any] = {}

    def open(self) -> None:
        """Open a session unless a usable one is open."""
        with self._lock:
            self._open()

    def _open(self) -> None:
        """Do the work of :meth:`open`, with the lock."""
        # A session does not survive a fork: the child opens its own.
        if self._opened_by != os.getpid():
            self._calls = 0
        elif not self._stale and (self._calls or not self._stale_for_one):
            return
        if self._opened_by is not None:
            with contextlib.suppress(Refusal):
                _resp(pynvml.nvmlShutdown)
        self._opened_by = None
        _resp(pynvml.nvmlInit)
        self._handles = {}
        self.number += 1
        # The driver may have been upgraded since the last session.
        self.memory_v2 = True
        self._stale = self._stale_for_one = False
        self._opened_at_s = time.monotonic()
        self._opened_by = os.getpid()

    @contextlib.contextmanager
    def _during_call(self) -> Iterator[None]:
        """Keep the session open, unless it is unusable, while a call is made in it."""
        with self._lock:
            self._open()
            self._calls += 1
        try:
            yield
        finally:
            with self._lock:
                self._calls -= 1

    def ask(self, call: Callable[..., _Answer], *args: object) -> _Answer:
        """Make *call* in an open session. If its error ends the session, the next call opens a new one."""
        with self._during_call():
            try:
                return _resp(call, *args)
            except Refusal as refusal:
                self._note(refusal)
                raise

    def maybe(
        self,
        name: str | Callable[..., object],
        *args: object,
        forgive: Container[int] | None = None,
        empty: Container[int] = (),
    ) -> Any:
        """Return the answer of the NVML call *name*, None if pynvml, the driver or the card does not support it.

        *forgive* lists the errors that give None. By default these are all errors except those that mean that the GPU
        or the session is lost. *empty* lists the errors that mean an empty list, which gives ().
        """
        call = getattr(pynvml, name, None) if isinstance(name, str) else name
        with self._during_call():
            if call is None:  # this pynvml is too old for the call
                return None
            try:
                return _resp(call, *args)
            except Refusal as refusal:
                if refusal.code in empty:
                    return ()
                if refusal.code not in _NEVER_FORGIVEN if forgive is None else refusal.code in forgive:
                    return None
                self._note(refusal)
                raise

    def handle(self, uuid: str) -> Any:
        """Return this session's handle of the GPU or MIG instance *uuid*."""
        self.open()  # first, because a new session clears the cached handles
        handle = self._handles.get(uuid)
        if handle is None:
            handle = self.ask(pynvml.nvmlDeviceGetHandleByUUID, uuid)
            if not uuid.startswith(_PASSING):
                self._handles[uuid] = handle
        return handle

    def _note(self, refusal: Refusal) -> None:
        """Mark the session as stale if *refusal* means that a new one is needed.

        One failed card can give such an error to each of its calls while the others work. A new session would interrupt
        the calls of the others, so the session goes on for a while if the driver still counts its cards.
        """
        if refusal.code not in _SESSION_GONE | _GPU_GONE:
            return
        if refusal.code not in _GPU_GONE and not self._counts():
            self._stale = True
        elif time.monotonic() - self._opened_at_s >= _REOPEN_FOR_ONE_GPU_S:
            self._stale_for_one = True

    def _counts(self) -> bool:
        """Return whether the driver answers a call that concerns no card."""
        try:
            _resp(pynvml.nvmlDeviceGetCount)
        except Refusal:
            return False
        return True


def text(raw: str | bytes | None) -> str:
    """Return *raw* as text, empty for None. Some versions of pynvml return bytes."""
    return raw.decode() if isinstance(raw, bytes) else raw or ""


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


#: The first CUDA version that limits the memory of a client: 11.5, as the driver writes it.
_LIMITS_MEMORY = 11050
#: The compute capability of Volta. Older GPUs have no limits of clients, and no memory protection between them.
_VOLTA = (7, 0)
#: The process list grew between the two calls that pynvml makes for it, so the driver supports it.
_GREW = frozenset({pynvml.NVML_ERROR_INSUFFICIENT_SIZE})


def lacking(uuid: str) -> str | None:
    """Return what the driver or the GPU *uuid* lacks for jobs through MPS, None if it lacks nothing.

    What is not reported counts as present, except the list of clients: without it their memory cannot be measured.
    """
    session = Session()
    cuda = session.maybe("nvmlSystemGetCudaDriverVersion")
    if cuda is not None and cuda < _LIMITS_MEMORY:
        version = f"{cuda // 1000}.{cuda % 1000 // 10}"
        return f"the NVIDIA driver cannot limit the memory of a job: it supports CUDA up to {version}, and needs 11.5"
    handle = session.handle(uuid)
    capability = session.maybe("nvmlDeviceGetCudaComputeCapability", handle)
    if capability is not None and tuple(capability) < _VOLTA:
        return f"{uuid} cannot limit the memory of a job: it is older than Volta"
    clients = session.maybe("nvmlDeviceGetMPSComputeRunningProcesses_v3", handle, forgive=UNSUPPORTED, empty=_GREW)
    if clients is None:
        return f"the NVIDIA driver does not list the jobs on {uuid}, so that their memory cannot be measured"
    return None
