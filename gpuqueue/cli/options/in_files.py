"""Options of ``submit`` and ``run`` that are not typed: ``#GPUQ`` lines of a script, and ``gpuqueue.toml``.

An option that is typed comes first, then the script's, then that of the project, of the user and of the site. ``--env``
and ``--tag`` add up. The file of the project is the nearest one above the working directory. Of a script for Slurm the
``#SBATCH`` lines are read as well, after its ``#GPUQ`` lines.
"""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from gpuqueue.errors import BadRequest
from gpuqueue.lazy.imports import later
from gpuqueue.settings.sources import settings_file, toml_of
from gpuqueue.system.command_line import BYTE_ORDER_MARK, SBATCH, first_part
from gpuqueue.text.sanitize import brief, plain

if TYPE_CHECKING:
    import json

    from gpuqueue.model import slurm_variables
    from gpuqueue.system import sbatch_lines
else:  # for a script with #SBATCH lines
    json, sbatch_lines = later("json"), later("gpuqueue.system.sbatch_lines")
    slurm_variables = later("gpuqueue.model.slurm_variables")

#: How a line of a script begins whose words are options.
MARK = "#GPUQ"
#: The name of the files with options, and the directory of the site's.
NAME, SITE = "gpuqueue.toml", "/etc/gpuqueue"
#: The account whose files everybody trusts.
ROOT = 0
#: Tables of such a file. The keys of the last two are patterns: of a script's path or name, and of a job's name.
SUBMIT, SCRIPTS, NAMES = "submit", "scripts", "names"
#: Parameters whose values add up, and options that no file gives.
ADD_UP, TYPED_ONLY = frozenset({"env", "tags"}), frozenset({"--help", "--dry-run", "--tz", "--overlap", "--catch-up"})
#: Parameters of which one excludes the others.
_ONE_OF = (frozenset({"spread", "pack", "least_busy"}), frozenset({"snapshot", "no_snapshot"}))


#: Parameters whose typed value also decides variables of Slurm, and what other ``#SBATCH`` lines mean -> their options.
_SLURMS = {
    "after": "dependency",
    "array": "array",
    "sweep": "array",
    "each_line": "array",
    "cpus": "cpus-per-task",
    "gpus": "gpus",
    "name": "job-name",
    "time_limit": "time",
}
#: Returns an error with the option that is meant, if it is about one that does not exist.
Explained = Callable[[click.UsageError], click.UsageError]


class Part(NamedTuple):
    """Options of one place: their words, and the options that are turned off there."""

    place: str
    words: Sequence[str]
    off: Sequence[str] = ()


class NotTyped(NamedTuple):
    """The words of the options that files give, and the place of each: option without its dashes -> place."""

    words: Sequence[str]
    places: Mapping[str, str]


def not_typed(ctx: click.Context, explained: Explained, report: Callable[[str], object]) -> NotTyped:
    """Return the options in files for a command line that *ctx* has parsed. Call *report* with remarks.

    *explained* adds to an error which option was meant.

    Raises:
        BadRequest: a file cannot be read, or has options that do not exist.

    """
    script, cwd, name = (ctx.params.get(key) for key in ("script", "cwd", "name"))
    text = "" if script is None else _text_of(os.path.join(cwd or "", script))  # noqa: PTH118 - a str is wanted
    shown = plain(os.path.basename(script or ""))  # noqa: PTH119 - as above
    parts = [*_in_script(text, shown, report)]
    slurms = None
    if SBATCH in text:
        slurms = sbatch_lines.read(text, {_SLURMS[key]: str(ctx.params[key]) for key in _typed(ctx) & _SLURMS.keys()})
    if slurms is not None:
        parts += _of_slurm(slurms, shown, report, anyway=bool(ctx.params.get("anyway")))
    lines = [(part, _values(ctx, explained, part)) for part in parts]
    names = [name, *(values.get("name", [None])[-1] for _, values in lines)]
    name = next(filter(None, names), None)
    tables = [(part, _values(ctx, explained, part)) for part in _in_tables(cwd or "", script, name, report)]
    if not lines and not tables and slurms is None:
        return NotTyped((), {})
    params = {param.name: param for param in ctx.command.get_params(ctx) if isinstance(param, click.Option)}
    decided = _typed(ctx) - ADD_UP
    words: list[str] = []
    places: dict[str, str] = {}
    for part, values in (*lines, *tables):
        own: list[str] = []
        off = {key for key, param in params.items() if set(part.off) & set(param.opts)}
        for key, value in values.items():
            if key not in decided and not any(key in group and group & decided for group in _ONE_OF):
                option = max(params[key].opts, key=len)
                own += [option] if value is True else [f"{option}={text}" for text in value]
                places[option[2:]] = ", ".join(filter(None, (places.get(option[2:]), part.place)))
        words[:0] = own
        decided |= (values.keys() | off) - ADD_UP
    if slurms is not None:
        here = {slurm_variables.DIRECTORY: os.getcwd()} if "cwd" in places else {}  # noqa: PTH109 - a str is wanted
        variables = {**slurms.variables, "SLURM_JOB_NAME": name or os.path.basename(script or ""), **here}  # noqa: PTH119 - as above
        words.append(f"--env={slurm_variables.MARK}={json.dumps(variables)}")
    return NotTyped(words, places)


def _typed(ctx: click.Context) -> set[str]:
    """Return the parameters that somebody has typed."""
    typed = click.core.ParameterSource.COMMANDLINE
    names = [str(param.name) for param in ctx.command.get_params(ctx)]
    return {name for name in names if ctx.get_parameter_source(name) is typed}


def _values(ctx: click.Context, explained: Explained, part: Part) -> Mapping[str, Any]:
    """Return the values of the options of *part*, by parameter: True for a flag, else a list of texts.

    Raises:
        BadRequest: an option does not exist, or a word is no option.

    """
    parser = ctx.command.make_parser(ctx)
    try:
        values, more, _ = parser.parse_args(list(part.words))
        typed = [values.pop(name, None) for name in ("times", "script")]
    except click.UsageError as error:
        raise BadRequest(f"{part.place}: {explained(error).format_message()}") from None
    strange = [word for word in (*typed, *more) if isinstance(word, str)]
    if strange:
        raise BadRequest(f"{part.place}: {brief(strange[0])} is no option: only options can stand here")
    for word in part.words:
        if word in TYPED_ONLY:
            raise BadRequest(f"{part.place}: {word} can only be typed")
    return {
        key: True if value is True else value if isinstance(value, list) else [value]
        for key, value in values.items()
        if value not in (None, [], ()) and isinstance(value, (bool, str, list))
    }


# ---- the lines of a script -------------------------------------------------------------------------------------------


def _text_of(path: str) -> str:
    """Return the first part of a script, empty if it has no lines with options."""
    text = first_part(path)
    if MARK.encode() not in text and SBATCH.encode() not in text:
        return ""
    return text.removeprefix(BYTE_ORDER_MARK).decode("utf-8", "replace").replace("\r\n", "\n")


def _of_slurm(
    slurms: sbatch_lines.SbatchLines, name: str, report: Callable[[str], object], *, anyway: bool
) -> Iterator[Part]:
    """Yield the options in the lines for ``sbatch``, the last ones first. Report those without a meaning here.

    Raises:
        BadRequest: the script asks for what it cannot have here, and is not submitted *anyway*.

    """
    if slurms.faults and not anyway:
        raise BadRequest(f"{name} {'; '.join(slurms.faults)}; or submit it as it is with --anyway")
    if slurms.unused:
        remarks = "; ".join(f"{option} ({why})" for option, why in slurms.unused.items())
        report(f"{name}: not used of its {SBATCH} lines: {remarks}")
    for number, words in reversed(slurms.words):
        yield Part(f"{name} line {number}", words)


def _in_script(text: str, name: str, report: Callable[[str], object]) -> Iterator[Part]:
    """Yield the options in the lines of a script above its first command."""
    if MARK not in text:
        return
    has_begun = False
    by_place: dict[str, Part] = {}
    for number, line in enumerate(text.split("\n"), 1):
        if line.startswith(MARK) and line[len(MARK) :][:1] in {"", " ", "\t", "\r"}:
            place = f"{name} line {number}"
            if has_begun:
                report(f"{place}: {MARK} lines count only above the first command, and this one is below it")
                continue
            try:
                by_place[place] = Part(place, shlex.split(line[len(MARK) :], comments=True))
            except ValueError as error:
                raise BadRequest(f"{place}: {str(error).lower()}: close the quotation") from None
        elif line.strip() and not line.lstrip().startswith("#"):
            has_begun = True
    yield from reversed(by_place.values())  # of two lines the second one counts, as of two typed options


# ---- gpuqueue.toml ---------------------------------------------------------------------------------------------------


def _in_tables(cwd: str, script: str | None, name: str | None, report: Callable[[str], object]) -> Iterator[Part]:
    """Yield the options in the files of the project, the user and the site, the nearest ones first."""
    try:
        directory = os.path.abspath(cwd or ".")  # noqa: PTH100 - a str is wanted
    except FileNotFoundError:  # the submit refuses a current directory that is gone
        return
    own = os.path.dirname(settings_file(os.environ))  # noqa: PTH120 - as above
    for folder in dict.fromkeys(filter(None, (_nearest(directory), str(own), SITE))):
        path = f"{folder}/{NAME}"
        status = _stat(path)
        if status is None:
            continue
        starts = os.path.join(directory, script) if script else None  # noqa: PTH118 - as above
        trouble = _distrust(status, starts)
        if trouble is not None:
            report(f"{path} is not read: {trouble}")
            continue
        yield from _matching(path, folder, starts, name)


def _nearest(directory: str) -> str | None:
    """Return the nearest directory from *directory* upwards that has a file with options."""
    while _stat(f"{directory}/{NAME}") is None:
        directory, last = os.path.dirname(directory), directory  # noqa: PTH120 - a str is wanted
        if directory == last:
            return None
    return directory


def _stat(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)  # noqa: PTH116 - a call of each submit
    except (OSError, ValueError):
        return None


def _distrust(status: os.stat_result, script: str | None) -> str | None:
    """Return why a file is not read, None if its options may start programs as the caller.

    An account that can write it can run programs as the caller, by ``env`` and ``python``.
    """
    owner = None if script is None else _stat(script)
    trusted = {ROOT, os.geteuid(), *(() if owner is None else (owner.st_uid,))}
    if status.st_uid not in trusted:
        return "it belongs to neither you nor the owner of the script. Copy it, or type its options"
    if status.st_mode & stat.S_IWOTH:
        return "everybody can write it. Mend that with chmod o-w"
    return None if stat.S_ISREG(status.st_mode) else "it is no file"


def _matching(path: str, folder: str, script: str | None, name: str | None) -> Iterator[Part]:
    """Yield the options of the file *path* that are for this *script* and this *name*, the most particular first."""
    try:
        tables = toml_of(Path(path), path)
    except OSError as error:
        raise BadRequest(f"cannot read {path}: {error.strerror}") from error
    for key, table in tables.items():
        if key not in {SUBMIT, SCRIPTS, NAMES} or not isinstance(table, dict):
            raise BadRequest(
                f"{path}: {brief(key)} is none of its tables: [{SUBMIT}], [{SCRIPTS}.PATTERN], [{NAMES}.PATTERN]"
            )
    inside = script is not None and script.startswith(f"{folder}/")
    places = () if script is None else (script[len(folder) + 1 :] if inside else script, os.path.basename(script))  # noqa: PTH119 - as above
    for kind, texts in ((NAMES, (name,) if name else ()), (SCRIPTS, places)):
        for pattern, table in reversed(tables.get(kind, {}).items()):
            if not isinstance(table, dict):
                raise BadRequest(f'{path}: [{kind}] has patterns with a table each, such as [{kind}."eval_*"]')
            if any(fnmatchcase(text, pattern) for text in texts):
                yield _part(f"{path} [{kind}.{brief(pattern)}]", table)
    if tables.get(SUBMIT):
        yield _part(path, tables[SUBMIT])


def _part(place: str, table: Mapping[str, Any]) -> Part:
    """Return the options of a *table*: a text or number each, true or false for a flag, a list, a table for ``env``."""
    words: list[str] = []
    off: list[str] = []
    for key, value in table.items():
        option = f"--{key}"
        if isinstance(value, bool):
            (words if value else off).append(option)
            continue
        if isinstance(value, Mapping):
            texts: Sequence[object] = [f"{name}={text}" for name, text in value.items()]
        else:
            texts = value if isinstance(value, list) else [value]
        if not all(isinstance(text, (str, int, float)) for text in texts):
            raise BadRequest(f"{place}: {brief(key)} must be a text, a number, true, false, or a list of these")
        words += [f"{option}={text}" for text in texts]
    return Part(place, words, off)
