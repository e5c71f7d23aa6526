"""Shortens a script that runs very often: removes what it never uses. Pure.

Creating a function costs the store a fraction of a microsecond at each run of a script, whether the function is called
or not. The shared parts define functions for all acts. The claim, which runs most often, does not use a third of them.

When Lua creates a function that uses a local variable of the same chunk, it searches the list of all captured variables
of that chunk. A variable of an enclosing chunk needs no search. So each section becomes a chunk nested in the previous.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

_COMMENT = re.compile(r"--[^\n]*")
_WORD = re.compile(r"\w+")
_BEGIN = re.compile(r"^(?:local )?function (\w+)\(", re.MULTILINE)
_END = re.compile(r"^end\b[^\n]*\n", re.MULTILINE)
#: The declaration of the functions that a part exports. A name in it is not a use of the function.
_DECLARED = re.compile(r"^local [\w, \n]+?\n(?=do\n|local function load_\w+\(\)\n)", re.MULTILINE)


#: The table of argument kinds of misfit(), and one entry of it.
_KINDS = re.compile(r"(?<=\nlocal KINDS = \{\n).*?(?=\n\}\n)", re.DOTALL)
_KIND = re.compile(r"(?:\['(\w+\?)'\]|\b(\w+)) = (?:'[^']*'|[A-Z]+)")
#: The list of the kinds of a script's arguments.
_JUDGED = re.compile(r"(?:misfit|expect) ?\(?\{([^}]*)\}")


class _Function(NamedTuple):
    name: str
    begin: int
    end: int


def nested(sections: Sequence[str]) -> str:
    """Return one script of these *sections*, each a chunk nested in the previous one."""
    return "return (function()\n".join(sections) + "\nend)()" * (len(sections) - 1)


def lean(text: str) -> str:
    """Return the script *text* without unused top-level functions and unused argument kinds."""
    judged = set(re.findall(r"'([^']*)'", " ".join(_JUDGED.findall(text))))
    text = _KINDS.sub(lambda kinds: _kept(kinds[0], judged), text)
    while idle := _idle(text):
        for function in reversed(idle):
            text = text[: function.begin] + text[function.end :]
    return text


def _kept(kinds: str, judged: set[str]) -> str:
    """Return those of the *kinds* that the script uses to check its arguments (*judged*)."""
    return ", ".join(kind[0] for kind in _KIND.finditer(_COMMENT.sub("", kinds)) if (kind[1] or kind[2]) in judged)


def _idle(text: str) -> list[_Function]:
    uses = _uses(_DECLARED.sub("", text))
    return [
        function
        for function in _functions(text)
        if uses.get(function.name, 0) == _uses(text[function.begin : function.end]).get(function.name, 0)
    ]


def _functions(text: str) -> list[_Function]:
    """Return the functions that begin in the first column; each ends there, or on its first line."""
    found = []
    for begin in _BEGIN.finditer(text):
        after = text.index("\n", begin.start()) + 1
        if not _COMMENT.sub("", text[begin.start() : after]).rstrip().endswith(" end"):
            end = _END.search(text, after)
            after = end.end() if end is not None else len(text)
        found.append(_Function(begin[1], begin.start(), after))
    return found


def _uses(text: str) -> dict[str, int]:
    counts: dict[str, int] = {}
    for word in _WORD.findall(_COMMENT.sub("", text)):
        counts[word] = counts.get(word, 0) + 1
    return counts
