"""Modules that are imported, and patterns that are compiled, when they are first used: a person waits for each.

Write it beside the import that it stands for, which type checkers and the floors go by::

    if TYPE_CHECKING:
        from gpuqueue.queue import replies
    else:
        replies = later("gpuqueue.queue.replies")

A pattern takes longer to compile than a module to load, and most are for words that are seldom said.
"""

from __future__ import annotations

import re
from importlib import import_module
from typing import Any, cast

_WAITING: list[_Later] = []


class _Later:
    """Stands for a module, and passes on whatever is asked of it."""

    __slots__ = ("_module", "_name")

    def __init__(self, name: str) -> None:
        self._name = name
        self._module: Any = None
        _WAITING.append(self)

    def load(self) -> Any:
        """Import the module, if that was not done yet, and return it."""
        if self._module is None:
            self._module = import_module(self._name)
        return self._module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module or self.load(), name)


def later(name: str) -> Any:
    """Return what stands for the module *name*."""
    return _Later(name)


def import_all_now() -> None:
    """Import every module that still waits, for a process that lives for weeks.

    By the time it needs a rare one the files may be a newer version's, or it may have no descriptor left.
    """
    for each in _WAITING:
        each.load()


class _Pattern:
    """Stands for a pattern until it is asked for something; from then on its methods are found here."""

    def __init__(self, text: str, flags: int) -> None:
        self._text, self._flags = text, flags

    def __getattr__(self, name: str) -> Any:
        found = getattr(re.compile(self._text, self._flags), name)
        setattr(self, name, found)
        return found


def pattern(text: str, flags: int = 0) -> re.Pattern[str]:
    """Return what stands for ``re.compile(text, flags)``."""
    return cast("re.Pattern[str]", _Pattern(text, flags))
