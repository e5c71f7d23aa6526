"""The final ending of a run: whether its device was out of memory, its device or its script failed, a success is none.

Pure, except for ``tail``, which reads a log.

A broken device that kills every job within seconds is always free, so it would take the whole queue. Three such
failures in a row drain the device (``count_deaths`` in gpuqueue/queue/lua/shared/drains.lua). A broken script fails
quickly on every device, and must not drain any. So a failure counts against the device only if the script is an
unlikely cause. docs/explanation/draining.md describes this for users.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from errno import EAGAIN, EIO, EMFILE, ENFILE, ENOMEM, ENOSPC, EROFS, ESTALE
from itertools import islice
from pathlib import Path

from gpuqueue.errors import Unreadable
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.device import DeviceKind
from gpuqueue.model.run import Ending, EndingKind, NoteKind, RunNote
from gpuqueue.system.logs import last_bytes
from gpuqueue.system.safe_open import read_small
from gpuqueue.text.json_fields import Fields, loaded
from gpuqueue.text.sanitize import in_one_line, short
from gpuqueue.text.units import format_bytes
from workers.run.memory_texts import framework_that_lacks, lacks_host_memory
from workers.shim.acl import REPORTS
from workers.shim.log import OWN_LINE

#: How much of the log's end is searched, in bytes. It contains a final traceback.
TAIL_BYTES = 64 * 1024
#: How many lines of text may follow an error at the end of a log, how many of the last lines are searched for one that
#: is not in a traceback, and the most characters of it in a note. A script prints a line or two before it exits with 0;
#: torchrun prints a summary.
MAX_AFTER, MAX_LAST, MAX_ERROR = 3, 40, 120
#: Colours, and the names of processes that torchrun, vLLM and Ray put before each line.
_DECORATION = re.compile(rb"\x1b\[[0-9;]*m|^\[[a-z]+[0-9]+\]: ?|^\(\w+ pid=\d+(?:, ip=[\d.]+)?\) ?", re.MULTILINE)
#: The last line of a traceback of Python, how the lines before it begin (also in a box of rich), what precedes one
#: after which the program goes on, and the errors that have no traceback.
_EXCEPTION = re.compile(rb"[A-Za-z_][\w.]*(?::(?: .*)?)?")
_FRAME = (b" ", b"\t", b"\xe2\x94", b"\xe2\x95")
_GOES_ON = (b"Exception ignored", b"Error in atexit")
#: What precedes a traceback of a thread, which does not end the program, and one that the exception before it caused.
_OF_THREAD = b"Exception in thread"
_CAUSED = b"The above exception was the direct cause"
#: How an uncaught exception of C++ is reported.
_THROWN = b"terminate called after throwing"
#: Errors that only say that something else failed before: launchers, other ranks, readers of a process that died.
_CONSEQUENCE = re.compile(
    rb"ChildFailedError|Process(?:Exited|Raised)Exception|CalledProcessError|Broken(?:Process)?Pool|BrokenPipeError"
    rb"|Dist(?:Backend|Network)Error|ConnectionResetError|EOFError|[Cc]onnection (?:closed|reset) by peer"
    rb"|KeyboardInterrupt|SystemExit|exited unexpectedly|died unexpectedly|remote process exited"
    rb"|[Ff]ailed to (?:load|create|initiali[sz]e)|[Cc]ould not (?:load|create|initiali[sz]e)"
    rb"|initialization failed\. See root cause above"
)
#: The longest line of a shell that counts, in bytes. It may have a path, and a search takes the square of its length.
MAX_OF_SHELL = 1000
#: How bash, dash and zsh report a command that did not start or that a signal ended, and Python a missing script.
_OF_SHELL = re.compile(
    rb".*: (?:line )?\d+: .+: (?:(?:command )?not found|No such file or directory|Permission denied)"
    rb"|.*:\d+: (?:command not found|no such file or directory|permission denied): .+"
    rb"|(?:.*: line \d+: +\d+ )?(?:Segmentation fault|Bus error|Illegal instruction|Aborted|Killed)"
    rb"(?:(?:  | \(core dumped\)).*)?"
    rb"|.*: can't open file '.+': \[Errno \d+\] .+"
)
_OF_SYNTAX = (b"SyntaxError: ", b"IndentationError: ", b"TabError: ")
#: A line that is no text of its own: it is indented, has no word, or is a number in the summary of torchrun.
_NO_TEXT = re.compile(rb"\s.*|(?:[^\w\x80-\xff]|_)*|\[[0-9]+\]:")
#: A failure within so many seconds of the start is a quick one. Long enough to import torch from a slow disk.
QUICK_S = 30.0

#: Signals by which the kernel ends a faulty process. Not SIGABRT, which a program sends to itself when it gives up,
#: and not the signals that ask a process to exit.
_CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGKILL)
#: A shell exits with this number plus the signal number if a signal has ended its child.
_BY_SIGNAL = 128

#: Messages for a failure of the device or its host: texts of CUDA's runtime, error names of the runtime (cudaError…)
#: and of the driver (CUDA_ERROR_…), and texts of torch and pynvml. Other CUDA errors mostly have their cause in the
#: script (an index out of bounds, a wrong ordinal, a build for other cards), and count against no device.
_DEVICE_FAILED = re.compile(
    rb"CUDA-capable device\(s\) is/are busy or unavailable|no CUDA-capable device is detected"
    rb"|uncorrectable (?:ECC|NVLink) error|CUDA error: unknown error|RuntimeError: CUDA unknown error"
    rb"|No CUDA GPUs are available|system not yet initialized|unsupported display driver / cuda driver combination"
    rb"|OS call failed or operation not supported on this OS|MPS client failed to connect"
    rb"|(?:CUDA_ERROR_|cudaError)(?:DEVICES?_?UNAVAILABLE|NO_?DEVICE|ECC_?UNCORRECTABLE|NVLINK_?UNCORRECTABLE"
    rb"|SYSTEM_?NOT_?READY|SYSTEM_?DRIVER_?MISMATCH|OPERATING_?SYSTEM|MPS_?CONNECTION_?FAILED|UNKNOWN)\b"
    rb"|Failed to initialize NVML: [ -~]{1,60}|Driver/library version mismatch|GPU is lost"
    rb"|NVML_?ERROR_?(?:GPU_?IS_?LOST|RESET_?REQUIRED|DRIVER_?NOT_?LOADED|LIB_?RM_?VERSION_?MISMATCH|UNKNOWN)\b",
    re.IGNORECASE,
)
_CUDA_FAILED = re.compile(rb"CUDA error|CUDA_ERROR_|cudaError|CUDA runtime error|device-side assert", re.IGNORECASE)
_ASSERTED = re.compile(rb"device-side assert|cudaErrorAssert|CUDA_ERROR_ASSERT", re.IGNORECASE)

#: Messages of the errors by which a host fails to start a valid command.
_HOST_FAILED = tuple(os.strerror(code) for code in (EAGAIN, EIO, EMFILE, ENFILE, ENOMEM, ENOSPC, EROFS, ESTALE))
#: How the shim's reasons for a failure begin before it knows the job's command. These reasons name nothing of the job.
_NOT_YET_THE_JOBS = ("cannot prepare the process", "cannot make a control group", "cannot make a process")
#: Texts in the log of a run that failed -> the note with a remedy. The first are those of a program that cannot listen
#: on a port, because another process does: of the C library and of accelerate. The second are those of bash, of dash,
#: of zsh and of conda. A MIG instance has no number, so no option would help.
_HINTS = {
    NoteKind.PORT_TAKEN: re.compile(
        rb"EADDRINUSE|address already in use|another process is utilizing it", re.IGNORECASE
    ),
    NoteKind.NOT_ACTIVATED: re.compile(
        rb": (?:module|ml|(?:micro)?mamba|conda|activate): (?:command )?not found"
        rb"|command not found: (?:module|ml|(?:micro)?mamba|conda)$"
        rb"|\bactivate: No such file or directory|/conda\.sh: No such file or directory"
        rb"|Run '(?:conda|mamba) init'|configured to use '(?:conda|mamba) activate'",
        re.MULTILINE,
    ),
    NoteKind.UUID_AS_NUMBER: re.compile(rb"invalid literal for int\(\) with base \d+: b?[\"'][\s\[]*(?:GPU|sim)-"),
}
#: A figure that is larger than any device's memory. The job writes the files, so they may hold anything.
_ABSURD = 2**60
#: Most reports that are read per run, and most bytes of one report.
_MAX_REPORTS = 4096
_MAX_BYTES = 64 * 1024


def judged(
    ending: Ending,
    report: InsideReport | None,
    log_tail: bytes,
    *,
    asked_bytes: int,
    peak_bytes: int | None,
    circumstances: str = "",
) -> Ending:
    """Return *ending*, or OUT_OF_MEMORY if the program failed by itself and reported that the device was full.

    The report is in *report*, from the run's processes, or at the end of the log (:func:`ran_out`). The ending of a run
    that succeeded, or that gpuqueue or a signal from outside ended, is not changed. The ending of a run that the
    watchdog ended gets the figures as its detail. *circumstances* describes the free memory and the neighbours.
    """
    detail = f"asked {format_bytes(asked_bytes)}"
    if peak_bytes is not None:
        detail += f", peak {format_bytes(peak_bytes)}"
    if circumstances:
        detail += f", {circumstances}"
    if ending.kind is EndingKind.OUT_OF_MEMORY:  # the watchdog ended the run
        return replace(ending, detail=f"{detail}; {ending.detail}" if ending.detail else detail)
    if not _failed_by_itself(ending):
        return ending
    if not ran_out(report, log_tail):
        return ending
    status = ending.exit_code if ending.signal is None else -ending.signal
    return Ending.stopped(EndingKind.OUT_OF_MEMORY, status, detail)


def _failed_by_itself(ending: Ending) -> bool:
    """Return whether the program itself failed. C++ programs end by SIGABRT after an uncaught exception."""
    if ending.kind is EndingKind.SIGNALLED:
        return ending.signal == signal.SIGABRT
    return ending.kind is EndingKind.EXITED and ending.exit_code != 0


def ran_out(report: InsideReport | None, log_tail: bytes) -> bool:
    """Return whether a program failed because a device was out of memory: by its report, its last error, or a text.

    The report of torch comes first. Next is the exception with which the log ends, or the one that it only follows
    from. Without one, a text in the last lines counts; one of torch only if no process reported that it survived.
    """
    if report is not None and report.out_of_memory:
        return True
    lines = _lines(log_tail)
    end = len(lines)
    while (last := _last_exception(lines, end)) is not None:
        first, place = last
        if framework_that_lacks(b"\n".join(lines[first:end])) is not None:
            return True
        is_caused = first > 0 and lines[first - 1].startswith(_CAUSED)
        if not is_caused and not _CONSEQUENCE.search(b"\n".join(lines[place : place + MAX_AFTER])):
            return False
        end = first - is_caused
    text = b"\n".join(lines[max(0, end - MAX_LAST) : end])
    return framework_that_lacks(text, but=None if report is None else "PyTorch") is not None


def _lines(log_tail: bytes) -> list[bytes]:
    """Return the lines of a log without decoration, and without the empty ones and those of gpuqueue."""
    lines = _DECORATION.sub(b"", log_tail).splitlines()
    return [line for line in lines if line.strip() and not line.lstrip().startswith(OWN_LINE.encode())]


def _last_exception(lines: Sequence[bytes], end: int) -> tuple[int, int] | None:
    """Return the first line of the last exception before *end*, and the line that names it; None without one."""
    for place in range(end - 1, -1, -1):
        if lines[place].startswith((_THROWN, *_OF_SYNTAX)):
            return place, place
        first = _traceback_of(lines, place)
        if first is not None and not (first and lines[first - 1].startswith((*_GOES_ON, _OF_THREAD))):
            return first, place
    return None


def hints(ending: Ending, log_tail: bytes) -> Iterator[RunNote]:
    """Yield the notes that say how to mend a run that failed, by the texts in its log."""
    if _failed_by_itself(ending) or ending.kind is EndingKind.TIMED_OUT:  # the other ranks may wait for ever
        yield from (RunNote(kind=kind.value) for kind, text in _HINTS.items() if text.search(log_tail))


def hidden_failure(ending: Ending, report: InsideReport | None, logs: Iterable[bytes]) -> RunNote | None:
    """Return the note that a program failed in a run which exited with 0, None if none did.

    A pipe has the exit code of its last command, and a script that of its last line. *logs* are the ends of the logs.
    """
    if ending.kind is not EndingKind.EXITED or ending.exit_code != 0:
        return None
    error = report.message if report is not None and report.out_of_memory else None
    if error is None:
        error = next((line for line in map(last_error, logs) if line is not None), None)
    if error is None:
        return None
    words = short(in_one_line(error).strip(), MAX_ERROR).rstrip(".: ")
    return RunNote(kind=NoteKind.HIDDEN_FAILURE.value, items=(words,) if words else ())


def last_error(log_tail: bytes) -> str | None:
    """Return the error with which a log ends, None if it ends with none.

    That is the last line of a traceback, or one that says that a device was out of memory or that a command of a shell
    did not start or crashed. At most ``MAX_AFTER`` lines of text follow it: after more, the program has gone on.
    """
    lines = _lines(log_tail)
    after = 0
    for place in range(len(lines) - 1, max(-1, len(lines) - 1 - MAX_LAST), -1):
        line = lines[place]
        if framework_that_lacks(line) is not None or _is_error(lines, place):
            return line.decode(errors="replace")
        after += _NO_TEXT.fullmatch(line) is None
        if after > MAX_AFTER:
            break
    return None


def _is_error(lines: Sequence[bytes], place: int) -> bool:
    """Return whether this line is one of a shell, or ends a traceback after which Python does not go on."""
    line = lines[place]
    if line.startswith(_OF_SYNTAX) or (len(line) <= MAX_OF_SHELL and _OF_SHELL.fullmatch(line)):
        return True
    first = _traceback_of(lines, place)
    return first is not None and not (first and lines[first - 1].startswith(_GOES_ON))


def _traceback_of(lines: Sequence[bytes], place: int) -> int | None:
    """Return the first line of the traceback that this line ends, None if it ends none."""
    if not _EXCEPTION.fullmatch(lines[place]):
        return None
    for at in range(place - 1, -1, -1):
        if b"Traceback (most recent call last)" in lines[at]:
            return at
        if not lines[at].startswith(_FRAME):
            return None
    return None


def tail(log: Path) -> bytes:
    """Return the last ``TAIL_BYTES`` of a log, empty if there is none."""
    return last_bytes(log, TAIL_BYTES)


def clears_devices(ending: Ending, duration_s: float | None) -> bool:
    """Return whether an ending shows that the devices work: the run succeeded, or lasted at least ``QUICK_S``."""
    succeeded = ending.kind is EndingKind.EXITED and ending.exit_code == 0
    return succeeded or (duration_s is not None and duration_s >= QUICK_S)


def device_fault(ending: Ending, duration_s: float | None, log_tail: bytes, *, kind: DeviceKind | None) -> str | None:
    """Return why the device or the host is the likely cause of a run's failure, or None if it is not.

    A CUDA error in the log decides if there is one; otherwise the way in which the process ended does. *kind* is the
    kind of the run's devices: a CUDA error without a GPU is the script's fault. Lost runs are judged elsewhere
    (``Witness.lost``).
    """
    if ending.kind is EndingKind.REFUSED:
        return host_refused(ending.detail)
    by_itself = ending.kind in {EndingKind.EXITED, EndingKind.SIGNALLED}
    if not by_itself or duration_s is None or clears_devices(ending, duration_s):
        return None
    if ending.detail:  # the kernel killed it for lack of host memory
        return None
    if framework_that_lacks(log_tail) or lacks_host_memory(log_tail) or _ASSERTED.search(log_tail):
        return None  # later CUDA errors in the log are consequences of this one
    failed = _DEVICE_FAILED.search(log_tail)
    if failed is not None or _CUDA_FAILED.search(log_tail):
        return failed[0].decode("ascii") if failed and kind is DeviceKind.GPU else None
    return _crash(ending)


def host_refused(detail: str) -> str | None:
    """Return why the host is the cause of a failed start, or None if it is not.

    The reason names neither program nor directory of the job, because everybody sees the reasons of a device.
    """
    if detail.startswith(_NOT_YET_THE_JOBS):
        return detail
    return next((reason for reason in _HOST_FAILED if reason in detail), None)


def _crash(ending: Ending) -> str | None:
    """Return which crash signal ended the process or, if the process is a shell, its child. None if there is none."""
    number = ending.signal if ending.kind is EndingKind.SIGNALLED else (ending.exit_code or 0) - _BY_SIGNAL
    return next((f"killed by {crash.name}" for crash in _CRASHES if crash == number), None)


@dataclass(frozen=True, kw_only=True, slots=True)
class InsideReport:
    """The figures of torch's allocators in one process of a run, or in all of them.

    The keys are device UUIDs, or the device's position in the run if a process did not know the UUID. The bytes of a
    run are those of the process with the most. They are exact for one process, and a lower bound for several, because
    the peaks of the processes may have occurred at the same time.
    """

    #: Whether a process died of an uncaught OutOfMemoryError.
    out_of_memory: bool = False
    reserved_on: Mapping[str | int, int] = field(default_factory=dict)
    #: The number of out-of-memory errors on each device.
    ooms_on: Mapping[str | int, int] = field(default_factory=dict)
    #: The message of the OutOfMemoryError that a process died of, empty if none is known.
    message: str = ""

    def reserved(self, uuid: str, position: int) -> int | None:
        """Return the bytes reserved on the run's device *uuid* at *position*, or None if torch did not use it."""
        found = [self.reserved_on[key] for key in (uuid, position) if key in self.reserved_on]
        return sum(found) if found else None

    def ran_out_on(self, uuids: Sequence[str]) -> list[str]:
        """Return those of the run's devices *uuids*, in order, that ran out of memory; empty if none is known."""
        places = enumerate(uuids)
        return [uuid for position, uuid in places if any(self.ooms_on.get(key) for key in (uuid, position))]


def read_reports(run_dir: Path) -> InsideReport | None:
    """Return the combined report of the run's processes, or None if no process has written a valid report."""
    texts = islice(_texts(run_dir), _MAX_REPORTS)
    reported = [report for text in texts if (report := _read(text)) is not None]
    if not reported:
        return None
    places = {place for each in reported for place in each.reserved_on}
    return InsideReport(
        out_of_memory=any(each.out_of_memory for each in reported),
        reserved_on={place: max(each.reserved_on.get(place, 0) for each in reported) for place in places},
        ooms_on={place: sum(each.ooms_on.get(place, 0) for each in reported) for place in places},
        message=next((each.message for each in reported if each.message), ""),
    )


def _texts(run_dir: Path) -> Iterator[bytes]:
    """Yield each report: a line of ``reports``, or a file in ``inside`` of a run that an earlier version started."""
    with contextlib.suppress(OSError, Unreadable):
        yield from read_small(run_dir / REPORTS).splitlines()
    with contextlib.suppress(OSError), os.scandir(run_dir / "inside") as entries:
        for entry in entries:
            with contextlib.suppress(OSError, Unreadable):
                yield read_small(entry.path, _MAX_BYTES)


def _read(text: bytes) -> InsideReport | None:
    """Return the report of one process, or None if *text* is not a valid report. The job writes it."""
    try:
        if len(text) > _MAX_BYTES:
            return None
        fields = loaded(text, "a report of torch")
        reserved: Counter[str | int] = Counter()
        ooms: Counter[str | int] = Counter()
        for plain in fields.each("devices"):
            device = Fields(plain, "a device in a report of torch")
            place = device.text_or_none("uuid") or device.whole("index")
            reserved[place] += device.whole("reserved_bytes")
            ooms[place] += device.whole("ooms")
    except Unreadable:
        return None
    if max([*reserved.values(), *ooms.values()], default=0) >= _ABSURD:
        return None
    message = fields.plain("message")
    return InsideReport(
        out_of_memory=fields.plain("out_of_memory") is True,
        reserved_on=reserved,
        ooms_on=ooms,
        message=message.encode(errors="replace").decode() if isinstance(message, str) else "",
    )
