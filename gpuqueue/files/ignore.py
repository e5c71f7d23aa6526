"""Reads ignore files and patterns that name results of a job, in the syntax of ``.gitignore``.

The library ``pathspec`` matches the patterns, because a directory without git may be on a machine without git, and
because git takes patterns from one more file only for untracked files. A test compares the result with that of git.

Patterns become regular expressions, because the process that reads the results may have the standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from gpuqueue.errors import BadRequest
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.lazy.imports import later, pattern
from gpuqueue.model.file_patterns import file_patterns
from gpuqueue.text.sanitize import brief

if TYPE_CHECKING:
    import pathspec
else:
    pathspec = later("pathspec")

#: The end of ``dir/**`` and ``dir/**/``. pathspec has it match the directory itself as well, git only what is below.
_ALL_BELOW = pattern(r"(?<=/)\*\*(/?)(?=[ \t]*$)")
#: What to replace in the regular expressions of pathspec. They also match everything below a directory that a pattern
#: matches, which is decided here one directory at a time; and their ``[!a]`` matches a slash, which it does not in git.
_EXACT = (("(?:(?P<ps_d>/)|$)", r"/?\Z"), ("(?P<ps_d>/)", r"/\Z"), ("[^", "[^/"))


@dataclass(frozen=True, slots=True)
class Match:
    """The last pattern that matches a path, and whether it leaves the path out (``!`` takes it back in)."""

    pattern: str
    ignored: bool
    rules: IgnoreRules


class IgnoreRules:
    """The patterns of all ignore files with one name, or of a list without a file."""

    def __init__(self, patterns: Iterable[str] = ()) -> None:
        #: By directory: for each pattern its regular expression, and the match; the last pattern first.
        self._rules: dict[str, list[tuple[re.Pattern[str], Match]]] = {}
        self.add("", patterns)

    def add(self, folder: str, patterns: Iterable[str]) -> None:
        """Add the patterns of the ignore file in *folder*, which is "" for the root. As in git, bad ones are no-ops."""
        rules = [rule for each in patterns if (rule := self._rule(each)) is not None]
        if rules:
            self._rules[folder] = rules[::-1]

    def match(self, path: str, *, folder: bool) -> Match | None:
        """Return the pattern that decides about *path*, apart from those that decide about the directories above it."""
        if not self._rules:
            return None
        at = path
        while at:
            at = at.rpartition("/")[0]
            below = path[len(at) + 1 :] if at else path
            for expression, match in self._rules.get(at, ()):
                if expression.match(f"{below}/" if folder else below):
                    return match
        return None

    def _rule(self, line: str) -> tuple[re.Pattern[str], Match] | None:
        found = rule_of(line)
        return None if found is None else (re.compile(found[0], re.DOTALL), Match(line, found[1], self))


def rule_of(line: str) -> tuple[str, bool] | None:
    """Return the regular expression of one *line* of an ignore file, and whether it leaves out what it matches.

    The expression is for a path below the file's directory, with a slash at the end for a directory, and needs the flag
    ``re.DOTALL``. Return None for a comment or a line without effect.
    """
    if line.startswith("#") or not line.removeprefix("!").rstrip().strip("/"):
        return None
    try:
        (found,) = pathspec.GitIgnoreSpec.from_lines([_ALL_BELOW.sub(r"**/*\1", line)]).patterns
    except ValueError:
        return None
    expression = found.regex
    if expression is None or found.include is None:
        return None
    text = expression.pattern
    for before, after in _EXACT:
        text = text.replace(before, after)
    return text, found.include


class Ignored:
    """Decides by several rules, of which the first that knows a path decides, and by the directories above the path."""

    def __init__(self, rules: Sequence[IgnoreRules]) -> None:
        self._rules = rules
        self._folders: dict[str, Match | None] = {"": None}

    def by(self, path: str, *, folder: bool) -> Match | None:
        """Return the pattern that leaves out *path* or a directory above it, or None if *path* is taken.

        As in git, nothing below a directory that is left out can be taken back in.
        """
        above = path.rpartition("/")[0]
        if above not in self._folders:
            self._folders[above] = self.by(above, folder=True)
        if self._folders[above] is not None:
            return self._folders[above]
        found = next(filter(None, (each.match(path, folder=folder) for each in self._rules)), None)
        return found if found is not None and found.ignored else None


def rules_of(patterns: Sequence[str]) -> tuple[tuple[str, bool], ...]:
    """Return for each pattern its regular expression, and whether it takes what it matches (``!`` does not).

    As in an ignore file, the last pattern that matches a path decides, and all that is below a matched directory
    belongs to it. :func:`rule_of` says what an expression is for.

    Raises:
        BadRequest: There are too many patterns, or one is too long or matches nothing.

    """
    return tuple(_rule_of(each) for each in file_patterns("the list of patterns", patterns))


def _rule_of(text: str) -> tuple[str, bool]:
    found = rule_of(text)
    if found is None:
        raise BadRequest(f"the pattern {brief(text)} matches nothing: write it as in a .gitignore, such as out/*.pt")
    return found
