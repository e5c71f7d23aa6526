"""Imports modules and compiles regular expressions on first use, to keep the start of a command short.

Write the lazy import next to the real one, which type checkers and import-linter read::

    if TYPE_CHECKING:
        from gpuqueue.queue import replies
    else:
        replies = later("gpuqueue.queue.replies")

A regular expression takes longer to compile than a module to load, and most commands use few of them.
"""

from __future__ import annotations

import re
from importlib import import_module
from typing import Any, AnyStr, cast

_WAITING: list[_Later] = []


class _Later:
    """A proxy for a module, which it imports on the first attribute access."""

    __slots__ = ("_module", "_name")

    def __init__(self, name: str) -> None:
        self._name = name
        self._module: Any = None
        _WAITING.append(self)

    def load(self) -> Any:
        """Import the module on the first call, and return it."""
        if self._module is None:
            self._module = import_module(self._name)
        return self._module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module or self.load(), name)


def later(name: str) -> Any:
    """Return a proxy for the module *name* that imports it on first use."""
    return _Later(name)


def import_all_now() -> None:
    """Import all lazy modules now, in a process that runs for weeks.

    A later import could read the files of a newer version, or fail because the process is out of file descriptors.
    """
    for each in _WAITING:
        each.load()


class _Pattern:
    """A proxy for a regular expression, which it compiles on the first attribute access. It caches each attribute."""

    def __init__(self, text: str | bytes, flags: int) -> None:
        self._text, self._flags = text, flags

    def __getattr__(self, name: str) -> Any:
        found = getattr(re.compile(self._text, self._flags), name)
        setattr(self, name, found)
        return found


def pattern(text: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """Return a proxy for ``re.compile(text, flags)`` that compiles on first use."""
    return cast("re.Pattern[AnyStr]", _Pattern(text, flags))
