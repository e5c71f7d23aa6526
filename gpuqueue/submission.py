"""From what a person typed to a spec: command, interpreter, environment, account."""

from __future__ import annotations

import os
import pwd
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gpuqueue.errors import BadRequest, Unreadable
from gpuqueue.fields import loaded
from gpuqueue.job import MAX_NAME, Account
from gpuqueue.later import later

if TYPE_CHECKING:
    import shutil
else:
    shutil = later("shutil")

#: Variables that do not travel: the queue's own addresses hold passwords, the rest is the worker's to set or
#: belongs to the submitter's shell and would be wrong anywhere else. docs/reference/submit.md lists them.
LEFT_OUT = frozenset(
    {"CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "NVIDIA_VISIBLE_DEVICES", "_", "SHLVL", "OLDPWD", "PWD"}
)
OURS = "GPUQUEUE_"
#: What the queue calls the superuser, who may change any job.
ROOT = "root"
#: In a job: the variables of the submitter that the worker changed or added, as JSON: name to [before, after].
CHANGED = "GPUQUEUE_CHANGED"
#: Of our own variables only these travel: they hold no secret, and a job that submits jobs needs them.
OURS_THAT_TRAVEL = frozenset({"GPUQUEUE_STATE_DIR", "GPUQUEUE_CONFIG"})


def current_account(host: str) -> Account:
    """Return who runs this process on *host*: by its uid, since ``$USER`` can say anything."""
    uid = os.getuid()
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:  # a container's uid may have no name
        name = f"uid{uid}"
    return Account(name=name, uid=uid, host=host)


def current_umask(status: Path = Path("/proc/self/status")) -> int:
    """Return the umask of this process without changing it; 022 where the kernel does not tell (before 4.7)."""
    try:
        lines = status.read_text(encoding="ascii", errors="replace").splitlines()
        return next(int(line.split()[1], 8) for line in lines if line.startswith("Umask:"))
    except (OSError, ValueError, IndexError, StopIteration):
        return 0o022


def travelling(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the part of *environ* that travels with a job.

    In a job that submits another one, what the worker set for the first is as it was before: the second may ask
    for more memory, and its own worker sees to that.
    """
    return {
        name: value
        for name, value in _unchanged(environ).items()
        # A name that is empty (an entry "=x" of the environment) cannot be given to any process by name.
        if name and name not in LEFT_OUT and (not name.startswith(OURS) or name in OURS_THAT_TRAVEL)
    }


def _unchanged(environ: Mapping[str, str]) -> dict[str, str]:
    """Return *environ* without the worker's changes, as far as they still stand."""
    before = dict(environ)
    for name, was, now in _changes(environ.get(CHANGED)):
        if before.get(name) == now:
            del before[name]
            if was is not None:
                before[name] = was
    return before


def _changes(text: str | None) -> list[tuple[str, str | None, str]]:
    """Return what the worker changed: name, before, after. Whatever else the variable holds was not said by it."""
    try:
        plain = loaded(text, CHANGED)
        pairs = {name: plain.each(name) for name in plain}
    except Unreadable:
        return []
    return [
        (name, *pair)
        for name, pair in pairs.items()
        if len(pair) == 2 and isinstance(pair[1], str) and (pair[0] is None or isinstance(pair[0], str))  # noqa: PLR2004
    ]


def interpreter(environ: Mapping[str, str]) -> str:
    """Return the Python that ``python script.py`` would run in the submitter's shell.

    The active virtual environment's, else the active conda environment's, else the first ``python`` or
    ``python3`` on PATH, else our own.
    """
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        if environ.get(variable):
            python = Path(environ[variable], "bin", "python")
            if os.path.exists(python):  # noqa: PTH110 - Path.exists fails on a name that is too long
                return str(python)
    for name in ("python", "python3"):
        found = shutil.which(name, path=environ.get("PATH"))
        if found:
            return found
    return sys.executable


def script_command(script: str, args: Sequence[str], *, cwd: Path, python: str) -> tuple[str, ...]:
    """Return the command line that runs *script* with *args*.

    A ``.py`` file goes to *python*, another file must be executable.

    Raises:
        BadRequest: there is no such file, or it cannot be run.

    """
    path = cwd / script
    if not os.path.exists(path):  # noqa: PTH110 - as in interpreter
        raise BadRequest(f"no such file: {script} (in {cwd}). To run a command, put it after --")
    if path.is_dir():
        raise BadRequest(f"{script} is a directory: name a script, or put a command after --")
    if path.suffix == ".py":
        return (python, script, *args)
    if not os.access(path, os.X_OK):
        raise BadRequest(f"{script} is neither a .py file nor executable: put its interpreter and it after --")
    return (str(path.absolute()), *args)


def command_of(
    command: str | Sequence[str], args: Sequence[str], *, cwd: Path, python: str | None
) -> tuple[tuple[str, ...], str | None, str | None]:
    """Return the command line, the script if *command* names one, and the Python that it is given to, if any.

    Raises:
        BadRequest: the script or the interpreter is not there.

    """
    if not isinstance(command, str):
        return (*command, *args), None, None
    if python is not None and shutil.which(python) is None:
        raise BadRequest(f"no such interpreter: {python}: name one that is there with --python")
    chosen = python or interpreter(os.environ)
    argv = script_command(command, args, cwd=cwd, python=chosen)
    return argv, command, chosen if argv[0] == chosen else None


def working_directory(cwd: str | os.PathLike[str] | None) -> Path:
    """Return where the job is to run.

    Raises:
        BadRequest: there is no such directory (any more).

    """
    try:
        directory = Path(cwd or Path.cwd()).absolute()
    except FileNotFoundError:
        raise BadRequest("the current directory is gone: go elsewhere, or say --cwd") from None
    if not os.path.isdir(directory):  # noqa: PTH112 - as in interpreter
        raise BadRequest(f"no such directory: {directory}: name one that is there with --cwd")
    return directory


def name_of(argv: Sequence[str], script: str | None) -> str:
    """Return what a job is called if its owner does not say: its script's name, else its program's."""
    return Path(str(script or next(iter(argv), ""))).name[:MAX_NAME]
