"""What a job may report about itself, and ask the queue, from its own code. Standard library only.

    >>> from gpuqueue import job
    >>> job.metric(val_acc=0.91, step=3)

Outside a job nothing happens, so a script runs unchanged without the queue. In a run with several ranks only that with
``RANK`` 0 reports. A value of a wrong type is an error of the script, and raises TypeError everywhere. Everything else
(a name that is not accepted, too many names, a full disk) is printed once on standard error and never ends a training.

Each report is one line of JSON, appended to the file ``metrics`` of the run directory, which the worker reads
(:mod:`workers.measure.job_values`). It waits for no disk and no network.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from operator import index

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import FrameType
    from typing import Any

#: The file in the run directory, the accepted names, and the most of them in one run (metrics and parameters apart).
#: The limits are those of :mod:`gpuqueue.model.job_values`, and the file that of :mod:`workers.shim.acl`.
FILE = "metrics"
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_./@%+:-]{0,63}")
MAX_NAMES = 64
#: Largest text of a parameter, in characters, and of a result as JSON, in bytes.
MAX_TEXT, MAX_RESULT_BYTES = 200, 16 * 1024
#: The exit code by which a job asks to run again, and the file that appears when it is preempted.
REQUEUE, PREEMPTED = 75, "preempt.json"
#: The signals by which the queue warns of an end: at a preemption, and those that ``--signal`` is mostly given.
WARNINGS = ("SIGTERM", "SIGUSR1", "SIGUSR2")


class _State:
    """What this process knows of its job. A fork keeps it: appended lines do not mix."""

    directory: str | None = None
    file: int | None = None
    share: int = -1
    warned: bool = False
    asked: bool = False
    names: dict[str, set[str]] = {}  # noqa: RUF012 - there is one state
    printed: set[str] = set()  # noqa: RUF012 - as above


def metric(*, step: int | None = None, **values: Any) -> None:
    """Report the current values of metrics: numbers, or scalars of torch and NumPy.

    A tensor on a GPU is waited for. NaN and infinity are kept as such.

    Raises:
        TypeError: a value is no number, or the step no whole number from 0 up.

    """
    plain = {name: _number(name, value) for name, value in values.items()}
    number = None if step is None else index(step)
    if number is not None and number < 0:
        raise TypeError(f"step must be a whole number from 0 up, not {number}")
    if kept := _accepted("metric", plain):
        _append({"metric": kept, "step": number, "at_s": round(time.monotonic(), 3)})


def progress(done: float, total: float) -> None:
    """Report how much of the work of this run is done, such as ``progress(step, steps)``: prints a line for each 1 %.

    The queue reads the line as it reads the bars of others.

    Raises:
        TypeError: a value is no number from 0 up.

    """
    done, total = _number("done", done), _number("total", total)
    if not 0 <= done < float("inf") or not 0 < total < float("inf"):
        raise TypeError(f"progress is a part of a whole, not {done:g} of {total:g}")
    share = int(100 * done / total)
    if _directory() is not None and _is_reporting() and share != _State.share:
        _State.share = share
        print(f"progress: {min(done, total):g}/{total:g}", flush=True)  # noqa: T201 - it is read from the output


def param(**values: Any) -> None:
    """Report parameters of this run: numbers or short texts. The last value of each counts.

    Raises:
        TypeError: a value is neither a number nor a text.

    """
    plain = {name: value if isinstance(value, (str, bool)) else _number(name, value) for name, value in values.items()}
    if kept := _accepted("param", plain):
        _append({"param": {name: str(value)[:MAX_TEXT] for name, value in kept.items()}})


def result(values: Mapping[str, Any]) -> None:
    """Report the result of this run: an object of JSON, at most 16 KiB. The last one counts.

    Raises:
        TypeError: it cannot be written as JSON.

    """
    if not isinstance(values, dict):
        raise TypeError(f"a result is a dict, not {type(values).__name__}")
    text = json.dumps(values, default=_plain)
    if len(text) > MAX_RESULT_BYTES:
        _print_once(f"a result of {len(text)} bytes is not kept, at most {MAX_RESULT_BYTES} are: write it to a file")
    else:
        _append({"result": json.loads(text)})


def checkpoint_requested() -> bool:
    """Return whether the queue has warned this process that its run ends soon: save now, then call :func:`requeue`.

    The warning is a preemption, the signal of ``--signal``, or that of a cancel or the time limit. The first call
    installs handlers of SIGTERM, SIGUSR1 and SIGUSR2 that only take a note, each if the script has none of its own: so
    call it once before the training begins.
    """
    directory = _directory()
    if directory is None:
        return False
    if not _State.asked:
        _State.asked = True
        _install()
    return _State.warned or os.path.lexists(f"{directory}/{PREEMPTED}")


def requeue() -> None:
    """End this process by the exit code for which the queue runs the job again. Outside a job nothing happens.

    Raises:
        SystemExit: the process ends.

    """
    if _directory() is not None:
        raise SystemExit(REQUEUE)


def _directory() -> str | None:
    """Return the run directory, None outside a job and in a second command (``gpuqueue exec``).

    A warm interpreter imports this before it becomes a job.
    """
    if _State.directory is None and "GPUQUEUE_EXEC" not in os.environ:
        _State.directory = os.environ.get("GPUQUEUE_RUN_DIR")
    return _State.directory


def _is_reporting() -> bool:
    """Return whether this is the process that reports for all ranks of the job."""
    return os.environ.get("RANK", "0") == "0"


def _number(name: str, value: Any) -> float:
    if not isinstance(value, (int, float)):
        value = _plain(value, name)
    if not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a number, not {type(value).__name__}")
    return value + 0  # a truth value counts as 0 or 1


def _plain(value: Any, name: str = "a value") -> Any:
    """Return a scalar of torch or NumPy as a number of Python.

    Raises:
        TypeError: it is none.

    """
    try:
        return value.item()
    except (AttributeError, ValueError, RuntimeError):  # no scalar at all, or several elements
        raise TypeError(f"{name} must be a number, not {type(value).__name__}") from None


def _accepted(kind: str, values: dict[str, Any]) -> dict[str, Any]:
    """Return those of *values* that the queue accepts."""
    known = _State.names.setdefault(kind, set())
    kept = {}
    for name, value in values.items():
        if name not in known:
            if not NAME.fullmatch(name):
                _print_once(
                    f"the {kind} {name!r} is ignored: a name has up to 64 of the characters A-Z a-z 0-9 _ . / @ % + : -"
                )
                continue
            if len(known) >= MAX_NAMES:
                _print_once(f"a {kind} is ignored: a run has at most {MAX_NAMES} of them")
                continue
            known.add(name)
        kept[name] = value
    return kept


def _append(line: dict[str, Any]) -> None:
    """Append a line to the file of the run, in one call, so that no other line mixes with it."""
    directory = _directory()
    if directory is None or not _is_reporting():
        return
    try:
        if _State.file is None:
            # The run directory may belong to another account: no link that somebody has put there is followed.
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            _State.file = os.open(f"{directory}/{FILE}", flags, 0o600)
        os.write(_State.file, (json.dumps(line, separators=(",", ":")) + "\n").encode())
    except OSError as error:
        _print_once(f"metrics cannot be written: {error.strerror}")


def _print_once(words: str) -> None:
    """Print *words* once, if this is a job."""
    if _directory() is not None and words not in _State.printed:
        _State.printed.add(words)
        sys.stderr.write(f"gpuqueue: {words}\n")


def _install() -> None:
    """Take a note of the signals that warn, each unless the script has a handler of its own.

    A forked process, such as a data loader, gets the default action back, and loses no signal in between.
    """
    import signal  # noqa: PLC0415 - only a job that saves needs it
    import threading  # noqa: PLC0415 - as above

    if threading.current_thread() is not threading.main_thread():  # only the main thread may install a handler
        return

    def note(_number: int, _frame: FrameType | None) -> None:
        _State.warned = True

    def block() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, numbers)

    def unblock() -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)

    def reset() -> None:
        for number in numbers:
            if signal.getsignal(number) is note:
                signal.signal(number, signal.SIG_DFL)
        unblock()

    known = [getattr(signal, name) for name in WARNINGS]
    numbers = [number for number in known if signal.getsignal(number) is signal.SIG_DFL]
    for number in numbers:
        signal.signal(number, note)
    os.register_at_fork(before=block, after_in_parent=unblock, after_in_child=reset)
