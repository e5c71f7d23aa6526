"""Lists each command with its options and examples, each setting and each exit code, as the code has them.

Each is a row: the cells that the code decides, and a text for it where the page has none.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from dataclasses import MISSING, dataclass
from datetime import timedelta
from enum import Enum
from types import ModuleType

import click

from gpuqueue.cli.main import COMMANDS, SECTIONS, commands
from gpuqueue.console import INTERRUPTED, LEFT, READER_GONE
from gpuqueue.doctor.examination import EXIT_CODES
from gpuqueue.errors import GpuQueueError
from gpuqueue.queue import job_fields as job_fields_module
from gpuqueue.settings import settings as setting
from gpuqueue.settings import sources
from gpuqueue.settings.parsers import READERS
from gpuqueue.text.units import format_bytes
from workers.cli import worker_commands
from workers.devices.backend import DeviceTrouble

PROGRAMS: dict[str, click.Group] = {"gpuqueue": commands, "gpuqueue-worker": worker_commands}
#: Defaults that differ from one machine to the next.
PLACES = {
    "state_dir": "`~/.local/state/gpuqueue`",
    "redis_url": "`unix://STATE_DIR/store/store.sock`",
    "database_url": "`sqlite:///STATE_DIR/history.db`",
    "host": "this machine's host name",
}
#: Exit codes that no class of an error has.
OTHER_CODES = {
    0: "All went well.",
    LEFT: "You left a job that runs on.",
    INTERRUPTED: "Interrupted by Ctrl-C.",
    READER_GONE: "The reader of the output has gone.",
}


@dataclass(frozen=True, kw_only=True)
class Command:
    """One command, as a user types it."""

    name: str
    #: The first paragraph of its help.
    purpose: str
    options: tuple[click.Option, ...]
    #: The lines below ``Examples:`` in its help.
    examples: tuple[str, ...]


def every_command() -> Iterator[Command]:
    """Yield the visible commands of both programs, without groups that have no options."""
    for program, group in PROGRAMS.items():
        for name, command in leaves(program, group):
            options = [each for each in command.params if isinstance(each, click.Option) and not each.hidden]
            if options or not isinstance(command, click.Group):
                yield Command(
                    name=name,
                    purpose=" ".join(inspect.cleandoc(command.help or "").split("\n\n")[0].split()),
                    options=tuple(options),
                    examples=_examples(command.help or ""),
                )


def leaves(name: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    """Yield a command and all below it, without hidden ones, by what a user types."""
    yield name, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for each in command.list_commands(context):
            below = command.get_command(context, each)
            if below is not None and not below.hidden:
                yield from leaves(f"{name} {each}", below)


def _examples(text: str) -> tuple[str, ...]:
    _, found, after = inspect.cleandoc(text).partition("Examples:\n")
    lines = [line.strip() for line in after.split("\n\n")[0].splitlines()] if found else []
    return tuple(re.sub(r" {3,}(?=[a-z])", "  # ", line) for line in lines)


def purposes() -> list[str]:
    """Return a row for each group of commands: its heading, and the commands in it."""
    return [
        f"| {heading} | "
        + ", ".join(f"[`{name}`](#gpuqueue-{_anchor(name)})" for name in names if name in COMMANDS)
        + " |"
        for heading, names in SECTIONS.items()
    ]


def _anchor(name: str) -> str:
    """Return the end of a command's anchor; of a group that is its first command's."""
    command = commands.get_command(click.Context(commands), name)
    if isinstance(command, click.Group) and not command.invoke_without_command:
        return f"{name}-{command.list_commands(click.Context(command))[0]}"
    return name


def first_cell(option: click.Option, shown: str = "") -> str:
    """Return an option's names and the name of its value: from the code, else from the cell *shown* before."""
    names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
    if option.is_flag:
        return names
    before = re.search(r" ([^`]+)`$", shown)
    invented = option.opts[-1].lstrip("-").split("-")[-1].upper()
    value = option.metavar or (before[1].replace("\\|", "|") if before else invented)
    return f"{names[:-1]} {value}`".replace("|", "\\|")


def with_facts(option: click.Option, words: str) -> str:
    """Return *words* with the values and the default from the code, unless they name them."""
    if words.startswith("As in "):
        return words
    if isinstance(option.type, click.Choice):
        values = [str(value) for value in option.type.choices]
        if not all(f"`{value}`" in words for value in values):
            words += " One of " + ", ".join(f"`{value}`" for value in values) + "."
    default = option.default
    if option.is_flag or not isinstance(default, (str, int, float)) or default == "":
        return words
    text = f"{default:g}" if isinstance(default, float) else str(default)
    if re.search(rf"`{re.escape(text)}`[^.`]*\bdefault\b", words):
        return words
    stated = re.compile(r"(?<=Default )(`[^`]+`|[\w-]+)")
    if found := stated.search(words):
        return words if found[0].strip("`") == text else stated.sub(f"`{text}`", words)
    return f"{words} Default `{text}`."


def setting_row(name: str, shown: str = "") -> dict[str, str]:
    """Return each column of a setting; *shown* is the page's word for an empty default."""
    value = setting.Settings.__dataclass_fields__[name].default
    default = PLACES.get(name) or (shown or "empty" if value is MISSING else _in_words(name, value))
    unit = {"bytes": "size", "s": "duration"}.get(name.rpartition("_")[2], "")
    return {
        "environment": f"`{sources.variable_of(name)}`",
        "file key": f"`{sources.key_of(name)}`",
        "default": default,
        "unit": unit,
        "meaning": _comments()[name],
    }


def key_of(name: str) -> str:
    """Return the name of a setting in the settings file."""
    return sources.key_of(name)


def settings() -> list[str]:
    """Return the names of all settings."""
    return list(READERS)


def _in_words(name: str, value: object) -> str:
    if value is None or value == "":
        return "none" if value is None else "empty"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, Enum):
        return f"`{value}`"
    if name.endswith("_bytes") and isinstance(value, int):
        return f"`{format_bytes(value)}`"
    if isinstance(value, float):
        return f"`{_duration(value)}`" if name.endswith("_s") else f"`{100 * value:g} %`"
    return f"`{value}`"


def _duration(value_s: float) -> str:
    """Return seconds in the largest unit that is whole."""
    for unit, seconds in (("d", timedelta(days=1)), ("h", timedelta(hours=1)), ("m", timedelta(minutes=1))):
        if value_s % seconds.total_seconds() == 0:
            return f"{value_s / seconds.total_seconds():g}{unit}"
    return f"{value_s:g}s"


def job_fields() -> list[str]:
    """Return a row for each field of a job's hash."""
    comments = _comments(job_fields_module)
    return [
        f"| `{name}` | `{stored}` | {comments[name.upper()]} |" for name, stored in job_fields_module.FIELDS.items()
    ]


def _comments(of: type | ModuleType = setting.Settings) -> dict[str, str]:
    """Return what stands above each variable of a class or module behind ``#:``."""
    lines = inspect.getsource(of).splitlines()
    found = {}
    for each in ast.walk(ast.parse("\n".join(lines))):
        target = each.targets[0] if isinstance(each, ast.Assign) else getattr(each, "target", None)
        if isinstance(each, (ast.AnnAssign, ast.Assign)) and isinstance(target, ast.Name):
            above: list[str] = []
            at = each.lineno - 2
            while lines[at].strip().startswith("#:"):
                above.insert(0, lines[at].strip()[2:].strip())
                at -= 1
            found[target.id] = " ".join(above).replace("``", "`").replace("|", "\\|")
    return found


def exit_codes() -> dict[int, str]:
    """Return each exit code of the commands with the first line of its error's docstring."""
    found = dict(OTHER_CODES)

    def walk(error: type[GpuQueueError]) -> None:
        found.setdefault(error.exit_code, (error.__doc__ or "").splitlines()[0])
        for below in error.__subclasses__():
            walk(below)

    for root in (
        GpuQueueError,
        DeviceTrouble,
    ):  # the latter is in the workers' package, which no module of gpuqueue imports
        walk(root)
    for grade, code in EXIT_CODES.items():
        found.setdefault(code, f"From `doctor`: {grade}.")
    return dict(sorted(found.items()))
