"""Builds the libraries of the fake NVIDIA driver and writes their state.

A program sees the fake GPUs when it is started with :meth:`FakeGpus.environ`; the library of a running program cannot
be replaced. Everything else changes live: with ``gpus.state.gpus[1].error = 15``, GPU 1 is lost at the next call.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import mmap
import os
import shutil
import subprocess
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parent
#: Where the compiled libraries stay, by the digest of their sources.
BUILT = HERE.parents[2] / "build" / "fake_driver"
LIBRARY = "libnvidia-ml.so.1"
#: A job that holds memory through libcuda, on the fake and on a real card.
JOB = HERE / "job.py"
#: The control program of MPS, which is found by adding ``HERE`` to the PATH.
MPS_CONTROL = "nvidia-cuda-mps-control"
#: Each library with its source; they share fake_state.h.
SOURCES = {"libcuda.so.1": "fake_cuda.c", LIBRARY: "fake_nvml.c"}
STATE_VARIABLE = "FAKE_GPU_STATE"

# Error codes of NVML that tests switch on.
NOT_SUPPORTED, NO_PERMISSION, DRIVER_NOT_LOADED, GPU_IS_LOST, RESET_REQUIRED = 3, 4, 9, 15, 16
VERSION_MISMATCH, UNKNOWN = 18, 999

# Calls that a GPU may not support (``gpus[0].unsupported``) or a driver may not have (``missing``).
TEMPERATURE, TEMPERATURE_V, THRESHOLD, FIELDS, POWER, UTILISATION, REASONS = (1 << bit for bit in range(7))
ECC, MODE, MARGIN, TOPOLOGY, MPS_LIST, GRAPHICS_LIST, BY_PROCESS = (1 << bit for bit in range(7, 14))
EVENTS, ROWS, PAGES = (1 << bit for bit in range(14, 17))
_OF_THE_CARD = TEMPERATURE | TEMPERATURE_V | THRESHOLD | FIELDS | POWER | UTILISATION | REASONS | MODE | MARGIN

_MAX_GPUS, _MAX_ENTRIES, _MAX_ACCOUNTS, _MAX_CHANGES = 16, 512, 1024, 4096
_COMPUTE, _GRAPHICS, _NOT_AVAILABLE, _ALWAYS_ALIVE, _MPS = 1, 2, 4, 8, 16
#: The start time of a free entry.
_NOBODY = 1
_GIB = 2**30
#: The largest distance between two cards of one host: across processors.
_SYSTEM = 50


class _Gpu(ctypes.Structure):
    _fields_ = (
        ("uuid", ctypes.c_char * 96),
        ("name", ctypes.c_char * 96),
        ("total", ctypes.c_uint64),
        ("reserved", ctypes.c_uint64),
        ("context", ctypes.c_uint64),
        ("error", ctypes.c_int32),
        ("memory_error", ctypes.c_int32),
        ("hang", ctypes.c_uint32),
        ("unsupported", ctypes.c_uint32),
        *(
            (name, ctypes.c_int32)
            for name in (
                *("temperature", "memory_temperature", "gpu_max", "slowdown"),
                *("margin", "gpu_max_tlimit", "slowdown_tlimit"),
            )
        ),
        *((name, ctypes.c_uint32) for name in ("power_mw", "utilisation", "memory_utilisation", "compute_mode", "mig")),
        ("parent", ctypes.c_int32),
        ("slot", ctypes.c_int32),
        ("reasons", ctypes.c_uint64),
        ("ecc", ctypes.c_uint64),
        ("accounting", ctypes.c_uint64),
        ("persistence", ctypes.c_uint64),
        ("capability", ctypes.c_uint64),
        ("rows", ctypes.c_uint32),
        ("retirement", ctypes.c_uint32),
        ("xid_count", ctypes.c_uint32),
        ("xids", ctypes.c_uint32 * 15),
    )


class _Entry(ctypes.Structure):
    _fields_ = (
        ("gpu", ctypes.c_uint32),
        ("pid", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        ("utilisation", ctypes.c_uint32),
        ("bytes", ctypes.c_uint64),
        ("start", ctypes.c_uint64),
    )


class _Account(ctypes.Structure):
    _fields_ = (
        ("gpu", ctypes.c_uint32),
        ("pid", ctypes.c_uint32),
        ("bytes", ctypes.c_uint64),
        ("start", ctypes.c_uint64),
    )


class _Change(ctypes.Structure):
    _fields_ = (
        ("at", ctypes.c_uint64),
        ("gpu", ctypes.c_uint32),
        ("pid", ctypes.c_uint32),
        ("start", ctypes.c_uint64),
        ("bytes", ctypes.c_uint64),
        ("refused", ctypes.c_uint64),
    )


class _State(ctypes.Structure):
    """The state, with the layout of fake_state.h."""

    _fields_ = (
        ("gpu_count", ctypes.c_uint32),
        ("mig_count", ctypes.c_uint32),
        ("entry_count", ctypes.c_uint32),
        ("init_error", ctypes.c_int32),
        ("call_error", ctypes.c_int32),
        ("v2_missing", ctypes.c_uint32),
        ("inits", ctypes.c_uint32),
        ("shutdowns", ctypes.c_uint32),
        ("v2_calls", ctypes.c_uint32),
        ("missing", ctypes.c_uint32),
        ("cuda", ctypes.c_uint32),
        ("gpus", _Gpu * _MAX_GPUS),
        ("entries", _Entry * _MAX_ENTRIES),
        ("levels", ctypes.c_uint32 * _MAX_GPUS * _MAX_GPUS),
        ("links", ctypes.c_uint32 * _MAX_GPUS * _MAX_GPUS),
        ("account_count", ctypes.c_uint64),
        ("accounts", _Account * _MAX_ACCOUNTS),
        ("change_count", ctypes.c_uint64),
        ("changes", _Change * _MAX_CHANGES),
    )


class Change(NamedTuple):
    """One step of what processes hold: its time on the wall clock, and what *pid* holds on *gpu* from then on.

    ``start`` is when the process started, in the kernel's ticks; it is 0 for an entry that :meth:`FakeGpus.hold` made.
    ``refused_bytes`` is what the process asked for and did not get. A process that dies leaves no step.
    """

    at_ns: int
    gpu: int
    pid: int
    start: int
    held_bytes: int
    refused_bytes: int


def compiler() -> str | None:
    """Return the C compiler, or None.

    Without a compiler the tests that use the fake driver must be skipped.
    """
    return shutil.which("gcc") or shutil.which("cc")


def build(directory: Path) -> Path:
    """Put the libraries, compiled once for all tests, into *directory*, and return the path of that of NVML."""
    texts = b"".join(source.read_bytes() for source in sorted(HERE.glob("*.[ch]")))
    built = BUILT / hashlib.sha256(texts).hexdigest()[:16]
    built.mkdir(parents=True, exist_ok=True)
    for name, source in SOURCES.items():
        if not (built / name).exists():
            _compile(HERE / source, built / name)
        if not (directory / name).exists():
            shutil.copyfile(built / name, directory / f"{name}.{os.getpid()}")
            (directory / f"{name}.{os.getpid()}").rename(directory / name)
    return directory / LIBRARY


def _compile(source: Path, library: Path) -> None:
    cc = compiler()
    if cc is None:
        raise RuntimeError("no C compiler: skip the tests over the fake driver")
    fresh = library.with_name(f"{library.name}.{os.getpid()}")
    flags = ["-shared", "-fPIC", "-O1", "-pthread", "-Wall", "-Wextra", "-Werror", f"-Wl,-soname,{library.name}"]
    subprocess.run([cc, *flags, "-D_GNU_SOURCE", "-o", str(fresh), str(source)], check=True)
    fresh.rename(library)  # in one step, because several test processes may build at once


class FakeGpus:
    """The state of the fake driver in the file *path*, which every process that maps it shares."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), ctypes.sizeof(_State))
        self.state: Any = _State.from_buffer(self._map)
        self._reported = self.state.change_count
        self._mine = threading.RLock()
        self._depth = 0

    @classmethod
    def create(
        cls, path: Path, sizes: tuple[int, ...], *, reserved_bytes: int = _GIB // 2, context_bytes: int = 300 * 2**20
    ) -> FakeGpus:
        """Write a new state with one GPU for each size in *sizes*, cool, idle and at the largest distance."""
        path.write_bytes(b"")
        os.truncate(path, ctypes.sizeof(_State))
        fake = cls(path)
        for index, total_bytes in enumerate(sizes):
            gpu = fake.state.gpus[index]
            gpu.uuid, gpu.name = fake.uuid(index).encode(), f"Fake {total_bytes // _GIB}G".encode()
            gpu.total, gpu.reserved, gpu.context = total_bytes, reserved_bytes, context_bytes
            gpu.temperature, gpu.memory_temperature, gpu.gpu_max, gpu.slowdown = 40, 45, 83, 87
            gpu.power_mw, gpu.parent, gpu.slot, gpu.persistence, gpu.capability = 60_500, -1, -1, 1, 90
            for other in range(len(sizes)):
                fake.state.levels[index][other] = _SYSTEM if other != index else 0
        fake.state.gpu_count, fake.state.cuda = len(sizes), 13000
        return fake

    @classmethod
    def here(cls) -> FakeGpus:
        """Return the state that this process's environment names, for a job that holds fake memory itself."""
        return cls(Path(os.environ[STATE_VARIABLE]))

    @staticmethod
    def uuid(index: int) -> str:
        """Return the UUID of GPU *index*."""
        return f"GPU-{index:08x}-fa4e-0000-0000-000000000000"

    def environ(self, library: Path) -> dict[str, str]:
        """Return what a program's environment needs in addition to find the fake driver and this state."""
        return {"LD_LIBRARY_PATH": str(library.parent), STATE_VARIABLE: str(self.path)}

    def divide(self, card: int, sizes: dict[int, int]) -> list[str]:
        """Switch MIG on for *card*, with an instance in each slot of *sizes*, and return the UUIDs.

        Each is named as NVML names it, after its card and its profile: of eight parts of the memory, at most seven.
        """
        state, uuids = self.state, []
        for slot, total_bytes in sizes.items():
            gpu = state.gpus[state.gpu_count + state.mig_count]
            uuids.append(f"MIG-{card:08x}-fa4e-0000-0000-{slot:012x}")
            parts = min(7, max(1, 8 * total_bytes // state.gpus[card].total))
            profile = f"{parts}g.{total_bytes // _GIB}gb"
            gpu.uuid, gpu.name = uuids[-1].encode(), state.gpus[card].name + f" MIG {profile}".encode()
            gpu.total, gpu.context = total_bytes, state.gpus[card].context
            gpu.capability = state.gpus[card].capability
            gpu.parent, gpu.slot, gpu.unsupported = card, slot, _OF_THE_CARD | BY_PROCESS
            state.mig_count += 1
        state.gpus[card].mig = 1
        return uuids

    def hold(
        self,
        gpu: int,
        pid: int,
        size_bytes: int,
        *,
        graphics: bool = False,
        mps: bool = False,
        not_available: bool = False,
        always_alive: bool = False,
    ) -> None:
        """Set what *pid* holds on GPU *gpu* to *size_bytes*, in one of the three lists.

        With *not_available* the process holds the memory, but the driver does not report it. *always_alive* is for a
        process of another pid namespace.
        """
        kind = _GRAPHICS if graphics else _MPS if mps else _COMPUTE
        flags = kind | _NOT_AVAILABLE * not_available | _ALWAYS_ALIVE * always_alive
        with self.locked():
            entry = self._entry(gpu, pid, kind) or self._free_entry()
            entry.gpu, entry.pid, entry.flags, entry.bytes, entry.start = gpu, pid, flags, size_bytes, 0
            self._keep_account(gpu, pid, size_bytes)
            self._keep_change(gpu, pid, size_bytes)

    def report_xid(self, gpu: int, code: int) -> None:
        """Let the driver report the Xid error *code* of GPU *gpu*, to every set of events that has registered it."""
        with self.locked():
            card = self.state.gpus[gpu]
            card.xids[card.xid_count] = code
            card.xid_count += 1

    def use(self, gpu: int, pid: int, percent: int, *, memory: int = 0, encoder: int = 0) -> None:
        """Set how much of GPU *gpu* the process *pid*, which holds memory there, uses from now on, in percent.

        The utilisation of the whole GPU is apart: ``gpus[0].utilisation``.
        """
        with self.locked():
            for entry in self._entries():
                if (entry.gpu, entry.pid) == (gpu, pid):
                    entry.utilisation = percent | memory << 8 | encoder << 16

    def let_go(self, gpu: int, pid: int) -> None:
        """Remove everything that *pid* holds on GPU *gpu*, as if it had never been there."""
        with self.locked():
            for entry in self._entries():
                if (entry.gpu, entry.pid) == (gpu, pid):
                    entry.flags, entry.bytes, entry.start = 0, 0, _NOBODY
            self._keep_change(gpu, pid, 0)

    def held(self, gpu: int) -> dict[int, int]:
        """Return what each live process holds on GPU *gpu*, by pid."""
        found: dict[int, int] = {}
        with self.locked():
            for entry in self._entries():
                if entry.gpu == gpu and _alive(entry):
                    found[entry.pid] = max(found.get(entry.pid, 0), entry.bytes)
        return found

    def changes(self) -> list[Change]:
        """Return the changes since the last call, or since this object was made, in order.

        Raises:
            OverflowError: there were so many that the oldest is not stored any more.
        """
        with self.locked():
            count = self.state.change_count
            if count - self._reported > _MAX_CHANGES:
                raise OverflowError(f"{count - self._reported} changes since the last call, {_MAX_CHANGES} are kept")
            places = (self.state.changes[i % _MAX_CHANGES] for i in range(self._reported, count))
            found = [Change(e.at, e.gpu, e.pid, e.start, e.bytes, e.refused) for e in places]
            self._reported = count
        return found

    def truth(self, gpu: int, pid: int) -> int | None:
        """Return the most that *pid* ever held on GPU *gpu*, dead or alive; None if it never held anything."""
        known = [each.bytes for each in self._accounts() if (each.gpu, each.pid) == (gpu, pid)]
        return known[-1] if known else None

    def _entries(self) -> list[Any]:
        """Return the entries that are in use."""
        entries: list[Any] = self.state.entries[: self.state.entry_count]
        return [entry for entry in entries if entry.start != _NOBODY]

    def _entry(self, gpu: int, pid: int, kind: int) -> Any:
        mine = (e for e in self._entries() if (e.gpu, e.pid, e.flags & kind) == (gpu, pid, kind))
        return next(mine, None)

    def _free_entry(self) -> Any:
        count = self.state.entry_count
        for entry in self.state.entries[:count]:
            if entry.start == _NOBODY:
                entry.utilisation = 0
                return entry
        self.state.entry_count = count + 1
        return self.state.entries[count]

    def _keep_change(self, gpu: int, pid: int, size_bytes: int) -> None:
        place = self.state.change_count % _MAX_CHANGES
        self.state.changes[place] = _Change(time.time_ns(), gpu, pid, 0, size_bytes, 0)
        self.state.change_count += 1

    def _accounts(self) -> list[Any]:
        """Return the stored accounts, oldest first."""
        count = self.state.account_count
        return [self.state.accounts[i % _MAX_ACCOUNTS] for i in range(max(0, count - _MAX_ACCOUNTS), count)]

    def _keep_account(self, gpu: int, pid: int, size_bytes: int) -> None:
        for account in reversed(self._accounts()):
            if (account.gpu, account.pid, account.start) == (gpu, pid, 0):
                account.bytes = max(account.bytes, size_bytes)
                return
        self.state.accounts[self.state.account_count % _MAX_ACCOUNTS] = _Account(gpu, pid, size_bytes, 0)
        self.state.account_count += 1

    def hold_here(self, size_bytes: int, *, mps: bool = False) -> None:
        """Let this process hold *size_bytes* on the first device that its CUDA_VISIBLE_DEVICES lists by UUID."""
        first = os.environ["CUDA_VISIBLE_DEVICES"].split(",")[0].encode()
        uuids = [gpu.uuid for gpu in self.state.gpus[: self.state.gpu_count + self.state.mig_count]]
        self.hold(uuids.index(first), os.getpid(), size_bytes, mps=mps)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the state against all changes and reads of others; reentrant within a thread."""
        with self._mine:
            self._depth += 1
            try:
                if self._depth == 1:
                    self._file = self.path.open("rb")
                    fcntl.flock(self._file, fcntl.LOCK_EX)
                yield
            finally:
                self._depth -= 1
                if self._depth == 0:
                    self._file.close()


def _alive(entry: Any) -> bool:
    """Return whether the process of *entry* lives."""
    if entry.flags & _ALWAYS_ALIVE:
        return True
    try:
        fields = (
            Path(f"/proc/{entry.pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
        )
    except OSError:
        return False
    return fields[0] not in "ZX" and entry.start in {0, int(fields[19])}
