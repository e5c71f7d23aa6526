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

#: Shells, those that start a single command in their own place (exec), and the modules of torchrun.
_SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh", "fish"})
_GIVE_WAY = frozenset({"bash", "zsh"})
_TORCHRUN = frozenset({"torch.distributed.run", "torch.distributed.launch"})
#: The signals that torchrun passes on to its processes.
_PASSED_ON = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT})
#: What a shell does with a signal if it does not just end.
_HANDLES = pattern(r"\b(?:exec|trap)\b")
#: What is in quotes; and where the rest of a text for a shell is more than one command with its arguments.
_QUOTED = pattern(r"\\.|'[^']*'|\"(?:[^\"\\]|\\.)*\"")
_MORE = pattern(r"[\n;&|<>]|(?<!\$)\(|^(?:!|time)\s")
#: Characters of a script that are read.
_MOST_SCRIPT = 65536


def warn_if_no_program(spec: JobSpec, name: str) -> None:
    """Warn as :func:`without_program` says."""
    line = without_program(spec, name)
    if line is not None:
        print_message("gpuqueue", line)


def without_program(spec: JobSpec, name: str) -> str | None:
    """Return a warning if the program of a job with this *spec* and *name* cannot be started on this machine.

    A placeholder in its name is not checked, nor a job with a copy of its code, whose program may be in that copy, nor
    one with an environment, whose program the host knows, nor one in a container.
    """
    is_elsewhere = spec.snapshot is not None or spec.environment is not None or spec.container is not None
    if is_elsewhere or (spec.array is not None and "{" in spec.argv[0]):
        return None
    missing = missing_program(spec.argv, cwd=spec.cwd, env=spec.env)
    return None if missing is None else f"{missing}: {name} waits, and starts only on a host that has the program"


def warn_if_signal_is_lost(spec: JobSpec) -> None:
    """Warn if the first process of a job, the only one that gets the early signal of *spec*, ends by it.

    It passes the signal on to no other process. A shell that replaces itself by its command (exec), or may do so or
    catch the signal (trap), is not warned of.
    """
    if spec.signal is None:
        return
    program = os.path.basename(spec.argv[0])  # noqa: PTH119 - a submit does not import pathlib
    is_torchrun = program == "torchrun" or any(word in _TORCHRUN for word in spec.argv[1:3])
    if is_torchrun and spec.signal.number not in _PASSED_ON:
        remedy = "use TERM, which it passes on"
    elif (program in _SHELLS or program.endswith(".sh")) and not _gives_way(spec, program):
        remedy = "put exec before its last command, or catch it with trap"
    else:
        return
    name = "torchrun" if is_torchrun else plain(program)
    print_message(
        "gpuqueue",
        f"warning: only the first process gets the {spec.signal.name} of --signal: {name} ends by it and passes it on "
        f"to no other process: {remedy}",
    )


def _gives_way(spec: JobSpec, program: str) -> bool:
    """Return whether the shell *program* catches a signal, or whether another program takes its place.

    ``sh`` is another shell on each system: on Debian dash, which stays.
    """
    text, is_typed = _shell_text(spec.argv, spec.cwd)
    shell = os.path.basename(os.path.realpath("/bin/sh")) if program == "sh" else program  # noqa: PTH119 - as above
    is_single = is_typed and not _MORE.search(_QUOTED.sub("", text.strip()))
    return _HANDLES.search(text) is not None or (is_single and shell in _GIVE_WAY)


def _shell_text(argv: Sequence[str], cwd: str) -> tuple[str, bool]:
    """Return what a shell is to run, and whether it is the text after ``-c``.

    Otherwise it is the first part of its script, empty if that is unknown.
    """
    words, script = iter(argv[1:]), argv[0] if argv[0].endswith(".sh") else ""
    while not script and (word := next(words, "")):
        if word in {"-o", "-O", "+o", "+O"}:  # the name of a shell option follows
            next(words, "")
        elif word.startswith("-") and not word.startswith("--") and word.endswith("c"):
            return next(words, ""), True
        elif not word.startswith(("-", "+")):
            script = word
    path = os.path.join(cwd, script)  # noqa: PTH118 - as above
    with contextlib.suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:  # noqa: PTH123 - as above
        return file.read(_MOST_SCRIPT), False
    return "", False


def warn_of_unknown_variables() -> None:
    """Print one line for each variable ``GPUQUEUE_…`` that is no setting, such as a misspelled one."""
    for name, hint in unknown_variables().items():
        print_message("gpuqueue", f"warning: {name} is no setting and has no effect: {hint}")
