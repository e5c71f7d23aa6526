"""Says what a script for Slurm asks for in the options of ``submit``, and what in it works only in Slurm. Pure.

``sbatch`` reads the ``#SBATCH`` lines of a script and sets variables ``SLURM_…`` for it. gpuqueue does neither. Without
them a script may do the wrong work and succeed: all members of an array would have the same parameters.
"""

from __future__ import annotations

import ast
import re
import shlex
import warnings
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gpuqueue.errors import BadRequest
from gpuqueue.text.sanitize import plain, short
from gpuqueue.text.units import parse_duration

#: How a line begins that sbatch reads.
SBATCH = "#SBATCH"
#: The variable with the index of an array's member. Without it all members do the same.
TASK_ID = "SLURM_ARRAY_TASK_ID"
#: Variables of Slurm -> those with the same value here.
VARIABLES: Mapping[str, str] = {
    TASK_ID: "GPUQUEUE_ARRAY_INDEX",
    "SLURM_ARRAY_JOB_ID": "GPUQUEUE_ARRAY_JOB_ID",
    "SLURM_ARRAY_TASK_COUNT": "GPUQUEUE_ARRAY_COUNT",
    "SLURM_JOB_ID": "GPUQUEUE_JOB_ID",
    "SLURM_JOBID": "GPUQUEUE_JOB_ID",
    "SLURM_SUBMIT_DIR": "PWD",
}


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
    "error": Counterpart("e", "--separate-stderr"),
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
    "output": Counterpart("o", otherwise="gpuqueue logs ID shows the output"),
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
_USUAL = {("export", "ALL"), ("nodes", "1"), ("nodes", "1-1"), ("ntasks", "1"), ("ntasks-per-node", "1")}


def counterpart_of(option: str) -> tuple[str, Counterpart] | None:
    """Return the long form and the counterpart of *option* of sbatch, such as ``--gres`` or ``-J``; None if unknown."""
    name = option[2:] if option.startswith("--") else _LONG.get(option[1:], "")
    return (f"--{name}", OPTIONS[name]) if name in OPTIONS else None


# ---- the lines of sbatch ---------------------------------------------------------------------------------------------


def _in_gpus(option: str, value: str) -> list[str]:
    """Return the options for a number of GPUs and their type, such as ``a100:2``, ``a100`` or ``2``."""
    typed = []
    for part in value.split(","):
        kind, _, count = part.partition("(")[0].rpartition(":")
        if not (count.isascii() and count.isdigit()):
            kind, count = count, "1"
        typed += [f"{option} {count}"] if count.lstrip("0") not in {"", "1"} else []
        typed += [f"--device-type {shlex.quote(kind)}"] if kind else []
    return typed


def _in_gres(option: str, value: str) -> list[str]:
    """Return the options for ``gpu:a100:2``; other resources have none."""
    parts = [part.removeprefix("gres/").partition(":") for part in value.split(",")]
    return [words for kind, _, rest in parts if kind == "gpu" for words in _in_gpus(option, rest)]


def _in_time(option: str, value: str) -> list[str]:
    """Return the option for a time limit: sbatch takes a bare number for minutes, and ``1-12`` for days and hours."""
    if value.upper() in {"0", "UNLIMITED", "INFINITE"}:
        return []
    days, dash, hours = value.rpartition("-")
    text = f"{value}m" if value.isdigit() else value
    if dash:
        text = f"{days}-{':'.join([*hours.split(':'), '00', '00'][:3])}"
    try:
        parse_duration(text)
    except BadRequest:
        text = "TIME"
    return [f"{option} {text}"]


def _in_size(option: str, value: str) -> list[str]:
    """Return the option for a size: sbatch takes a bare number for megabytes, and 0 for all that the host has."""
    return [] if value == "0" else [f"{option} {value}M" if value.isdigit() else f"{option} {shlex.quote(value)}"]


def _in_mail(_: str, value: str) -> list[str]:
    """Return the option for the occasions of a mail."""
    occasions = value.upper().split(",")
    return [] if "NONE" in occasions else ["--on-fail ADDRESS" if occasions == ["FAIL"] else "--on-end ADDRESS"]


def _quoted(option: str, value: str) -> list[str]:
    return [f"{option} {shlex.quote(value)}"]


#: What is typed here for the value of an option of sbatch, if it is not the value itself.
_TYPED: Mapping[str, Callable[[str, str], list[str]]] = {
    **dict.fromkeys(("gpus", "gpus-per-node", "gpus-per-task"), _in_gpus),
    **dict.fromkeys(("error", "exclusive", "hold", "no-requeue", "test-only"), lambda option, _: [option]),
    **dict.fromkeys(("mem-per-cpu", "mem-per-gpu"), lambda option, _: [f"{option} SIZE"]),
    "cpus-per-gpu": lambda option, _: [f"{option} N"],
    "dependency": lambda option, value: ["--dedupe KEY" if value == "singleton" else f"{option} ID"],
    "gres": _in_gres,
    "mail-type": _in_mail,
    "mail-user": lambda *_: [],  # sbatch sends nothing without a mail-type
    "mem": _in_size,
    "nodelist": lambda option, _: [f"{option} HOST:INDEX"],
    "qos": lambda option, _: [f"{option} PRIORITY"],
    "signal": lambda option, value: [f"{option} {shlex.quote(value.rpartition(':')[2])}"],
    "time": _in_time,
}


class _Requested(NamedTuple):
    """An option in a line for sbatch: the number of the line, the long form or a letter that is unknown, the value."""

    line: int
    name: str
    value: str


def _requested(text: str) -> Iterator[_Requested]:
    """Yield the options that sbatch reads: those in lines before the first command."""
    for number, line in enumerate(text.split("\n"), 1):
        if line.startswith(SBATCH) and line[len(SBATCH) :][:1] in {"", " ", "\t"}:
            yield from (_Requested(number, *option) for option in _options(line[len(SBATCH) :]))
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


def _advice(name: str, requested: Sequence[_Requested], is_open: Callable[[str], bool]) -> str | None:
    """Return a line about the ``#SBATCH`` lines of the script *name*, None if nothing of them is left to type."""
    typed: list[str] = []
    limits: list[str] = []
    others: dict[str, str] = {}
    for _, option, value in requested:
        ours = OPTIONS.get(option)
        if ours is None:
            others[f"--{option}" if len(option) > 1 else f"-{option}"] = "there is nothing like it"
        elif ours.option:
            make = _TYPED.get(option, _quoted)
            into = limits if ours.option in _LIMITS else typed
            into += [words for words in make(ours.option, value) if is_open(words.split()[0])]
        elif (option, value) not in _USUAL:
            others[f"--{option}"] = ours.otherwise
    parts = [f"for {option}: {remark}" for option, remark in others.items()]
    if typed:
        parts.insert(0, f"add {' '.join(dict.fromkeys(typed))}")
    if limits:
        parts.append(f"where jobs run as their submitters also {' '.join(dict.fromkeys(limits))}")
    if not parts:
        return None
    numbers = _numbers([option.line for option in requested])
    are = "are" if numbers.startswith("lines") else "is"
    return f"{name}: the #SBATCH {numbers} {are} not read: {'; '.join(parts)}"


def _numbers(lines: Sequence[int]) -> str:
    """Return the numbers of *lines* in words: ``line 3``, or ``lines 2-6, 9``."""
    spans: list[list[int]] = []
    for line in sorted({*lines}):
        if spans and line == spans[-1][-1] + 1:
            spans[-1].append(line)
        else:
            spans.append([line])
    shown = ", ".join(f"{span[0]}-{span[-1]}" if len(span) > 1 else str(span[0]) for span in spans)
    return f"lines {shown}" if len({*lines}) > 1 else f"line {shown}"


# ---- what works only in Slurm ----------------------------------------------------------------------------------------


class Use(NamedTuple):
    """A line that uses what only Slurm has: ``srun``, or a variable. If *is_mild*, the line can do without it."""

    line: int
    what: str
    is_mild: bool = False


def judged(
    name: str, text: str, *, is_python: bool | None, known: Container[str], is_open: Callable[[str], bool]
) -> tuple[str | None, list[str]]:
    """Return why the script *name* is refused, or None, and remarks about it.

    *is_python* is None for a language that is not judged. *known* are the variables that the job has. *is_open* says
    whether the submitter has left out an option of ``submit``.
    """
    requested = list(_requested(text))
    if not requested:
        return None, []
    advice = _advice(name, requested, is_open)
    remarks = [] if advice is None else [advice]
    uses = _uses(text, is_python=is_python, known=known)
    grave = [use for use in uses if use.what in {"srun", TASK_ID} and not use.is_mild]
    lines = text.split("\n")
    faults = []
    for what, remedy in (
        ("srun", "starts srun, which only Slurm has: take it and its options out"),
        (TASK_ID, f"uses {TASK_ID}, which only Slurm sets: {_instead(is_python=is_python)}"),
    ):
        numbers = list(dict.fromkeys(use.line for use in grave if use.what == what))
        if numbers:
            more = f" (also {_numbers(numbers[1:])})" if len(numbers) > 1 else ""
            shown = short(lines[numbers[0] - 1].strip(), 60)
            faults.append(f"{shown!r} in line {numbers[0]} of {name}{more} {remedy}")
    others: dict[str, list[int]] = {}
    for use in uses:
        if use not in grave:
            others.setdefault(use.what, []).append(use.line)
    perhaps = others.pop("srun", None)
    if perhaps is not None:
        remarks.append(f"warning: {name} may start srun, which only Slurm has ({_numbers(perhaps)})")
    if others:
        remarks.append(f"warning: {name}: gpuqueue does not set {', '.join(map(_variable, others, others.values()))}")
    return "; ".join(faults) or None, remarks


def _instead(*, is_python: bool | None) -> str:
    """Return what to write in place of the index of Slurm."""
    index = VARIABLES[TASK_ID]
    if is_python:
        return f'write os.environ["{index}"]'
    return f"write ${index} there, or above it: export {TASK_ID}=${{{TASK_ID}:-${index}}}"


def _variable(name: str, lines: Sequence[int]) -> str:
    like = f"; here ${VARIABLES[name]}" if name in VARIABLES else ""
    return f"{plain(name)} ({_numbers(lines)}{like})"


def _uses(text: str, *, is_python: bool | None, known: Container[str]) -> list[Use]:
    """Return what the script uses of Slurm without a look whether it is there, in the order of its lines."""
    if is_python is None:
        return []
    try:
        uses = {*(_in_python(text) if is_python else _in_shell(text))}
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # nothing that can be read
        return []
    return sorted(use for use in uses if use.what not in known)


# ---- shell -----------------------------------------------------------------------------------------------------------

_NAME = re.compile(r"SLURM_[A-Z0-9_]+")
#: A variable that is set where Slurm, or this queue, is there.
_ASKED = re.compile(r"(?:SLURM|GPUQUEUE)_[A-Z0-9_]+")
#: A start of srun, which has arguments. Words such as ``mysrun`` and ``srun.log`` are none.
_SRUN = re.compile(r"(?<![\w./$=-])(?:[\w./-]*/)?srun(?=[ \t]+[^\s;&|)#])")
#: A command line with srun that is kept in a variable.
_KEPT = re.compile(r"(?<![\w$])\w+=[\"'](?:[\w./-]*/)?srun(?=[ \t\"'])")
#: The script has an srun of its own.
_OWN_SRUN = re.compile(r"(?<![\w-])srun\s*\(\s*\)|\b(?:alias|function)\s+srun\b")
#: Where a command begins, and the words that may stand before its program.
_BEGINNING = re.compile(r"[\n;&|()`]|(?<=\s)[{}](?=\s)")
_BEFORE_PROGRAM = re.compile(
    r"if|then|elif|else|do|while|until|!|time|nohup|exec|eval|env|nice|ionice|timeout|stdbuf|setsid|command|builtin"
    r"|sudo|numactl|taskset|xargs|\w+\+?=.*|-.*|\d.*"
)
#: A variable gets a value. It has it from the end of the match on.
_SETS = re.compile(
    r"(?<![\w$-])(SLURM_\w+)\+?=(?!=)[^\s;&|]*|\$\{(SLURM_\w+):?="
    r"|\b(?:for|foreach|read|setenv|set)\s+(?:-\S+\s+)*(SLURM_\w+)"
)
#: A test whether a variable or srun is there.
_TEST = re.compile(
    r"""(?:\[\[?|\btest|&&|\|\||!|-[ao])\s+(?:!\s+)?-[nzv]\s+"?[_x]?  # [ -n "$SLURM_JOB_ID" ]
        \$?\{?(?:SLURM|GPUQUEUE)_\w+
    |\[\[?\s+(?:!\s+)?"?\$\{?(?:SLURM|GPUQUEUE)_\w+\}?"?\s+(?:\]|&&|\|\|)  # [ "$SLURM_JOB_ID" ]
    |"?[_x]?\$\{?(?:SLURM|GPUQUEUE)_\w+\}?"?\s*[!=]?=\s*(?:""|''|"_"|'_'|x)(?=[\s\])])  # [ "x$SLURM_JOB_ID" != x ]
    |(?:\[\[?|\(\(|\btest)\s[^\n;]{0,200}?  # [ "${SLURM_JOB_ID:-}" != "" ]
        \$\{(?:\+(?:SLURM|GPUQUEUE)_\w+|(?:SLURM|GPUQUEUE)_\w+:?[-+])
    |\$\{?\?(?:SLURM|GPUQUEUE)_\w+  # csh
    |\b(?:command[ \t]+-[vV]|which|type(?:[ \t]+-\w+)?|hash)[ \t]+srun\b""",
    re.VERBOSE,
)
#: Words that begin and end conditions and blocks.
_BLOCK = re.compile(r"(?<![^\s;&|(){}`])(?:if|elif|then|fi|endif|case|esac|\{|\})(?![^\s;&|(){}`])")
#: Words by which a script ends early.
_LEAVES = re.compile(r"\b(?:exit|exec)\b")
#: Longest text before a word that is looked at, in characters.
_BEFORE = 500


def _in_shell(text: str) -> Iterator[Use]:
    """Yield what a shell script uses of Slurm outside of tests whether it is there, and of what they guard."""
    code = _Code(text).masked()
    ends = [match.end() for match in re.finditer("\n", text)]
    guards = _Guards(code)
    has_from: dict[str, int] = {}
    for match in _SETS.finditer(code):
        has_from.setdefault(next(filter(None, match.groups())), match.end())
    for match in _NAME.finditer(code):
        at, name = match.start(), match.group()
        if _is_read(code, at, match.end()) and at < has_from.get(name, len(code)) and not guards.hold(at):
            yield Use(bisect_right(ends, at) + 1, name, is_mild=guards.are_in_doubt(at))
    if _OWN_SRUN.search(code):
        return
    starts = {m.start(): False for m in _SRUN.finditer(code) if _is_program(code, m.start())}
    starts |= {m.start(): True for m in _KEPT.finditer(text) if code[m.start()] == text[m.start()]}
    for at, is_kept in starts.items():
        if not guards.hold(at):
            yield Use(bisect_right(ends, at) + 1, "srun", is_mild=is_kept or guards.are_in_doubt(at))


def _is_read(code: str, start: int, end: int) -> bool:
    """Return whether the script reads the variable at *start*, and has no default for it."""
    before = code[max(0, start - _BEFORE) : start]
    if before.endswith("${") and re.match(r":?[-+=]", code[end : end + 2]):
        return False
    if re.search(r"\$\{(?!SLURM_)\w+:?[-=][^}\n]*\Z", before):  # in place of another value
        return False
    if before.endswith(("$", "${", "${#")):
        return True
    # In arithmetic, and in the index of an array, a name needs no dollar sign.
    return (
        before.rfind("((") > before.rfind("))")
        or re.search(r"\w\[[^\]\n]*\Z", before) is not None
        or re.search(r"\blet\s[^\n;]*\Z", before) is not None
    ) and not before.endswith(("$?", "${?", "${+", "${!"))


def _is_program(code: str, at: int) -> bool:
    """Return whether the word at *at* is the program of a command, or of one that starts another."""
    before = code[max(0, at - _BEFORE) : at]
    words = _BEGINNING.split(before)[-1].split()
    is_query = "command" in words and {"-v", "-V"} & {*words}
    return all(map(_BEFORE_PROGRAM.fullmatch, words)) and not is_query


@dataclass
class _Block:
    """An ``if``, a ``case`` or a ``{``.

    Where it starts, where its last condition starts, where what it may leave out starts, and whether a test guards it.
    """

    opener: str
    start: int
    condition: int
    body: int
    is_guarded: bool


class _Guards:
    """The places of a shell script that run only after a test whether Slurm, or this queue, is there."""

    def __init__(self, code: str) -> None:
        self._code = code
        tests = [match.span() for match in _TEST.finditer(code)]
        self._starts, self._ends = [start for start, _ in tests], [end for _, end in tests]
        blocks = list(self._all_blocks())
        self._bodies = [(block.body, end) for block, end in blocks if block.opener != "{"]
        self._guarded = [(block.start, end) for block, end in blocks if block.is_guarded]
        lines = [(end, end + len(code[end:].partition("\n")[0])) for end in self._ends]
        places = [end for start, end in (*self._guarded, *lines) if _LEAVES.search(code, start, end)]
        self._left = min(places, default=len(code))

    def hold(self, at: int) -> bool:
        """Return whether the place *at* is in a test, behind one in its line, or in a block that a test guards."""
        return self._is_behind_test(at) or any(start <= at < end for start, end in self._guarded)

    def are_in_doubt(self, at: int) -> bool:
        """Return whether the place *at* may be left out: it is in a condition, or behind an end that a test guards."""
        return at > self._left or any(start <= at < end for start, end in self._bodies)

    def _is_behind_test(self, at: int) -> bool:
        number = bisect_right(self._starts, at) - 1
        if number < 0 or self._starts[number] < self._line_start(at):
            return False
        between = self._code[self._ends[number] : at]
        is_csh = self._code.startswith(("$?", "${?"), self._starts[number]) and ")" in between
        return at < self._ends[number] or is_csh or re.search(r"&&|\|\||\bthen\b", between) is not None

    def _line_start(self, at: int) -> int:
        """Return where the line of *at* starts; a line continues one that ends with ``&&`` or ``||``."""
        start = self._code.rfind("\n", 0, at) + 1
        while start and self._code[max(0, start - _BEFORE) : start].rstrip().endswith(("&&", "||")):
            start = self._code.rfind("\n", 0, start - 1) + 1
        return start

    def _has_test(self, start: int, end: int) -> bool:
        return bisect_left(self._starts, start) < bisect_left(self._starts, end)

    def _all_blocks(self) -> Iterator[tuple[_Block, int]]:
        """Yield each block with its end: a ``{`` is guarded behind a test, an ``if`` with one in a condition."""
        blocks: list[_Block] = []
        for match in _BLOCK.finditer(self._code):
            word, at = match.group(), match.start()
            if word in {"if", "case", "{"}:
                body = self._code.find(" in", at) + 1 if word == "case" else 0
                blocks.append(_Block(word, at, at, body, is_guarded=word == "{" and self._is_behind_test(at)))
            elif word in {"fi", "endif", "esac", "}"}:
                opener = {"esac": "case", "}": "{"}.get(word, "if")
                while any(block.opener == opener for block in blocks):
                    block = blocks.pop()
                    if block.opener == opener:
                        yield block, at
                        break
            elif blocks and word == "elif":
                blocks[-1].condition = at
            elif blocks:  # then
                blocks[-1].body = blocks[-1].body or at
                blocks[-1].is_guarded |= self._has_test(blocks[-1].condition, at)


_HERE = re.compile(r"<<(-?)[ \t]*(?:'([^'\n]+)'|\"([^\"\n]+)\"|\\([A-Za-z_][\w.-]*)|([A-Za-z_][\w.-]*))")
_EXPANDED = re.compile(r"\$(?:\??\w+)?")


class _Code:
    """A shell script of which only code is left, at the same places.

    Comments are blank, and quoted text is underscores. Variables in double quotation marks, and in here-documents
    without quotation marks, are code. Each method that reads returns the place behind what it has read.
    """

    def __init__(self, text: str) -> None:
        self._text, self._out = text, list(text)
        #: The here-documents that begin in the next line: delimiter, whether it is quoted, whether tabs are stripped.
        self._here: list[tuple[str, bool, bool]] = []

    def masked(self, *, is_quoted: bool = False) -> str:
        """Return the code; *is_quoted*: of a text in which only expansions are code."""
        if is_quoted:
            self._quoted(0)
        else:
            self._code(0)
        return "".join(self._out)

    def _blank(self, start: int, end: int, by: str = "_") -> int:
        """Replace the text from *start* to *end*, but no line ends, and return *end*."""
        for at in range(start, min(end, len(self._text))):
            if self._text[at] != "\n":
                self._out[at] = by
        return end

    def _find(self, what: str, at: int) -> int:
        """Return where *what* is from *at* on, or the end of the script."""
        place = self._text.find(what, at)
        return len(self._text) if place < 0 else place

    def _code(self, at: int, closer: str = "") -> int:
        """Read code from *at* on, up to *closer*."""
        while at < len(self._text):
            char = self._text[at]
            if char == closer:
                return at + 1
            read = _READERS.get(char)
            at = at + 1 if read is None else read(self, at)
        return at

    def _quoted(self, at: int, closer: str = "") -> int:
        """Read text from *at* on, up to *closer*, in which only expansions are code."""
        while at < len(self._text):
            char = self._text[at]
            if char == closer:
                return at + 1
            is_code = char in {"\\", "$", "`"} and not self._text.startswith("$'", at)
            at = _READERS[char](self, at) if is_code else self._blank(at, at + 1)
        return at

    def escape(self, at: int) -> int:
        """Blank a backslash and the next character. With a line end, both are space: the line goes on."""
        if self._text.startswith("\n", at + 1):
            self._out[at : at + 2] = "  "
            return at + 2
        return self._blank(at, at + 2)

    def single_quotes(self, at: int) -> int:
        """Blank what is in single quotation marks."""
        return self._blank(at + 1, self._find("'", at + 1)) + 1

    def double_quotes(self, at: int) -> int:
        """Read what is in double quotation marks."""
        return self._quoted(at + 1, '"')

    def comment(self, at: int) -> int:
        """Blank a comment, if the number sign begins one."""
        if at and self._text[at - 1] not in " \t\n;&|()`":
            return at + 1
        return self._blank(at, self._find("\n", at), " ")

    def brackets(self, at: int) -> int:
        """Read the code in round brackets."""
        return self._code(at + 1, ")")

    def backticks(self, at: int) -> int:
        """Read the code in backticks."""
        return self._code(at + 1, "`")

    def expansion(self, at: int) -> int:
        """Read what a dollar sign begins: a variable, a command in brackets, arithmetic, or ``$'…'``."""
        text = self._text
        if text.startswith("$((", at):
            return self._arithmetic(at + 1)
        if text.startswith("$(", at):
            end = self._code(at + 2, ")")
            return self._blank(end - 1, end, " ") if text[end - 1] == ")" else end
        if text.startswith("${", at):
            return self._braces(at + 2)
        if text.startswith("$'", at):
            end = at + 2
            while end < len(text) and text[end] != "'":
                end += 2 if text[end] == "\\" else 1
            return self._blank(at + 2, end) + 1
        expanded = _EXPANDED.match(text, at)
        return at + 1 if expanded is None else expanded.end()

    def _arithmetic(self, at: int) -> int:
        depth = 0
        while at < len(self._text):
            depth += (self._text[at] == "(") - (self._text[at] == ")")
            at += 1
            if not depth:
                break
        return at

    def _braces(self, at: int) -> int:
        while at < len(self._text) and self._text[at] != "}":
            char = self._text[at]
            if char == "\\":
                at += 2
            else:
                at = _READERS[char](self, at) if char in {"$", '"'} else at + 1
        return at + 1

    def redirection(self, at: int) -> int:
        """Read ``<``, which may begin a here-document."""
        if self._text.startswith("<<<", at):
            return at + 3
        here = _HERE.match(self._text, at)
        if here is None:
            return at + 1
        tabs, *quoted, bare = here.groups()
        self._here.append((bare or next(filter(None, quoted)), bare is None, bool(tabs)))
        return here.end()

    def line_end(self, at: int) -> int:
        """Read the here-documents that begin in the next line."""
        at += 1
        for delimiter, is_quoted, strips_tabs in self._here:
            at = self._here_document(at, delimiter, is_quoted=is_quoted, strips_tabs=strips_tabs)
        self._here = []
        return at

    def _here_document(self, start: int, delimiter: str, *, is_quoted: bool, strips_tabs: bool) -> int:
        at = start
        while at < len(self._text):
            end = self._find("\n", at)
            line = self._text[at:end]
            if delimiter == (line.lstrip("\t") if strips_tabs else line):
                if is_quoted:
                    self._blank(start, at)
                else:
                    self._out[start:at] = _Code(self._text[start:at]).masked(is_quoted=True)
                return self._blank(at, end) + 1
            at = end + 1
        return start  # its end is missing, or it is none


_READERS: Mapping[str, Callable[[_Code, int], int]] = {
    "\\": _Code.escape,
    "'": _Code.single_quotes,
    '"': _Code.double_quotes,
    "#": _Code.comment,
    "(": _Code.brackets,
    "`": _Code.backticks,
    "$": _Code.expansion,
    "<": _Code.redirection,
    "\n": _Code.line_end,
}


# ---- Python ----------------------------------------------------------------------------------------------------------

#: Functions that start a program.
_STARTERS = {"run", "call", "check_call", "check_output", "Popen", "system", "popen", "getoutput"}


def _in_python(text: str) -> Iterator[Use]:
    """Yield what a Python script uses of Slurm outside of ``try``, and of conditions that ask for a variable."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its escape sequences
        tree = ast.parse(text)
    own = {name for node in ast.walk(tree) for name in _set_by(node)}
    nodes: list[tuple[ast.AST, bool]] = [(tree, False)]
    while nodes:
        node, is_guarded = nodes.pop()
        is_guarded |= isinstance(node, ast.Try) or (isinstance(node, (ast.If, ast.IfExp)) and _asks(node.test))
        is_guarded |= isinstance(node, ast.BoolOp) and _asks(node)
        is_guarded |= isinstance(node, ast.With) and any(_last(each) == "suppress" for each in _called(node))
        nodes += [(below, is_guarded) for below in ast.iter_child_nodes(node)]
        if not is_guarded:
            yield from (use for use in _used_by(node) if use.what not in own)


def _used_by(node: ast.AST) -> Iterator[Use]:
    """Yield what *node* itself uses of Slurm."""
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load) and _last(node.value) == "environ":
        yield from (Use(node.lineno, name) for name in _names([node.slice]))
    elif isinstance(node, ast.Call) and _last(node.func) in {"getenv", "get"} and len(node.args) == 1:
        yield from (Use(node.lineno, name, is_mild=True) for name in _names(node.args))
    elif isinstance(node, ast.Call) and _last(node.func) in _STARTERS and node.args:
        first = node.args[0].elts[:1] if isinstance(node.args[0], (ast.List, ast.Tuple)) else node.args[:1]
        yield from (Use(node.lineno, "srun") for words in _texts(first) if words.split()[:1] == ["srun"])


def _set_by(node: ast.AST) -> list[str]:
    """Return the variable that *node* sets in the environment."""
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store) and _last(node.value) == "environ":
        return _names([node.slice])
    return _names(node.args[:1]) if isinstance(node, ast.Call) and _last(node.func) == "setdefault" else []


def _called(node: ast.With) -> list[ast.expr]:
    """Return the functions that a ``with`` calls."""
    return [each.context_expr.func for each in node.items if isinstance(each.context_expr, ast.Call)]


def _last(node: ast.expr) -> str:
    """Return the last name of ``os.environ`` or ``environ``."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _texts(nodes: Sequence[ast.AST]) -> list[str]:
    return [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]


def _names(nodes: Sequence[ast.AST], form: re.Pattern[str] = _NAME) -> list[str]:
    return [text for text in _texts(nodes) if form.fullmatch(text)]


def _asks(test: ast.AST) -> bool:
    """Return whether *test* asks if a variable of Slurm, or of this queue, is there."""
    return any(
        (isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.In, ast.NotIn)) and _names([node.left], _ASKED))
        or (isinstance(node, ast.Call) and _last(node.func) in {"getenv", "get"} and _names(node.args, _ASKED))
        for node in ast.walk(test)
    )
