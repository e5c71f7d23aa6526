"""Reads the ``#SBATCH`` lines of a script as options of ``submit``. Pure.

An option that means the same here is read. One that has no meaning here is left out, with a remark. One without which
the job would do other work, such as several tasks, refuses the script. ``--mem`` of sbatch is host memory.
"""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from gpuqueue.errors import BadRequest
from gpuqueue.model.array import Indexes
from gpuqueue.system.command_line import SBATCH
from gpuqueue.text.sanitize import brief


class Counterpart(NamedTuple):
    """What there is here for an option of sbatch: an option of ``submit``, or in *otherwise* what to know instead.

    *letter* is the short form of the option of sbatch.
    """

    letter: str = ""
    option: str = ""
    otherwise: str = ""


_ONE_COMMAND = "gpuqueue starts the command once; torchrun starts a process for each GPU"
#: Options of sbatch -> their counterparts. A test holds docs/howto/for-slurm-users.md to it.
OPTIONS: Mapping[str, Counterpart] = {
    "account": Counterpart("A", otherwise="jobs count for your user"),
    "array": Counterpart("a", "--array"),
    "begin": Counterpart("b", "--begin"),
    "chdir": Counterpart("D", "--cwd"),
    "comment": Counterpart(otherwise="gpuqueue note ID TEXT"),
    "constraint": Counterpart("C", "--device-type"),
    "cpus-per-gpu": Counterpart(option="--cpus"),
    "cpus-per-task": Counterpart("c", "--cpus"),
    "dependency": Counterpart("d", "--after"),
    "error": Counterpart("e", "--error"),
    "exclusive": Counterpart(option="--exclusive"),
    "export": Counterpart(otherwise="the job has your environment, and --env adds to it"),
    "gpus": Counterpart("G", "--gpus"),
    "gpus-per-node": Counterpart(option="--gpus"),
    "gpus-per-task": Counterpart(option="--gpus"),
    "gres": Counterpart(option="--gpus"),
    "hold": Counterpart("H", "--hold"),
    "job-name": Counterpart("J", "--name"),
    "mail-type": Counterpart(option="--on-end"),
    "mail-user": Counterpart(option="--on-end"),
    "mem": Counterpart(option="--cpu-mem"),
    "mem-per-cpu": Counterpart(option="--cpu-mem"),
    "mem-per-gpu": Counterpart(option="--cpu-mem"),
    "no-requeue": Counterpart(option="--no-requeue"),
    "nodelist": Counterpart("w", "--device"),
    "nodes": Counterpart("N", otherwise="a job runs on one host"),
    "ntasks": Counterpart("n", otherwise=_ONE_COMMAND),
    "ntasks-per-node": Counterpart(otherwise=_ONE_COMMAND),
    "output": Counterpart("o", "--output"),
    "partition": Counterpart("p", "--pool"),
    "qos": Counterpart("q", "--priority"),
    "requeue": Counterpart(otherwise="a lost job is queued again anyway"),
    "signal": Counterpart(option="--signal"),
    "test-only": Counterpart(option="--dry-run"),
    "time": Counterpart("t", "--time"),
    "wait": Counterpart("W", otherwise="gpuqueue run, or gpuqueue wait ID"),
    "wrap": Counterpart(otherwise="put the command after --: -- sh -c 'A && B'"),
}
_LONG = {counterpart.letter: name for name, counterpart in OPTIONS.items() if counterpart.letter}
#: Words by which a file asks for several jobs that start at once.
_COMPONENTS = ("hetjob", "packjob")
#: Options of sbatch without a value.
_FLAGS = {"exclusive", "hold", "no-requeue", "requeue", "test-only", "wait"}


def counterpart_of(option: str) -> tuple[str, Counterpart] | None:
    """Return the long form and the counterpart of *option* of sbatch, such as ``--gres`` or ``-J``; None if unknown."""
    name = option[2:] if option.startswith("--") else _LONG.get(option[1:], "")
    return (f"--{name}", OPTIONS[name]) if name in OPTIONS else None


def requested(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield the options that sbatch reads, those in lines before the first command: the line, the option, its value.

    An option has its long form, or is a letter that is unknown. What begins the next of several components
    (``hetjob``) is one, too.
    """
    for number, line in enumerate(text.split("\n"), 1):
        if line.startswith(SBATCH) and line[len(SBATCH) :][:1] in {"", " ", "\t"}:
            yield from ((number, *option) for option in _options(line[len(SBATCH) :]))
        elif line.strip() and not line.lstrip().startswith("#"):
            return


def _options(line: str) -> Iterator[tuple[str, str]]:
    """Yield the options in a *line*, with their values."""
    try:
        words = shlex.split(line, comments=True)
    except ValueError:  # a quotation mark without its second
        words = line.split()
    while words:
        word = words.pop(0)
        if word.startswith("--"):
            name, given, value = word[2:].partition("=")
        elif word.startswith("-") and word != "-":
            name, value = _LONG.get(word[1], word[1]), word[2:]
            given = value
        elif word in _COMPONENTS:
            name, given, value = word, word, ""
        else:
            continue
        if not given and name not in _FLAGS and words and not words[0].startswith("-"):
            value = words.pop(0)
        yield name, value


# ---- as options of submit -------------------------------------------------------------------------------------------

#: What starts several tasks, or depends on their number.
_STARTS_TASKS = re.compile(
    r"^[^#\n]*\b(?:srun\b(?!.*\s(?:-n ?|--ntasks[= ])1\s)|(?:mpirun|mpiexec|SLURM_(?:NTASKS|NPROCS|PROCID|NODEID))\b)",
    re.MULTILINE,
)
#: A size of sbatch, in megabytes without a unit; a time, in minutes without one.
_SIZE = re.compile(r"(\d+)([KMGT]?)B?", re.IGNORECASE)
_TIME = re.compile(
    r"(?:(?P<d>\d+)-(?P<dh>\d+)(?::(?P<dm>\d+)(?::(?P<ds>\d+))?)?)|(?:(?:(?P<h>\d+):)?(?P<m>\d+):(?P<s>\d+))|(?P<min>\d+)"
)
_SECONDS = {"second": 1, "minute": 60, "hour": 3600, "day": 86400, "week": 604800}
#: Codes of a file name that mean the same here.
_CODES = re.compile(r"%(?![jAaNxu%])")
#: Variables of Slurm that the lines decide -> the option with their value.
_VARIABLES: Mapping[str, str] = {
    "SLURM_CPUS_PER_TASK": "cpus-per-task",
    "SLURM_GPUS": "gpus",
    "SLURM_GPUS_PER_NODE": "gpus-per-node",
    "SLURM_JOB_ACCOUNT": "account",
    "SLURM_JOB_NAME": "job-name",
    "SLURM_JOB_PARTITION": "partition",
    "SLURM_JOB_QOS": "qos",
    "SLURM_NTASKS_PER_NODE": "ntasks-per-node",
}


#: No value was typed.
NONE_TYPED: Mapping[str, str] = {}


class SbatchLines(NamedTuple):
    """What the lines of a script ask for here: the words of each line, and the variables that they decide.

    *unused* are remarks by option, *faults* are why the script is refused.
    """

    words: Sequence[tuple[int, Sequence[str]]]
    variables: Mapping[str, str]
    unused: Mapping[str, str]
    faults: Sequence[str]


def read(text: str, typed: Mapping[str, str] = NONE_TYPED) -> SbatchLines | None:
    """Return what the ``#SBATCH`` lines in *text* ask for, None if it has none.

    *typed* are values that somebody has typed in place of those of the lines, by the option of sbatch.
    """
    lines = list(requested(text))
    if not lines:
        return None
    values = {**{option: value for _, option, value in lines}, **typed}
    words: list[tuple[int, Sequence[str]]] = []
    unused: dict[str, str] = {}
    faults: list[str] = []
    for number, option, value in lines:
        shown = option if option in _COMPONENTS else f"--{option}" if len(option) > 1 else f"-{option}"
        fault = None if option in typed else _fault(option, value, text)
        if fault is not None:
            faults.append(f"line {number} asks for {shown}{f'={brief(value)}' if value else ''}: {fault}")
            continue
        ours = _READ.get(option, _other)(value, values)
        if isinstance(ours, str):
            unused[shown] = ours or _counterpart(option)
        elif ours:
            words.append((number, ours))
    variables = {name: values[option] for name, option in _VARIABLES.items() if values.get(option)}
    if "cpus-per-task" in values or "cpus-per-gpu" in values:
        variables.update(dict.fromkeys(("SLURM_CPUS_ON_NODE", "SLURM_JOB_CPUS_PER_NODE"), str(_cpus(values))))
    with contextlib.suppress(BadRequest):  # the submit refuses it
        ranges = Indexes.parse(values.get("array", "").partition("%")[0]).ranges
        for name, end in (("SLURM_ARRAY_TASK_MIN", min), ("SLURM_ARRAY_TASK_MAX", max)):
            variables.update({name: str(end(map(end, ranges)))} if ranges else {})
    return SbatchLines(words, variables, unused, faults)


def _counterpart(option: str) -> str:
    """Return what there is here for an *option* that is not read."""
    ours = OPTIONS.get(option)
    if ours is None:
        return "there is nothing like it"
    return ours.otherwise or f"{ours.option} here"


def _fault(option: str, value: str, text: str) -> str | None:
    """Return why a script with this *option* cannot run as its author meant, None if it can."""
    if option in _COMPONENTS or (option == "nodes" and value.partition("-")[0] not in {"", "1"}):
        return "a job runs on one host"
    if option == "dependency":
        return "no job here has this id: type --after ID, or --dedupe KEY in place of singleton"
    if (
        option in {"ntasks", "ntasks-per-node", "ntasks-per-gpu"}
        and value not in {"", "1"}
        and _STARTS_TASKS.search(text.replace("\\\n", " "))
    ):
        return _ONE_COMMAND
    return None


# ---- one option ------------------------------------------------------------------------------------------------------

#: Reads a value, beside the values of all options: words of ``submit``, or a remark where it has no meaning.
_Reader = Callable[[str, Mapping[str, str]], "Sequence[str] | str"]


def _other(_value: str, _values: Mapping[str, str]) -> str:
    return ""


def _nothing(_value: str, _values: Mapping[str, str]) -> Sequence[str]:
    return ()


def _same(option: str) -> _Reader:
    return lambda value, _: [f"{option}={value}"]


def _flag(option: str) -> _Reader:
    return lambda _value, _: [option]


def _size(value: str, times: int = 1) -> Sequence[str] | str:
    match = _SIZE.fullmatch(value.strip())
    if match is None:
        return "its size cannot be read"
    return [f"--cpu-mem={int(match[1]) * times}{match[2].upper() or 'M'}"] if int(match[1]) else ()


def _times(value: str | None) -> int:
    return int(value) if value is not None and value.isascii() and value.isdigit() else 1


def _tasks(values: Mapping[str, str]) -> int:
    """Return for how many tasks sbatch would give processors, memory and GPUs. The job is one, and has those of all."""
    return _times(values.get("ntasks") or values.get("ntasks-per-node"))


def _cpus(values: Mapping[str, str]) -> int:
    if "cpus-per-gpu" in values:
        return _times(values["cpus-per-gpu"]) * _gpus(values)
    return _times(values.get("cpus-per-task")) * _tasks(values)


def _time(value: str, _values: Mapping[str, str]) -> Sequence[str] | str:
    if value.upper() in {"UNLIMITED", "INFINITE", "0"}:
        return ()
    match = _TIME.fullmatch(value.strip())
    if match is None:
        return "its time cannot be read"
    part = {name: int(text or 0) for name, text in match.groupdict().items()}
    seconds = part["d"] * 86400 + (part["dh"] + part["h"]) * 3600
    return [f"--time={seconds + (part['dm'] + part['m'] + part['min']) * 60 + part['ds'] + part['s']}s"]


def _begin(value: str, _values: Mapping[str, str]) -> Sequence[str]:
    match = re.fullmatch(r"now\+(\d+)(second|minute|hour|day|week)?s?", value)
    return [f"--begin={value if match is None else str(int(match[1]) * _SECONDS[match[2] or 'second']) + 's'}"]


def _signal(value: str, values: Mapping[str, str]) -> Sequence[str] | str:
    is_limited = values.get("time", "").upper() not in {"", "UNLIMITED", "INFINITE", "0"}
    return [f"--signal={value.rpartition(':')[2]}"] if is_limited else "it is sent before --time, and there is none"


def _file(option: str) -> _Reader:
    def read_file(value: str, values: Mapping[str, str]) -> Sequence[str] | str:
        if option == "--error" and value == values.get("output"):
            return ()  # the log has both
        is_array = "array" in values
        is_one = is_array and not re.search("%[aj]", value)
        is_other = bool(_CODES.search(value)) or (not is_array and "%a" in value) or value == "/dev/null"
        return "gpuqueue logs ID prints it" if is_one or is_other else [f"{option}={value}"]

    return read_file


def _exported(value: str, _values: Mapping[str, str]) -> Sequence[str] | str:
    return [f"--env={part}" for part in value.split(",") if "=" in part] or (() if value.upper() == "ALL" else "")


def _kinds(option: str, value: str) -> Iterator[tuple[str, int]]:
    """Yield each kind of GPU, empty if any will do, and their number: of ``a100:2``, ``2``, or ``gpu:a100:2``."""
    for part in value.split(","):
        named = part.removeprefix("gres/").partition("(")[0]
        if option == "gres" and named[:3] != "gpu":
            continue
        kind, _, count = named.removeprefix("gpu").removeprefix(":").rpartition(":")
        if not (count.isascii() and count.isdigit()):
            kind, count = count, "1"
        yield kind, int(count)


#: Options of sbatch that say how many GPUs a job has.
_OF_GPUS = ("gpus", "gpus-per-node", "gpus-per-task", "gres")


def _gpus(values: Mapping[str, str]) -> int:
    """Return how many GPUs the lines ask for, 1 if they do not say."""
    for option in _OF_GPUS:
        count = sum(count for _, count in _kinds(option, values.get(option, "0")))
        if count:
            return count * (_tasks(values) if option == "gpus-per-task" else 1)
    return 1


def _of_gpus(option: str) -> _Reader:
    def read_gpus(value: str, values: Mapping[str, str]) -> Sequence[str] | str:
        kinds = [kind for kind, _ in _kinds(option, value)]
        if not kinds:
            return "a job shares a card by --mem"
        count = _gpus(values)
        return [
            *(("--gpus", str(count)) if count > 1 else ()),
            *(word for kind in kinds if kind for word in ("--device-type", kind)),
        ]

    return read_gpus


#: Options of sbatch that are read.
_READ: Mapping[str, _Reader] = {
    "array": _same("--array"),
    "begin": _begin,
    "chdir": _same("--cwd"),
    **dict.fromkeys(("cpus-per-gpu", "cpus-per-task"), lambda _, values: [f"--cpus={_cpus(values)}"]),
    "error": _file("--error"),
    "exclusive": _flag("--exclusive"),
    "export": _exported,
    **{option: _of_gpus(option) for option in _OF_GPUS},
    "hold": _flag("--hold"),
    "job-name": _same("--name"),
    "mem": lambda value, _: _size(value),
    "mem-per-cpu": lambda value, values: _size(value, _cpus(values)),
    "mem-per-gpu": lambda value, values: _size(value, _gpus(values)),
    "no-requeue": _flag("--no-requeue"),
    **dict.fromkeys(("nodes", "requeue"), _nothing),
    "ntasks": lambda value, _: () if value in {"", "1"} else "the script is started once, as in Slurm",
    "ntasks-per-node": lambda value, _: () if value in {"", "1"} else "the script is started once, as in Slurm",
    "output": _file("--output"),
    "signal": _signal,
    "time": _time,
}
