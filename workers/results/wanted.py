"""Decides by patterns which paths are packed. Standard library only.

The patterns have the syntax of ``.gitignore`` and arrive as regular expressions
(:func:`gpuqueue.files.ignore.rules_of`). The last one that matches a path decides, and what is below a directory
that a pattern takes is taken, too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import NamedTuple

#: Names of files and directories that are left out unless a pattern names them: what tools make.
LEFT_OUT = (".git", "__pycache__", ".venv", "venv", "node_modules")
#: Longest request in its text form, in bytes. The longest patterns become some hundred kilobytes.
MOST_REQUEST_BYTES = 4 * 2**20


class ArchiveRequest(NamedTuple):
    """Which paths to pack: the expressions of the patterns, None for the changed files, and the names to leave out."""

    rules: tuple[tuple[str, bool], ...] | None
    left_out: tuple[str, ...]

    @classmethod
    def of(cls, patterns: Sequence[str], rules: Sequence[tuple[str, bool]]) -> ArchiveRequest:
        """Return the request for *patterns*, whose expressions are *rules*."""
        named = {part for each in patterns for part in each.split("/")}
        return cls(tuple(rules) if patterns else None, tuple(each for each in LEFT_OUT if each not in named))

    def text(self) -> bytes:
        """Return the request as a text."""
        return json.dumps([self.rules, self.left_out]).encode()

    @classmethod
    def read(cls, text: bytes) -> ArchiveRequest:
        """Return the request with this text.

        Raises:
            ValueError: it is no request.

        """
        try:
            rules, left_out = json.loads(text)
            found = None if rules is None else tuple((str(each), bool(take)) for each, take in rules)
            return cls(found, tuple(map(str, left_out)))
        except (TypeError, RecursionError) as error:
            raise ValueError(str(error)) from None


class Wanted:
    """The paths that a request names. A path is relative to the copy of the code, with slashes."""

    def __init__(self, request: ArchiveRequest) -> None:
        """Compile the expressions.

        Raises:
            re.error: one is no regular expression.

        """
        self.everything = request.rules is None
        self._rules = [(re.compile(text, re.DOTALL).match, take) for text, take in reversed(request.rules or ())]
        self._left_out = frozenset(request.left_out)

    def leaves_out(self, name: str) -> bool:
        """Return whether a file or directory of this name is left out wherever it is."""
        return name in self._left_out

    def takes(self, path: str, *, folder: bool) -> bool:
        """Return whether the last pattern that matches *path* itself takes it, whatever holds for directories above."""
        if self.everything:
            return True
        text = f"{path}/" if folder else path
        return next((take for match, take in self._rules if match(text)), False)

    def has(self, path: str) -> bool:
        """Return whether the file *path* is wanted, by its own name and those of the directories above it."""
        parts = path.split("/")
        if not self._left_out.isdisjoint(parts):
            return False
        above = ("/".join(parts[:count]) for count in range(1, len(parts)))
        return any(self.takes(each, folder=True) for each in above) or self.takes(path, folder=False)
