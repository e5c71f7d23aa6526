"""The warm interpreters of one worker: how many it has, and which job each may become.

A job with ``--warm`` defines the image of a warm interpreter: the Python executable, the account and the latched
environment. If no interpreter with that image is ready, the job starts cold, and an interpreter is started for the next
job. The first job of a sweep therefore starts cold and later ones start warm. A warm interpreter is used once and then
replaced. An interpreter that no job has requested for some time is ended. All of them end with the worker.

A latched variable is one that a program reads once. A warm interpreter may become a job only if their latched variables
are equal. The loader, Python and the C library read theirs before the first line of the program. The numeric libraries
read theirs at their import. All other variables are read when they are needed, so a warm interpreter can still get
another value. The list was found by setting each variable after the import and observing the effect, and by recording
what Python and ``import torch`` read. A test repeats the recording.
"""

from __future__ import annotations

import json
import logging
import os
import select
import shutil
import threading
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path

from gpuqueue.clock import Clock
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.job_spec import Account, JobSpec
from gpuqueue.settings.settings import Settings
from workers.shim.client import Shim, Shims
from workers.shim.warm import MOST_BYTES
from workers.threads import in_time

log = logging.getLogger(__name__)

#: Available host memory that a new warm interpreter requires, in bytes.
ROOM_BYTES = 2 * 2**30
#: How long after an unusable warm interpreter no other one with the same image is started, in seconds.
UNFIT_S = 600.0
#: Time between two checks for idle warm interpreters, in seconds.
TIDY_S = 10.0
#: Time limit for finding a job's Python executable, in seconds.
POLL_S = 5.0
#: Smallest number of words in a command that can start warm: an interpreter and a script.
WORDS = 2
#: Names of latched variables. ``LATCHED_PREFIXES`` lists prefixes of further names.
LATCHED_NAMES = frozenset(
    (
        *("ATEN_CPU_CAPABILITY", "LANG", "LANGUAGE", "MATPLOTLIBRC", "MPLBACKEND", "MPLCONFIGDIR", "TMPDIR", "TZ"),
        *("VIRTUAL_ENV", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"),
        "HOME",  # the user's own packages are in it
        *("MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE"),  # MKL divides the processors among the processes of a host
        "SETUPTOOLS_USE_DISTUTILS",  # a .pth file reads it when Python starts
    )
)
LATCHED_PREFIXES = (
    *("ACCELERATE_", "ACC_DEVICE_", "ACC_PROFLIB", "BLIS_", "COMPILE_STROBELIGHT_", "COVERAGE_", "CUBLAS", "CUDA_"),
    *("CUDNN_", "DNNL_", "FX_", "GFORTRAN_", "GLIBC_TUNABLES", "GOMP_", "GOTO_", "HF_", "INTEL_", "I_MPI_", "KINETO_"),
    *("KMP_", "LC_", "LD_", "MALLOC_", "MKLDNN_", "MKL_", "NCCL_", "NPY_", "NUMBA_", "NUMEXPR_", "NUMPY_", "NVIDIA_"),
    *("NVPL_", "OMP_", "ONEDNN_", "OPENBLAS_", "OPENSSL_", "PYTHON", "PYTORCH_", "TORCH", "TQDM_", "TRANSFORMERS_"),
    *("TRITON_", "VECLIB_"),
)
#: Variables that torch reads twice. At its import it reads the ``backend`` entry, which chooses the allocator. When
#: CUDA starts, which happens only in the job, it reads all other entries. If ``backend`` then names another allocator,
#: torch ends the process.
ALLOCATOR, BACKEND = frozenset({"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"}), "backend"
#: Variables that are not latched although a prefix matches: they are read when CUDA starts, and differ for each run.
NOT_LATCHED = ALLOCATOR | {
    *("CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"),
    *("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"),
}
#: Prefix of the variables that belong to one run. A warm interpreter must not see them.
RUN_PREFIXES = ("GPUQUEUE_",)


@dataclass(frozen=True, kw_only=True, slots=True)
class Image:
    """The properties that a warm interpreter must share with the job that it becomes."""

    #: The word that starts the interpreter, by which Python finds its packages; then the path and identity of its file.
    python: str
    program: str
    file: tuple[int, int, int]
    account: Account
    latched: Mapping[str, str] = field(repr=False)
    #: The working directory, if the latched environment or the interpreter depends on it; else empty.
    cwd: str

    def unlike(self, other: Image) -> str | None:
        """Return in words why an interpreter with the image *other* does not fit this image, None if it does."""
        if (self.python, self.program) != (other.python, other.program):
            return "the interpreter differs"
        if self.file != other.file:
            return "the interpreter was changed"
        if self.account != other.account:
            return "the account differs"
        name = first_difference(self.latched, other.latched)
        if name is not None:
            return f"{name} differs"
        return "PYTHONPATH is relative, and the working directory differs" if self.cwd != other.cwd else None


def image_of(spec: JobSpec, env: Mapping[str, str]) -> Image | str:
    """Return the image of a warm interpreter for *spec*, or in words why *spec* cannot start warm."""
    for is_so, why in (
        (spec.pty is not None, "it has a terminal"),
        (spec.output is not None, "its log gets a link"),
        (spec.separate_stderr, "its standard error has a file of its own"),
    ):
        if is_so:
            return why
    if len(spec.argv) < WORDS or not Path(spec.argv[0]).name.startswith("python") or not spec.argv[1].endswith(".py"):
        return "its command is not python and a script"
    allocator = chooses_allocator(env)
    if allocator is not None:
        return f"{allocator} chooses an allocator, which torch reads only once"
    python = spec.argv[0]
    path = env.get("PATH", os.defpath)  # the job's PATH, as execvpe uses it
    program = str(Path(spec.cwd, python)) if "/" in python else shutil.which(python, path=path) or ""
    try:
        stat = os.stat(program)  # noqa: PTH116 - follows links to the interpreter itself
    except OSError:
        return "there is no such interpreter"
    own = latched(env)
    relative = any(not entry.startswith("/") for entry in own.get("PYTHONPATH", "/").split(os.pathsep))
    cwd = spec.cwd if relative or not python.startswith("/") else ""
    file = (stat.st_dev, stat.st_ino, stat.st_mtime_ns)
    return Image(python=python, program=program, file=file, account=spec.account, latched=own, cwd=cwd)


class WarmInterpreter:
    """A waiting shim, and the state of its warm interpreter."""

    def __init__(self, image: Image, shim: Shim, requested_s: float) -> None:
        self.image = image
        #: When a job last requested this image, on the monotonic clock, in seconds.
        self.requested_s = requested_s
        self.ready = False
        #: Why the interpreter is unusable; None while it is usable or still starting.
        self.unfit: str | None = None
        self._shim = shim

    def poll(self) -> None:
        """Read the shim's pending messages and update ``ready`` and ``unfit``."""
        poll = select.poll()
        poll.register(self._shim.channel, select.POLLIN)
        while self.unfit is None and poll.poll(0):
            try:
                message = self._shim.channel.recv(MOST_BYTES).decode(errors="replace")
            except OSError:
                message = ""
            if message == "ready":
                self.ready = True
            else:  # at most one character: the exit code of the shim
                self.unfit = message.removeprefix("unfit: ") if len(message) > 1 else "it ended by itself"

    def become(self, run_dir: Path, lock: int) -> Shim | None:
        """Give the waiting shim the run of *run_dir*, whose lock the open file *lock* holds.

        Returns the shim, or None if it has just ended.
        """
        try:
            self._shim.give(run_dir, lock)
        except OSError:
            self._shim.end()
            return None
        return self._shim

    def end(self) -> None:
        """End the shim and its interpreter."""
        self._shim.end()


class WarmPool:
    """The warm interpreters of one worker. Shared by the worker's threads."""

    def __init__(self, settings: Settings, shims: Shims, clock: Clock) -> None:
        self._most = settings.warm_interpreters
        self._idle_s = settings.warm_idle_s
        self._modules = settings.warm_modules
        self._shims = shims
        self._clock = clock
        self._lock = threading.Lock()
        self._interpreters: list[WarmInterpreter] = []
        #: Images whose interpreters are unusable, each with the reason and the time of the next attempt.
        self._unfit: list[tuple[Image, str, float]] = []

    def start(self, spec: JobSpec, env: Mapping[str, str], run_dir: Path, lock: int) -> tuple[Shim | None, str]:
        """Start the run of *spec* in a warm interpreter; return its shim and ``warm``, or None and the reason.

        In both cases also start a warm interpreter for the next job with the same image, if possible.
        """
        if self._most == 0:
            return None, "the setting warm_interpreters is 0"
        # There is no shim yet that could react to a cancel, so a dead file server must not block this call.
        image = in_time(lambda: image_of(spec, env), POLL_S) or "its interpreter does not answer"
        if isinstance(image, str):
            return None, image
        with self._lock:
            shim, why = self._take(image, run_dir, lock)
            try:
                trouble = self._start_wanted(image, env)
            except OSError as error:  # the host lacks a resource; a shim taken above stays valid
                trouble = f"no warm interpreter can be started: {error.strerror}"
            return shim, why if trouble is None or shim is not None else trouble

    def tidy(self) -> None:
        """End the warm interpreters that are unusable or have been idle for too long."""
        idle_since_s = self._clock.monotonic_s() - self._idle_s
        with self._lock:
            for each in list(self._interpreters):
                each.poll()
                if each.unfit is not None or each.requested_s <= idle_since_s:
                    self._drop(each)

    def close(self) -> None:
        """End all warm interpreters."""
        with self._lock:
            for each in list(self._interpreters):
                self._drop(each)

    def _take(self, image: Image, run_dir: Path, lock: int) -> tuple[Shim | None, str]:
        why = "no warm interpreter is ready yet"
        for each in list(self._interpreters):
            each.poll()
            unlike = image.unlike(each.image)
            if each.unfit is not None:
                self._drop(each)
            elif unlike is not None:
                why = unlike
            elif each.ready:
                self._interpreters.remove(each)
                shim = each.become(run_dir, lock)
                if shim is not None:
                    return shim, "warm"
        return None, why

    def _start_wanted(self, image: Image, env: Mapping[str, str]) -> str | None:
        """Start a warm interpreter with *image* if there is room for one; return in words why none can be started.

        Interpreters with other images are ended to make room, the least recently requested one first.
        """
        now_s = self._clock.monotonic_s()
        self._unfit = [each for each in self._unfit if each[2] > now_s]
        for unfit, why, _ in self._unfit:
            if image.unlike(unfit) is None:
                return why
        alike = [each for each in self._interpreters if image.unlike(each.image) is None]
        for each in alike:
            each.requested_s = now_s
        if len(alike) >= self._most:
            return None
        if _available_bytes() < ROOM_BYTES:
            return "the host has too little memory for a warm interpreter"
        while len(self._interpreters) >= self._most:
            self._drop(min(self._interpreters, key=lambda each: each.requested_s))
        return self._make(image, env, now_s)

    def _make(self, image: Image, env: Mapping[str, str], now_s: float) -> str | None:
        plan = {
            "python": image.python,
            "program": image.program,
            "cwd": image.cwd or "/",  # not the job's: its file server may die and block other jobs
            "env": for_warm_interpreter(env),
            "modules": self._modules,
        }
        text = json.dumps(plan).encode()
        if len(text) > MOST_BYTES:
            return "its environment is too large for a warm interpreter"
        try:
            shim = self._shims.start_warm(text)
        except OSError as error:
            return f"no warm interpreter can be started: {error}"
        self._interpreters.append(WarmInterpreter(image, shim, now_s))
        return None

    def _drop(self, interpreter: WarmInterpreter) -> None:
        self._interpreters.remove(interpreter)
        interpreter.end()
        if interpreter.unfit is not None:
            log.warning("a warm interpreter is unusable: %s", interpreter.unfit)
            self._unfit.append((interpreter.image, interpreter.unfit, self._clock.monotonic_s() + UNFIT_S))


def _available_bytes() -> int:
    """Return the host's available memory in bytes (MemAvailable in /proc/meminfo)."""
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), 0)


def latched(env: Mapping[str, str]) -> dict[str, str]:
    """Return the latched variables of *env*."""
    return {name: value for name, value in env.items() if is_latched(name)}


def is_latched(name: str) -> bool:
    """Return whether the variable *name* is latched."""
    return (
        name not in NOT_LATCHED
        and (name in LATCHED_NAMES or name.startswith(LATCHED_PREFIXES))
        and not name.startswith(RUN_PREFIXES)
    )


def chooses_allocator(env: Mapping[str, str]) -> str | None:
    """Return the variable of *env* that chooses torch's allocator, None if there is none."""
    return next((name for name in sorted(ALLOCATOR) if BACKEND in env.get(name, "")), None)


def first_difference(ours: Mapping[str, str], theirs: Mapping[str, str]) -> str | None:
    """Return the first variable that differs between two latched environments, None if they are equal."""
    return next((name for name in sorted({*ours, *theirs}) if ours.get(name) != theirs.get(name)), None)


def for_warm_interpreter(env: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for a warm interpreter: the job's *env* without the variables of that one run."""
    return {name: value for name, value in env.items() if name not in NOT_LATCHED and not name.startswith(RUN_PREFIXES)}
