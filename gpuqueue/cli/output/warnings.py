"""Warnings at a submit that refuse nothing: of a missing program, a lost signal, and variables that are no settings.

The program may exist on the job's host.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Sequence

from gpuqueue.console import print_message
from gpuqueue.lazy.imports import pattern
from gpuqueue.model.job_spec import JobSpec
from gpuqueue.settings.sources import unknown_variables
from gpuqueue.system.command_line import missing_program
from gpuqueue.text.sanitize import plain

#: Shells, and the modules of torchrun.
_SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh", "fish"})
_TORCHRUN = frozenset({"torch.distributed.run", "torch.distributed.launch"})
#: The signals that torchrun passes on to its processes.
_PASSED_ON = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT})
#: What a shell does with a signal if it does not just end.
_HANDLES = pattern(r"\b(?:exec|trap)\b")
#: Characters of a script that are read.
_MOST_SCRIPT = 65536


def warn_if_no_program(spec: JobSpec, name: str) -> None:
    """Warn if the program of a job with this *spec* and *name* cannot be started on this machine.

    A placeholder in its name is not checked, nor a job with a copy of its code, whose program may be in that copy, nor
    one with an environment, whose program the host knows.
    """
    if spec.snapshot is not None or spec.environment is not None or (spec.array is not None and "{" in spec.argv[0]):
        return
    missing = missing_program(spec.argv, cwd=spec.cwd, env=spec.env)
    if missing is not None:
        print_message("gpuqueue", f"{missing}: {name} waits, and starts only on a host that has the program")


def warn_if_signal_is_lost(spec: JobSpec) -> None:
    """Warn if the first process of a job, the only one that gets the early signal of *spec*, ends by it.

    It passes the signal on to no other process. A shell that may replace itself (exec) or catch the signal (trap) is
    not warned of.
    """
    if spec.signal is None:
        return
    program = os.path.basename(spec.argv[0])  # noqa: PTH119 - a submit does not import pathlib
    is_torchrun = program == "torchrun" or any(word in _TORCHRUN for word in spec.argv[1:3])
    if is_torchrun and spec.signal.number not in _PASSED_ON:
        remedy = "use TERM, which it passes on"
    elif (program in _SHELLS or program.endswith(".sh")) and not _HANDLES.search(_shell_text(spec.argv, spec.cwd)):
        remedy = "put exec before its last command, or catch it with trap"
    else:
        return
    name = "torchrun" if is_torchrun else plain(program)
    print_message(
        "gpuqueue",
        f"warning: only the first process gets the {spec.signal.name} of --signal: {name} ends by it and passes it on "
        f"to no other process: {remedy}",
    )


def _shell_text(argv: Sequence[str], cwd: str) -> str:
    """Return what a shell is to run: the text after ``-c``, or the first part of its script; empty if it is unknown."""
    words, script = iter(argv[1:]), argv[0] if argv[0].endswith(".sh") else ""
    while not script and (word := next(words, "")):
        if word in {"-o", "-O", "+o", "+O"}:  # the name of a shell option follows
            next(words, "")
        elif word.startswith("-") and not word.startswith("--") and word.endswith("c"):
            return next(words, "")
        elif not word.startswith(("-", "+")):
            script = word
    path = os.path.join(cwd, script)  # noqa: PTH118 - as above
    with contextlib.suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:  # noqa: PTH123 - as above
        return file.read(_MOST_SCRIPT)
    return ""


def warn_of_unknown_variables() -> None:
    """Print one line for each variable ``GPUQUEUE_…`` that is no setting, such as a misspelled one."""
    for name, hint in unknown_variables().items():
        print_message("gpuqueue", f"warning: {name} is no setting and has no effect: {hint}")
