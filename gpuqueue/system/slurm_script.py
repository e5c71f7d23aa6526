"""Finds what in a script for Slurm works only there. Pure.

``sbatch`` reads the ``#SBATCH`` lines of a script and sets variables ``SLURM_…`` for it. ``gpuqueue submit SCRIPT``
does so too (:mod:`gpuqueue.system.sbatch_lines`), but not for a file that a command starts, nor from Python. Without
them a script may do the wrong work and succeed: all members of an array would have the same parameters.

The rule for a shell script with ``#SBATCH`` lines: a line that uses ``$SLURM_ARRAY_TASK_ID`` or starts ``srun`` is
refused if it runs in any case: not in a block, a function or a here-document, and not behind ``&&`` or ``||``. Other
uses are remarks. A use with a default (``${SLURM_ARRAY_TASK_ID:-0}``) is none, and from the first line on that asks
whether Slurm or this queue is there (``[ -n "$SLURM_JOB_ID" ]``, ``command -v srun``) the author is trusted. No line is
read more closely than that: a script that is refused by mistake is worse than one that is not. Without ``#SBATCH``
lines, only ``$SLURM_ARRAY_TASK_ID`` in an array is refused: its author has typed ``sbatch --array``.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

from gpuqueue.errors import BadRequest
from gpuqueue.model import slurm_variables
from gpuqueue.model.job_request import JobRequest
from gpuqueue.model.job_spec import JobSpec
from gpuqueue.model.slurm_variables import DIRECTORY, SAME
from gpuqueue.system.command_line import (
    BYTE_ORDER_MARK,
    OTHER_LINES,
    SBATCH,
    SHELLS,
    TASK_ID,
    UTF_16,
    StartedFile,
    first_line_of,
)
from gpuqueue.system.sbatch_lines import requested
from gpuqueue.text.sanitize import plain, short

#: Variables of Slurm -> those with the same value here.
VARIABLES: Mapping[str, str] = {**SAME, DIRECTORY: "PWD"}

#: Uses of something of Slurm, each with its lines.
_Lines: TypeAlias = dict[str, list[int]]
_INDEX = VARIABLES[TASK_ID]
#: Uses for which a script is refused -> what the line does, and what to write.
_REMEDIES = {
    "srun": "starts srun, which only Slurm has: take it and its options out",
    TASK_ID: f"uses {TASK_ID}, which only Slurm sets: write ${_INDEX} there, or above it: "
    f"export {TASK_ID}=${{{TASK_ID}:-${_INDEX}}}",
}


def judged(
    name: str, text: str, *, reader: str | None, known: Container[str], is_read: bool, is_array: bool
) -> tuple[str | None, list[str]]:
    """Return why the script *name* is refused, or None, and remarks about it.

    *reader* is the shell that reads it, None if another program does. *known* are the variables that the job has, and
    ``srun`` if it is on its PATH. *is_read* says whether the lines for sbatch have been read as options, *is_array*
    whether the members of an array run the script.
    """
    lines = [number for number, *_ in requested(text)]
    if not lines:
        return (_faults(name, text, _found(text, reader, known)[0], [TASK_ID]) or None) if is_array else None, []
    remarks: list[str] = []
    if not is_read:
        are = "lines are" if len({*lines}) > 1 else "line is"
        remarks.append(f"{name}: its #SBATCH {are} not read here: gpuqueue submit {shlex.quote(name)} reads them")
    sure, others = _found(text, reader, known)
    perhaps = others.pop("srun", None)
    if perhaps is not None:
        remarks.append(f"warning: {name} may start srun, which only Slurm has ({_numbers(perhaps)})")
    requeues = others.pop(_REQUEUE, None)
    if requeues is not None:
        remarks.append(f"warning: {name} calls {_REQUEUE}, which only Slurm has ({_numbers(requeues)}): write exit 75")
    if others:
        remarks.append(f"warning: {name}: gpuqueue does not set {', '.join(map(_variable, others, others.values()))}")
    return _faults(name, text, sure, _REMEDIES) or None, remarks


def _found(text: str, reader: str | None, known: Container[str]) -> tuple[_Lines, _Lines]:
    """Return the lines of each use for which a script is refused, and of each other one."""
    sure: _Lines = {}
    others: _Lines = {}
    for number, what, is_sure in _uses(text) if reader is not None else ():
        if what not in known:
            (sure if is_sure and what in _REMEDIES else others).setdefault(what, []).append(number)
    return sure, others


def _faults(name: str, text: str, sure: _Lines, kinds: Iterable[str]) -> str:
    """Return what is wrong with the uses of these *kinds*, in words; empty if there are none."""
    faults = []
    for what in kinds:
        first, *more = dict.fromkeys(sure.get(what, [0]))
        if first:
            also = f" (also {_numbers(more)})" if more else ""
            shown = short(text.split("\n")[first - 1].strip(), 60)
            faults.append(f"{shown!r} in line {first} of {name}{also} {_REMEDIES[what]}")
    return "; ".join(faults)


def _numbers(lines: Sequence[int]) -> str:
    """Return the numbers of *lines* in words, the first and the last one: ``line 3``, or ``lines 2-9``."""
    return f"line {lines[0]}" if len({*lines}) == 1 else f"lines {min(lines)}-{max(lines)}"


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
#: A job queues itself again, mostly in a trap, and so in quotation marks.
_REQUEUE, _REQUEUES = "scontrol requeue", re.compile(r"^[^#]*\bscontrol\s+requeue\b")
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
        if _REQUEUES.search(line):
            uses.append((_REQUEUE, False))
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


# ---- the text of any script ------------------------------------------------------------------------------------------

# What of it cannot run, or would not do what its author expects. Such a job would fail when its turn comes, or succeed
# without its work. The file may change until then, and so ``--anyway`` submits it.


def check(
    started: StartedFile, text: bytes, spec: JobSpec, request: JobRequest, note: Callable[[str], None] | None
) -> None:
    """Check the script that a job with this *spec* starts; *text* is its first part. Call *note* with remarks.

    Raises:
        BadRequest: the script cannot run, or would do the wrong work, and *request* does not submit it anyway.

    """
    reader = started.reader or _reader_of(text)
    fault, remark = _line_ends(started, text, reader, "" if request.cwd is None else spec.cwd)
    faults, remarks = [fault], [remark]
    remarks += [
        f"{plain(started.path)}: its {mark.decode().strip()} lines are not read: write their options as #GPUQ lines, "
        "such as #GPUQ --mem 6G --time 2h"
        for mark in OTHER_LINES
        if mark in text
    ]
    if SBATCH.encode() in text or TASK_ID.encode() in text:
        is_read = slurm_variables.MARK in spec.env
        fault, more = judged(
            plain(started.path),
            text.removeprefix(BYTE_ORDER_MARK).decode("utf-8", "replace").replace("\r\n", "\n"),
            reader=reader if reader in SHELLS else None,
            known={*spec.env, *(("srun", *slurm_variables.names(spec.env)) if is_read else ())},
            is_read=is_read,
            is_array=spec.array is not None,
        )
        faults.append(fault)
        remarks += more
    for line in filter(None, remarks):
        if note is not None:
            note(line)
    if any(faults) and not request.anyway:
        raise BadRequest(f"{'; '.join(filter(None, faults))}; or submit it as it is with --anyway")


def _reader_of(text: bytes) -> str:
    """Return the name of the program that the first line of a script starts, empty if it names none."""
    names = [os.path.basename(word) for word in " ".join(first_line_of(text)).split()]  # noqa: PTH119 - as command_line
    return next((name for name in names if name != "env" and name[:1] != "-" and "=" not in name), "")


def _line_ends(started: StartedFile, text: bytes, reader: str, cwd: str) -> tuple[str | None, str | None]:
    r"""Return why a byte order mark or line ends keep a script from running, and a remark if they only disturb it.

    *cwd* is the directory of its path, empty for the current one. A ``\r`` within the first line ends a line, as on
    old Macs.
    """
    name, path = plain(started.path), shlex.quote(os.path.join(cwd, started.path))  # noqa: PTH118 - as command_line
    if text.startswith(UTF_16):
        repair = f"repair it with iconv -f UTF-16 -t UTF-8 {path} | sed 's/\\r$//' > {path}.new, and use that file"
        return f"{name} is UTF-16 text, which cannot run: {repair}", None
    first, has_mark = text.partition(b"\n")[0], text.startswith(BYTE_ORDER_MARK)
    is_mac = b"\r" in first.rstrip(b"\r")
    has_returns = is_mac or first.endswith(b"\r") or b"\r\n" in text
    commands = [r"1s/^\xEF\xBB\xBF//"] * has_mark + [r"s/\r/\n/g" if is_mac else r"s/\r$//"] * has_returns
    repair = f"repair it with sed -i '{'; '.join(commands)}' {path}"
    if started.reader is None and has_mark:
        return f"{name} begins with a byte order mark, so that it cannot run: {repair}", None
    if started.reader is None and b"\r" in first and first.startswith(b"#!"):
        program = plain(" ".join(first_line_of(text)))
        return f"{name} cannot run: its first line ends with \\r, and there is no '{program}\\r': {repair}", None
    if reader in SHELLS and commands:
        trouble = "ends its lines with \\r, as on Windows" if has_returns else "begins with a byte order mark"
        return None, f"warning: {name} {trouble}, which {reader} takes for a part of its words: {repair}"
    return None, None
