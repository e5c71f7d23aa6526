"""The hint for a history query without results: which filter alone matches no job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gpuqueue.text.sanitize import brief

if TYPE_CHECKING:
    from gpuqueue.client import Client

_GPUS = "gpuqueue gpus lists all devices"
_FIGURES = "gpuqueue history --sort {} shows the nearest ones"
#: Filter -> message if it alone matches no job, and what to try. The filters with the most common errors come first.
_FILTERS: Mapping[str, tuple[str, str]] = {
    "device": ("none ran on a device {}", _GPUS),
    "host": ("none ran on a host {}", _GPUS),
    "model": ("none ran on a device with {} in its name", _GPUS),
    "user": ("none is of a user {}", "gpuqueue stats lists the users with recent runs"),
    "name": ("none is called {}", "A pattern finds more: --name 'train*'"),
    "tags": ("none has the tag {}", "gpuqueue history --columns id,name,tags shows which there are"),
    "array": ("none is a member of an array {}", "gpuqueue history --columns id,name,array shows which there are"),
    "states": ("none is {}", "Leave out --state to see their states"),
    "endings": ("none has the ending {}", "Leave out --ending to see how they ended"),
    "exit_code": ("none ended with exit code {}", "gpuqueue history --columns id,ending,exit shows how they ended"),
    "text": ("none has {} in its command or its note", "Search for a shorter part"),
    "min_peak": ("none took {} or more, as far as it is known", _FIGURES.format("peak")),
    "min_duration": ("none took {} or longer, as far as it is known", _FIGURES.format("duration")),
    "max_duration": ("none took {} or less, as far as it is known", _FIGURES.format("duration --reverse")),
    "since": ("none was submitted since {}", "gpuqueue history --limit 1 shows the last one"),
    "until": ("none was submitted before {}", "gpuqueue history --reverse --limit 1 shows the first one"),
    "before_id": ("none is older than job {}", "gpuqueue history --reverse --limit 1 shows the first one"),
}
#: Values of an option that was not given.
_NOTHING: tuple[Any, ...] = (None, (), [])

#: Characters that shell quoting changes.
_QUOTED = frozenset(" \t\n'\"\\")


def why_nothing(client: Client, asked: Mapping[str, Any]) -> str:
    """Return which filter matches no job, or what to try.

    *asked* are the filters. The result begins with a colon or a
    full stop, since it follows "no job in the history matches".
    """
    given = [name for name in _FILTERS if asked.get(name) not in _NOTHING]
    for name in given:
        words, then = _FILTERS[name]
        # A job must have all tags, so each one is checked alone.
        for each in [[tag] for tag in asked[name]] if name == "tags" else [asked[name]]:
            alone: dict[str, Any] = {name: each}
            if not client.history.search(**alone, limit=1):
                value = each if name == "tags" else asked[name]
                return f": {words.format(_quoted(value))}. {_next(name, value) or then}"
    if asked["after_id"] is not None:
        return f": none comes after job {asked['after_id']} in this order"
    if not given:
        return ". gpuqueue queue lists those that wait or run"
    return ": each filter finds some, all of them together none. Leave one out" if len(given) > 1 else ""


def _quoted(value: Any) -> str:
    """Return a typed value for a message, made safe and short."""
    if isinstance(value, (list, tuple)):
        return " or ".join(map(_quoted, value))
    return str(value) if isinstance(value, int) else brief(value)


def _next(name: str, value: Any) -> str | None:
    """Return a hint that depends on the *value* of the filter, or None."""
    if name == "name" and "[" in value.replace("[[]", ""):
        return (
            f"There [ begins a set of letters; for the sign itself write [[]: --name {brief(value.replace('[', '[[]'))}"
        )
    if name == "name" and ("*" in value or "?" in value):
        return "A pattern is for the whole name, by case: --name '*part*' finds it anywhere"
    if name == "text" and not _QUOTED.isdisjoint(value):
        return "The command is stored as gpuqueue show prints it, quoted for a shell: search for one word of it"
    return None
