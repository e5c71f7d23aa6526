"""Starts a dry run, enforces its time and memory limits, and reads its report.

The script runs in its own Python and its own session, so that all processes that it starts can be ended. Its output
goes to a file, and its temporary files to a directory that is removed. It runs in its usual working directory, which
it may need. Files that it writes there in its first steps stay.

A dry run counts what torch's allocator would take. What to ask for that is in
:mod:`gpuqueue.model.framework_memory`.
"""

from __future__ import annotations

import json
import math
import os
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuqueue.errors import DryRunFailed, DryRunTimeout
from gpuqueue.estimate.past import Past
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.lazy.imports import later
from gpuqueue.learning.rule import rounded_up
from gpuqueue.model.framework_memory import CUDA_BYTES, allowance_bytes, request_bytes
from gpuqueue.text.units import KIB, format_bytes, format_duration

if TYPE_CHECKING:
    import subprocess
    import tempfile
else:  # not needed for an answer from the history
    subprocess = later("subprocess")
    tempfile = later("tempfile")

#: The program that runs the script.
BEGIN = Path(__file__).with_name("inside") / "begin.py"
#: Interval between two samples of a dry run's host memory, in seconds.
POLL_S = 0.2
#: Longest wait for killed processes to be gone, in seconds. Without an init that reaps orphans they stay as zombies.
GONE_S = 3.0
#: The share of the host's available memory that a dry run may take by default.
RAM_SHARE = 0.8
#: Number of last output lines that are shown if a script failed without a traceback.
TAIL = 12

#: The limits of a dry run, printed below each in two lines.
LIMITS = (
    "An estimate. 10 % are added for fragmentation and workspaces of cuDNN and cuBLAS, which are not counted.",
    "Counted in the first steps, on one GPU: what comes later, such as validation or longer inputs, may need more.",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """A dry run to make: the command as for a submit, its directory and environment, and its limits.

    ``ram_bytes`` is the largest host memory that the script's process may take. ``timeout_s`` is its time limit.
    """

    interpreter: str
    script: str
    args: tuple[str, ...]
    cwd: str
    env: Mapping[str, str] = field(repr=False)
    steps: int
    timeout_s: float
    ram_bytes: int


def available_bytes(meminfo: Path = Path("/proc/meminfo")) -> int | None:
    """Return the memory that is available without swapping according to the kernel, or None if it is unknown."""
    try:
        lines = meminfo.read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) * KIB for line in lines if line.startswith("MemAvailable:"))
    except (OSError, ValueError, IndexError, StopIteration):
        return None


def usual_ram_bytes() -> int:
    """Return the default limit of a dry run's host memory."""
    there = available_bytes()
    return 2**62 if there is None else math.floor(there * RAM_SHARE)


def dry_run(request: Request) -> DryRun:
    """Run the script of *request* for a few steps on the CPU and return the counted memory.

    Raises:
        DryRunFailed: the script failed, its Python has no supported torch, it put nothing on a GPU, or it exceeded
            its host memory limit.
        DryRunTimeout: the script made no step within its time limit.

    """
    # A short name: the sockets of multiprocessing are below it, and a socket's path has at most 107 bytes.
    with tempfile.TemporaryDirectory(prefix="gq-", ignore_cleanup_errors=True) as scratch:
        report, output = Path(scratch, "report"), Path(scratch, "output")
        began_s = time.monotonic()
        over = _run(request, report, output, scratch)
        return _read(request, report, output, over, time.monotonic() - began_s)


def _run(request: Request, report: Path, output: Path, scratch: str) -> str:
    """Run the script to its end, and return the limit that it exceeded: ``time``, ``ram``, or an empty text."""
    argv = [request.interpreter, str(BEGIN), str(report), str(request.steps), request.script, *request.args]
    # No GPU of this machine is used, even if a call gets past the simulated GPU.
    env = {**request.env, "TMPDIR": scratch, "CUDA_VISIBLE_DEVICES": "", "PYTHONDONTWRITEBYTECODE": "1"}
    with output.open("wb") as file:
        process = subprocess.Popen(
            argv, cwd=request.cwd, env=env, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True
        )
    try:
        return _watch(process, request)
    finally:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)  # data loader workers and other child processes
        process.wait()
        _await_all(process.pid)


def _await_all(group: int) -> None:
    """Wait until the last process of a killed group is gone, at most GONE_S."""
    until_s = time.monotonic() + GONE_S
    with suppress(ProcessLookupError, PermissionError):
        while time.monotonic() < until_s:
            os.killpg(group, 0)
            time.sleep(0.01)


def _watch(process: subprocess.Popen[bytes], request: Request) -> str:
    until_s = time.monotonic() + request.timeout_s
    while time.monotonic() < until_s:
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=min(POLL_S, max(0.0, until_s - time.monotonic())))
            return ""
        if _resident_bytes(process.pid) > request.ram_bytes:
            return "ram"
    return "time"


def _resident_bytes(pid: int) -> int:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def _read(request: Request, report: Path, output: Path, over: str, took_s: float) -> DryRun:
    reported = _reported(report)
    _check_limits(request, reported, over)
    ended = _ended(request, reported, over, output)
    return DryRun(
        parts=tuple(Part(name=name, **sizes) for name, sizes in reported["parts"].items()),
        peak_bytes=reported["peak_bytes"],
        steps=reported["steps"],
        forwards=reported["forwards"],
        optimizers=tuple(reported["optimizers"]),
        dtypes=tuple(reported["dtypes"]),
        torch=reported["torch"],
        ended=ended,
        took_s=round(took_s, 3),
    )


def _check_limits(request: Request, reported: Mapping[str, Any], over: str) -> None:
    """Refuse a run that exceeded its memory, or its time before the first step."""
    script = Path(request.script).name
    if over == "ram":
        raise DryRunFailed(
            f"the dry run of {script} took more than {format_bytes(request.ram_bytes)} of this machine's memory: "
            "run it where there is more, allow more with --ram, or give the script a smaller batch"
        )
    if over == "time" and not reported.get("steps"):
        raise DryRunTimeout(
            f"{script} made no step of an optimizer within {format_duration(request.timeout_s)}: "
            "give it more time with --timeout, or less to do"
        )


def _ended(request: Request, reported: Mapping[str, Any], over: str, output: Path) -> str:
    """Return how the run ended: ``enough``, ``finished`` or ``timed_out``. Refuse one that has no figures."""
    script = Path(request.script).name
    ended = "timed_out" if over == "time" else reported.get("ended")
    if ended == "no torch":
        raise DryRunFailed(
            f"the dry run needs torch 2.1 or newer in {request.interpreter} ({reported.get('trace')}): "
            "name another Python with --python"
        )
    if ended not in {"enough", "finished", "timed_out"}:
        trace = reported.get("trace") or _tail(output)
        raise DryRunFailed(f"{script} failed in the dry run; it is not measured", trace=trace)
    if not reported["peak_bytes"]:
        raise DryRunFailed(
            f"{script} ended without using a GPU through torch: there is nothing to count "
            "(a script that starts others is not followed)"
        )
    return ended


def _reported(report: Path) -> dict[str, Any]:
    """Return the report, or an empty dict if the process was killed before it wrote one."""
    try:
        plain = json.loads(report.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return plain if isinstance(plain, dict) else {}


def _tail(output: Path) -> str:
    with suppress(OSError):
        lines: Sequence[str] = output.read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join(lines[-TAIL:])
    return ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """Memory of one kind of tensors: ``largest_bytes`` at its own peak, ``at_peak_bytes`` at the overall peak."""

    name: str
    largest_bytes: int
    at_peak_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class DryRun:
    """The GPU memory that a few steps of a script would have used, counted on the CPU.

    ``steps`` counts optimizer steps. ``forwards`` counts forward passes of the model, which matter for a script
    without an optimizer. ``ended`` is ``enough``, ``finished`` (the script ended earlier) or ``timed_out`` (after at
    least one step). ``cuda_bytes`` is what CUDA takes beside torch's allocator, and ``cuda_measured_on`` the model of
    device on which that was measured, None if it was not.
    """

    ended: str
    steps: int
    forwards: int
    optimizers: tuple[str, ...]
    dtypes: tuple[str, ...]
    torch: str
    took_s: float
    parts: tuple[Part, ...]
    peak_bytes: int
    cuda_bytes: int = CUDA_BYTES
    cuda_measured_on: str | None = None

    DERIVED = ("allowance_bytes", "need_bytes")

    def largest(self, name: str) -> int:
        """Return the largest size of the part *name*, in bytes."""
        return next(part.largest_bytes for part in self.parts if part.name == name)

    def at_peak(self, name: str) -> int:
        """Return the size of the part *name* at the overall peak, in bytes."""
        return next(part.at_peak_bytes for part in self.parts if part.name == name)

    @property
    def fixed_bytes(self) -> int:
        """Return the bytes at the peak that do not depend on the batch: parameters, gradients, optimizer states."""
        return sum(map(self.at_peak, ("parameters", "gradients", "optimizer_states")))

    @property
    def variable_bytes(self) -> int:
        """Return the other bytes at the peak: activations, data, buffers, rounding."""
        return self.peak_bytes - self.fixed_bytes

    @property
    def need_bytes(self) -> int:
        """The bytes that the driver would show: the peak, the allowance and CUDA's own."""
        return request_bytes(self.peak_bytes, self.cuda_bytes)

    @property
    def allowance_bytes(self) -> int:
        """The allowance for fragmentation and workspaces, in bytes."""
        return allowance_bytes(self.peak_bytes)


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """A dry run with one batch size."""

    size: int
    dry_run: DryRun


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """The memory that a script needs on each device, with its sources. ``notes`` are texts for users."""

    script: str
    args: tuple[str, ...]
    past: Past | None = None
    dry_run: DryRun | None = None
    batches: tuple[Batch, ...] = ()
    notes: tuple[str, ...] = ()

    DERIVED = ("need_bytes", "mem_bytes")

    @property
    def need_bytes(self) -> int | None:
        """The needed bytes: of the history if it suffices, else the larger of both. None if unknown."""
        if self.past is not None and self.past.suffices:
            return self.past.need_bytes
        found = [each.need_bytes for each in (self.past, self.dry_run) if each is not None]
        return max(found, default=None)

    @property
    def mem_bytes(self) -> int | None:
        """The bytes to request: as with ``--mem auto``, else the need, rounded up. None if unknown."""
        if self.past is not None and self.past.suffices:
            return self.past.mem_bytes
        return None if self.need_bytes is None else rounded_up(self.need_bytes)

    def noted(self, *notes: str) -> Estimate:
        """Return the same estimate with more notes."""
        return replace(self, notes=(*self.notes, *notes))
