"""The command line, interpreter, directory and name of a job, from the submitter's arguments."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from gpuqueue.errors import BadRequest
from gpuqueue.lazy.imports import later
from gpuqueue.model.job_spec import MAX_NAME, JobSpec
from gpuqueue.text.sanitize import short

if TYPE_CHECKING:
    import shutil
else:
    shutil = later("shutil")


#: The interpreter of a script on another machine, if the user names none: the first one on the PATH there. A worker
#: replaces it by the one of the job's environment, if the job has one.
FAR_PYTHON = "python3"


#: Bytes of a script that are read before it is submitted.
MAX_SCRIPT_BYTES = 256 * 1024
#: How text from Windows may begin.
BYTE_ORDER_MARK, UTF_16 = b"\xef\xbb\xbf", (b"\xff\xfe", b"\xfe\xff")
#: How a line begins that sbatch reads.
SBATCH = "#SBATCH"
#: How a line begins that other schedulers read: PBS and LSF.
OTHER_LINES = (b"\n#PBS ", b"\n#BSUB ")
#: The variable of Slurm with the index of an array's member. Without it all members do the same.
TASK_ID = "SLURM_ARRAY_TASK_ID"
#: What is looked for in a script that a job starts. All else about it is imported only if it is there.
_MARKS = (SBATCH.encode(), *OTHER_LINES, TASK_ID.encode(), b"\r", BYTE_ORDER_MARK, *UTF_16)
#: Programs that run a script of their language, and programs that start another one behind their own options.
SHELLS = frozenset({"ash", "bash", "csh", "dash", "ksh", "mksh", "sh", "tcsh", "zsh"})
_STARTERS = frozenset({"env", "ionice", "nice", "nohup", "setsid", "stdbuf", "time", "timeout"})


class StartedFile(NamedTuple):
    """The file that a job starts, and the program that reads it; None if the kernel does, by its first line."""

    path: str
    reader: str | None = None


class Travel(NamedTuple):
    """Where a command will run: in a copy of its directory (*with_code*), and on another machine (*is_far*)."""

    with_code: bool = False
    is_far: bool = False


#: The command runs in its directory.
STAYS = Travel()


def interpreter(environ: Mapping[str, str]) -> str:
    """Return the Python that ``python script.py`` would run in the submitter's shell.

    It is that of the active virtual environment, else of the active conda environment, else the first ``python``, else
    the first ``python3`` on PATH, else the one that runs gpuqueue.
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


def script_command(
    script: str, args: Sequence[str], *, cwd: Path, python: str, travels: bool = False
) -> tuple[str, ...]:
    """Return the command line that runs *script* with *args*.

    *python* runs a ``.py`` file. Any other file is started; if it is not executable, the interpreter that its first
    line names is started with it. If the code *travels*, the command line has no path of this machine: the script is
    named from *cwd*.

    Raises:
        BadRequest: the file does not exist or cannot be run.

    """
    path = cwd / script
    if not os.path.exists(path):  # noqa: PTH110 - as in interpreter
        is_program = "/" not in script and shutil.which(script) is not None
        command = f": -- {short(' '.join((script, *args)), 60)}" if is_program else ""
        raise BadRequest(f"no such file: {script} (in {cwd}). To run a command, put it after --{command}")
    if path.is_dir():
        raise BadRequest(f"{script} is a directory: name a script, or put a command after --")
    if travels:
        script = os.path.relpath(path, cwd)
    if path.suffix == ".py":
        return (python, script, *args)
    started = f"./{script}" if travels else str(path.absolute())
    if os.access(path, os.X_OK):
        return (started, *args)
    its_interpreter = first_line_of(first_part(str(path)))
    if not its_interpreter:
        raise BadRequest(
            f"{script} is neither a .py file nor executable, and its first line names no interpreter (#!): put its "
            "interpreter and it after --"
        )
    return (*its_interpreter, started, *args)


def command_of(
    command: str | Sequence[str],
    args: Sequence[str],
    *,
    cwd: Path,
    python: str | None,
    travel: Travel = STAYS,
    is_named: bool = False,
    added: Collection[str] = (),
) -> tuple[tuple[str, ...], str | None, str | None]:
    """Return the command line, the script if *command* names one, and the Python that runs the script, if any.

    *travel* says where the command will run. The interpreter of another machine cannot be checked here, nor that of an
    environment, which the host knows by its name (*is_named*), nor a script that is *added* to the copy of the code.

    Raises:
        BadRequest: the script or the interpreter does not exist, or the script cannot be run.

    """
    if not isinstance(command, str):
        return (*command, *args), None, None
    if travel.is_far or is_named:
        chosen = python or FAR_PYTHON
    else:
        chosen = interpreter(os.environ) if python is None else _named_interpreter(python)
    if command in added:
        return (chosen, command, *args), command, chosen
    argv = script_command(command, args, cwd=cwd, python=chosen, travels=travel.with_code)
    return argv, command, chosen if Path(command).suffix == ".py" else None


def started_file(spec: JobSpec) -> StartedFile | None:
    """Return the file that a job with this *spec* starts, None if it is a program on the PATH, or has no file."""
    if spec.script is not None:
        # Of a script that is not executable, gpuqueue has read the first line, without what the kernel stumbles over.
        names = (word.rpartition("/")[2] for word in " ".join(spec.argv[:2]).split())
        first = next((name for name in names if name not in _STARTERS and name[:1] != "-"), "")
        is_python = spec.interpreter is not None or first.startswith("python")
        is_kernels = spec.interpreter is None and first == spec.script.rpartition("/")[2]
        return StartedFile(spec.script, "python" if is_python and not is_kernels else None)
    name, words = "", iter(spec.argv)
    for word in words:
        is_option = bool(name) and (word[:1] in {"-", "+"} or "=" in word or word[:1].isdigit())
        name = name if is_option else word.rpartition("/")[2]
        if not is_option and name not in _STARTERS:
            if name in SHELLS or name.startswith("python"):
                path = _file_among(words, is_python=name not in SHELLS)
                return None if path is None else StartedFile(path, name)
            return StartedFile(word) if "/" in word else None
    return None


def _file_among(words: Iterator[str], *, is_python: bool) -> str | None:
    """Return the file among the *words* behind a shell, or a Python; None if it is given its code in another way."""
    for word in words:
        if word[:1] not in {"-", "+"}:
            return word
        is_long = word.startswith("--")
        if not is_long and ("c" in word or (is_python and "m" in word)):
            return None
        if word in {"--init-file", "--rcfile"} or (not is_long and word[-1] in ("WX" if is_python else "oO")):
            next(words, None)  # the value of the option
    return None


def first_part(path: str) -> bytes:
    """Return the first part of the text file *path*, empty if it cannot be read, or is a binary file.

    Pipes and devices are not opened: this could block, or start something.
    """
    if not os.path.isfile(path):  # noqa: PTH113 - as in interpreter
        return b""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        try:
            text = os.read(fd, MAX_SCRIPT_BYTES)
        finally:
            os.close(fd)
    except OSError:
        return b""
    return b"" if b"\0" in text and not text.startswith(UTF_16) else text


def script_to_judge(spec: JobSpec) -> tuple[StartedFile, bytes] | None:
    """Return the file that a job starts and its first part, None if nothing there is for :mod:`script_text`."""
    started = started_file(spec)
    if started is None:
        return None
    text = first_part(os.path.join(spec.cwd, started.path))  # noqa: PTH118 - as in interpreter
    return (started, text) if any(mark in text for mark in _MARKS) else None


def first_line_of(text: bytes) -> list[str]:
    """Return the interpreter that the first line of a script names (``#!``), and its argument, as the kernel does."""
    line = text.removeprefix(BYTE_ORDER_MARK).partition(b"\n")[0].partition(b"\r")[0]
    return os.fsdecode(line[2:]).strip().split(None, 1) if line.startswith(b"#!") else []


def _named_interpreter(python: str) -> str:
    """Return the interpreter that the user named: absolute, unless it is a program on PATH.

    Raises:
        BadRequest: it does not exist, or cannot be executed.

    """
    if shutil.which(python) is not None:
        return str(Path(python).absolute()) if "/" in python else python
    fault = f"no such interpreter: {python}: name one that is there with --python"
    if os.path.isdir(python):  # noqa: PTH112 - as in interpreter
        fault = f"{python} is a directory: name an interpreter with --python"
    elif os.path.exists(python):  # noqa: PTH110 - as in interpreter
        fault = f"{python} cannot be executed: name an interpreter with --python"
    raise BadRequest(fault)


def missing_program(argv: Sequence[str], *, cwd: str, env: Mapping[str, str]) -> str | None:
    """Return why the program of a job cannot be started on this machine, or None if it can.

    It is searched for as by the kernel: on the PATH of the job, or from the job's directory if its name has a slash.
    """
    program = argv[0]
    if "/" in program:
        path = os.path.join(cwd, program)  # noqa: PTH118 - as in interpreter
        if _is_program(path):
            return None
        if os.path.isfile(path):  # noqa: PTH113 - as in interpreter
            return f"{program} is not executable (chmod +x)"
        return f"there is no {program}" if program.startswith("/") else f"{program} is not in {cwd}"
    folders = env.get("PATH", os.defpath).split(os.pathsep)
    if any(_is_program(os.path.join(cwd, folder, program)) for folder in folders):  # noqa: PTH118 - as in interpreter
        return None
    return f"{program} is not on the PATH of the job"


def _is_program(path: str) -> bool:
    return os.access(path, os.X_OK) and not os.path.isdir(path)  # noqa: PTH112 - as in interpreter


def working_directory(cwd: str | os.PathLike[str] | None) -> Path:
    """Return the absolute working directory of the job. The default is the current directory.

    Raises:
        BadRequest: the directory does not exist, or was deleted.

    """
    try:
        directory = Path(cwd or Path.cwd()).absolute()
    except FileNotFoundError:
        raise BadRequest("the current directory is gone: go elsewhere, or use --cwd") from None
    if not os.path.isdir(directory):  # noqa: PTH112 - as in interpreter
        raise BadRequest(f"no such directory: {directory}: name one that is there with --cwd")
    return directory


def name_of(argv: Sequence[str], script: str | None) -> str:
    """Return the default name of a job: the name of its script, else of its program."""
    return Path(str(script or next(iter(argv), ""))).name[:MAX_NAME]
