"""Errors in the words of the API: its fields by their names in JSON, in place of options of the command line. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from gpuqueue.model.job_request import JobEdit

#: Options whose field has another name, or is a part of another one.
_OPTIONS: Mapping[str, str] = {
    "after": "waits.after",
    "at-once": "array.at_once",
    "begin": "waits.begin_at",
    "dedupe": "waits.dedupe",
    "hold": "waits.hold",
    "max-failures": "array.max_failures",
    "mem-retries": "retries.mem_times",
    "python": "interpreter",
    "retry-on": "retries.on",
    "sweep": "array.axes",
    "time": "time_limit",
}
#: Fields of a job by their names in a form of the page.
_OF_FORM: Mapping[str, str] = {"argv": "args", "interpreter": "python"}
#: An option in a sentence. One in quotes is what the caller has sent, and one in a command is for a terminal.
_OPTION = re.compile(r"(?P<kept>'[^']*'|\bgpuqueue [a-z][^;:,.]*)|(?<![\w-])--(?P<option>[a-z][a-z-]+)")


def _names(kind: Any) -> set[str]:
    return {each.name for each in fields(kind)} if is_dataclass(kind) else set()


def named_in(kind: Any, field: str) -> str:
    """Return the name that a body of the type *kind* has for a *field* of a job. One that is no dataclass has none."""
    known = _names(kind)
    head, dot, rest = field.partition(".")
    short = re.sub(r"_(bytes|s)$", "", head)
    for each in (head, short, _OF_FORM.get(head), f"{head}_bytes", f"{head}_s"):
        if each in known:
            return each + dot + rest
    return f"changes.{named_in(JobEdit, field)}" if "changes" in known else field


def in_fields(kind: Any) -> Callable[[str], str]:
    """Return a function that returns a sentence with the fields of *kind* in place of options."""
    known = _names(kind)

    def field_of(option: str) -> str:
        own = option.removeprefix("no-").replace("-", "_")
        return own if own in known else named_in(kind, _OPTIONS.get(option, own))

    return lambda text: _OPTION.sub(lambda found: found["kept"] or field_of(found["option"]), text)
