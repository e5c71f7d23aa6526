"""Says what a script for Slurm asks for in the options of ``submit``, and what in it works only in Slurm. Pure.

``sbatch`` reads the ``#SBATCH`` lines of a script and sets variables ``SLURM_…`` for it. ``gpuqueue submit SCRIPT``
does so too (:mod:`gpuqueue.system.sbatch_lines`), but not for a file that a command starts, nor from Python. Without
them a script may do the wrong work and succeed: all members of an array would have the same parameters.

The rule for a shell script with ``#SBATCH`` lines: a line that uses ``$SLURM_ARRAY_TASK_ID`` or starts ``srun`` is
refused if it runs in any case: not in a block, a function or a here-document, and not behind ``&&`` or ``||``. Other
uses are remarks. A use with a default (``${SLURM_ARRAY_TASK_ID:-0}``) is none, and from the first line on that asks
whether Slurm or this queue is there (``[ -n "$SLURM_JOB_ID" ]``, ``command -v srun``) the author is trusted. No line is
read more closely than that: a script that is refused by mistake is worse than one that is not.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import NamedTuple

from gpuqueue.errors import BadRequest
from gpuqueue.model.slurm_variables import DIRECTORY, SAME
from gpuqueue.text.sanitize import plain, short
from gpuqueue.text.units import parse_duration

#: How a line begins that sbatch reads.
SBATCH = "#SBATCH"
#: The variable with the index of an array's member. Without it all members do the same.
TASK_ID = "SLURM_ARRAY_TASK_ID"
#: Variables of Slurm -> those with the same value here.
VARIABLES: Mapping[str, str] = {**SAME, DIRECTORY: "PWD"}


class Counterpart(NamedTuple):
    """What there is here for an option of sbatch: an option of ``submit``, or in *otherwise* what to know instead.

    *letter* is the short form of the option of sbatch.
    """

    letter: str = ""
    option: str = ""
    otherwise: str = ""


ONE_COMMAND = "gpuqueue starts the command once; torchrun starts a process for each GPU"
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
    "ntasks": Counterpart("n", otherwise=ONE_COMMAND),
    "ntasks-per-node": Counterpart(otherwise=ONE_COMMAND),
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
#: Options of ``submit`` that only hosts accept which run jobs as their submitters.
_LIMITS = {"--cpus", "--cpu-mem"}
#: Options of sbatch without a value.
_FLAGS = {"exclusive", "hold", "no-requeue", "requeue", "test-only", "wait"}
#: Values that ask for what is so in any case.
_USUAL = {
    *(("export", "ALL"), ("nodes", "1"), ("nodes", "1-1"), ("ntasks", "1"), ("ntasks-per-node", "1")),
    *(("time", "0"), ("time", "UNLIMITED"), ("time", "INFINITE"), ("mem", "0"), ("mail-type", "NONE")),
}


def counterpart_of(option: str) -> tuple[str, Counterpart] | None:
    """Return the long form and the counterpart of *option* of sbatch, such as ``--gres`` or ``-J``; None if unknown."""
    name = option[2:] if option.startswith("--") else _LONG.get(option[1:], "")
    return (f"--{name}", OPTIONS[name]) if name in OPTIONS else None


# ---- the lines of sbatch ---------------------------------------------------------------------------------------------


def in_gpus(option: str, value: str) -> list[str]:
    """Return the options for a number of GPUs and their type, such as ``a100:2``, ``a100``, ``2`` or ``gpu:a100:2``."""
    typed = []
    for part in value.replace("gres/", "").split(","):
        kind, _, count = part.partition("(")[0].removeprefix("gpu").removeprefix(":").rpartition(":")
        if not (count.isascii() and count.isdigit()):
            kind, count = count, "1"
        typed += [f"{option} {count}"] if count.lstrip("0") not in {"", "1"} else []
        typed += [f"--device-type {shlex.quote(kind)}"] if kind else []
    return typed


def in_gres(option: str, value: str) -> list[str]:
    """Return the options for ``gpu:a100:2``; other resources have none."""
    return in_gpus(option, ",".join(part for part in value.split(",") if part.removeprefix("gres/")[:3] == "gpu"))


def _in_time(option: str, value: str) -> list[str]:
    """Return the option for a time limit: sbatch takes a bare number for minutes."""
    text = f"{value}m" if value.isdigit() else value
    try:
        parse_duration(text)
    except BadRequest:
        text = "TIME"
    return [f"{option} {text}"]


def _quoted(option: str, value: str) -> list[str]:
    return [f"{option} {shlex.quote(value)}"]


def _awaited(value: str) -> str:
    """Return how a dependency of sbatch is written here, with ID for the job."""
    kind = value.partition(":")[0]
    return {"afterany": "ID:any", "afternotok": "ID:fail", "aftercorr": "ID:corr"}.get(kind, "ID")


#: What is typed here for the value of an option of sbatch, if it is not the value itself.
_TYPED: Mapping[str, Callable[[str, str], list[str]]] = {
    **dict.fromkeys(("gpus", "gpus-per-node", "gpus-per-task"), in_gpus),
    **dict.fromkeys(("exclusive", "hold", "no-requeue", "test-only"), lambda option, _: [option]),
    **dict.fromkeys(("mem-per-cpu", "mem-per-gpu"), lambda option, _: [f"{option} SIZE"]),
    "cpus-per-gpu": lambda option, _: [f"{option} N"],
    "dependency": lambda option, value: ["--dedupe KEY" if value == "singleton" else f"{option} {_awaited(value)}"],
    "gres": in_gres,
    "mail-type": lambda option, value: [f"{'--on-fail' if value.upper() == 'FAIL' else option} ADDRESS"],
    "mail-user": lambda *_: [],  # sbatch sends nothing without a mail-type
    "mem": lambda option, value: _quoted(option, f"{value}M" if value.isdigit() else value),
    "nodelist": lambda option, _: [f"{option} HOST:INDEX"],
    "qos": lambda option, _: [f"{option} PRIORITY"],
    "signal": lambda option, value: _quoted(option, value.rpartition(":")[2]),
    "time": _in_time,
}


def requested(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield the options that sbatch reads, those in lines before the first command: the line, the option, its value.

    An option has its long form, or is a letter that is unknown.
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
        else:
            continue
        if not given and name not in _FLAGS and words and not words[0].startswith("-"):
            value = words.pop(0)
        yield name, value


def _advice(name: str, requested: Sequence[tuple[int, str, str]], is_open: Callable[[str], bool]) -> str | None:
    """Return a line about the ``#SBATCH`` lines of the script *name*, None if nothing of them is left to type."""
    typed: list[str] = []
    limits: list[str] = []
    others: dict[str, str] = {}
    for _, option, value in requested:
        ours = OPTIONS.get(option)
        if ours is None:
            others[f"--{option}" if len(option) > 1 else f"-{option}"] = "there is nothing like it"
        elif (option, value.upper()) in _USUAL:
            continue
        elif ours.option:
            make = _TYPED.get(option, _quoted)
            into = limits if ours.option in _LIMITS else typed
            into += [words for words in make(ours.option, value) if is_open(words.split()[0])]
        else:
            others[f"--{option}"] = ours.otherwise
    parts = [f"for {option}: {remark}" for option, remark in others.items()]
    if typed:
        parts.insert(0, f"add {' '.join(dict.fromkeys(typed))}")
    if limits:
        parts.append(f"where jobs run as their submitters also {' '.join(dict.fromkeys(limits))}")
    if not parts:
        return None
    numbers = _numbers([line for line, *_ in requested])
    are = "are" if numbers.startswith("lines") else "is"
    return f"{name}: the #SBATCH {numbers} {are} not read: {'; '.join(parts)}"


def _numbers(lines: Sequence[int]) -> str:
    """Return the numbers of *lines* in words, the first and the last one: ``line 3``, or ``lines 2-9``."""
    return f"line {lines[0]}" if len({*lines}) == 1 else f"lines {min(lines)}-{max(lines)}"


# ---- what works only in Slurm ----------------------------------------------------------------------------------------

_INDEX = VARIABLES[TASK_ID]
#: Uses for which a script is refused -> what the line does, and what to write.
_REMEDIES = {
    "srun": "starts srun, which only Slurm has: take it and its options out",
    TASK_ID: f"uses {TASK_ID}, which only Slurm sets: write ${_INDEX} there, or above it: "
    f"export {TASK_ID}=${{{TASK_ID}:-${_INDEX}}}",
}


def judged(
    name: str, text: str, *, reader: str | None, known: Container[str], is_open: Callable[[str], bool] | None
) -> tuple[str | None, list[str]]:
    """Return why the script *name* is refused, or None, and remarks about it.

    *reader* is the shell that reads it; None: another program, and only the lines for sbatch are read. *known* are the
    variables that the job has. *is_open* says whether the submitter has left out an option of ``submit``; None: the
    lines have been read as options, and bash has a function ``srun``.
    """
    lines = list(requested(text))
    if not lines:
        return None, []
    advice = None if is_open is None else _advice(name, lines, is_open)
    remarks = [] if advice is None else [advice]
    sure: dict[str, list[int]] = {}
    others: dict[str, list[int]] = {}
    for number, what, is_sure in _uses(text) if reader is not None else ():
        if what not in known and not (what == "srun" and is_open is None and reader == "bash"):
            (sure if is_sure and what in _REMEDIES else others).setdefault(what, []).append(number)
    faults = []
    for what, remedy in _REMEDIES.items():
        first, *more = dict.fromkeys(sure.get(what, [0]))
        if first:
            also = f" (also {_numbers(more)})" if more else ""
            shown = short(text.split("\n")[first - 1].strip(), 60)
            faults.append(f"{shown!r} in line {first} of {name}{also} {remedy}")
    perhaps = others.pop("srun", None)
    if perhaps is not None:
        remarks.append(f"warning: {name} may start srun, which only Slurm has ({_numbers(perhaps)})")
    if others:
        remarks.append(f"warning: {name}: gpuqueue does not set {', '.join(map(_variable, others, others.values()))}")
    return "; ".join(faults) or None, remarks


def _variable(name: str, lines: Sequence[int]) -> str:
    like = f"; here ${VARIABLES[name]}" if name in VARIABLES else ""
    return f"{plain(name)} ({_numbers(lines)}{like})"


#: The script asks whether Slurm or this queue is there: a test that names a variable, but compares no numbers. Of the
#: index only whether it has a value: a comparison of it is a use.
_ASKS = re.compile(
    r"""(?:^|[;&|!(]|\b(?:if|elif|while|then|do))\s*(?:\[\[?|test|case)\s(?![^;]{0,200}\s-(?:eq|ne|[lg][te])\s)
    [^;\]]{0,200}?(?:(?:SLURM|GPUQUEUE)_(?!ARRAY_TASK_ID)|-[nzv]\s+"?\$?\{?SLURM_
    |SLURM_ARRAY_TASK_ID(?::?[-+]|\}?"?\s*(?:\]|[!=]?=\s*(?:""|''|"?x"?\s))))
    |\$\{?\?(?:SLURM|GPUQUEUE)_|\b(?:command\s+-[vV]|which|type|hash)\s+(?:-\w+\s+)?srun\b""",
    re.VERBOSE,
)
#: It gives a variable a value of its own, or has an srun of its own.
_GIVES = re.compile(
    r"(?<![\w$-])(SLURM_\w+)\+?=(?!=)|\$\{(SLURM_\w+):?=|\b(?:for|foreach|read|setenv|set)\s+(?:-\S+\s+)*(SLURM_\w+)"
    r"|(?<![\w-])(srun)\s*\(\s*\)|\b(?:alias|function)\s+(srun)\b"
)
#: It reads a variable: with a dollar sign, in arithmetic, or as an index.
_READS = re.compile(r"\$\{?#?(SLURM_[A-Z0-9_]+)|(?:\(\(|\w\[|\blet\s)[^)\]]{0,80}?\b(SLURM_[A-Z0-9_]+)")
_SRUN = r"\s*(?:(?:\w+=\S*|exec|time|nohup|timeout\s+\S+)\s+)*(?:[\w./-]*/)?srun(?=[ \t]+[^\s;&|)#])"
_STARTS, _MAY_START = re.compile(_SRUN), re.compile(rf"""(?:^|[;&|()`"{{]|\b(?:then|do|else|if)\s){_SRUN}""")
#: What is no code: text in single quotes, an escaped character, a comment, an expansion with a default.
_NO_CODE = re.compile(r"""("(?:[^"\\]|\\.)*")|\$'(?:[^'\\]|\\.)*'|'[^']*'|\\.|(?:^|(?<=[\s;]))\#.*""")
_DEFAULT = re.compile(r"\\\$|\$\{\w+:?[-+=][^}]{0,200}\}")
#: From here on a line may leave out the rest of it.
_MAYBE = re.compile(r"&&|\|\||\b(?:then|do|in)\b|[({]\s*$")
#: What begins and ends a block, and a here-document.
_OPENS = re.compile(
    r"(?:^|[;&|(]|\b(?:then|do|else))\s*(?:if|case|for|foreach|while|until|select)\b|(?:^|[\s)])\{(?=\s|$)"
)
_CLOSES = re.compile(r"(?:^|[;&|])\s*(?:fi|done|esac|endif|end|\})(?=$|[\s;&|)<>])")
_HERE = re.compile(r"""(?<!<)<<-?(?!<)\s*(["'\\]?)([A-Za-z_]\w*)""")


def _uses(text: str) -> Iterator[tuple[int, str, bool]]:
    """Yield what a script uses of Slurm until it asks for it: the line, ``srun`` or a variable, whether in any case."""
    given: set[str] = set()
    for number, line, code, sure in _lines(text):
        if code and _ASKS.search(line):
            return
        given.update(name for match in _GIVES.finditer(line) for name in match.groups() if name)
        uses = [(next(filter(None, match.groups())), match.end() <= len(sure)) for match in _READS.finditer(code)]
        if any(map(_STARTS.match, re.split("[;|]", sure))):
            uses.append(("srun", True))
        elif _MAY_START.search(code):
            uses.append(("srun", False))
        yield from ((number, what, is_sure) for what, is_sure in uses if what not in given)


def _lines(text: str) -> Iterator[tuple[int, str, str, str]]:
    """Yield the lines of a script: the number, the line, its code, and the part of that which runs in any case.

    Of a here-document only the expansions are code.
    """
    depth, here, is_quoted, is_sure, goes_on, is_text = 0, "", False, False, False, False
    for number, line in enumerate(text.split("\n"), 1):
        if here:
            here = "" if line.strip() == here else here
            if not is_quoted:
                yield number, "", " ".join(re.findall(r"\$\{?\w+", _DEFAULT.sub("", line))), ""
            continue
        code = _DEFAULT.sub("", _NO_CODE.sub(lambda match: match[1] or "", line))
        is_sure = not is_text and (is_sure if goes_on else depth == 0)
        sure = _MAYBE.split(code)[0] if is_sure else ""
        yield number, line, code, sure
        is_sure, goes_on = sure == code, line.endswith(("\\", "&&", "||", "|"))
        bare = re.sub('"[^"]*"', "", code)
        is_text ^= '"' in bare  # a text of several lines begins or ends
        depth = max(0, depth + len(_OPENS.findall(bare)) - len(_CLOSES.findall(bare)))
        begun = _HERE.search(line)
        if begun is not None:
            is_quoted, here = bool(begun[1]), begun[2]
