"""Makes a script that runs very often cheap to begin: what it never uses is left out. Pure.

Making a function costs the store a fraction of a microsecond each time that a script runs, called or not, and the parts
that stand before an act have functions for all acts: of the claim's, which runs most often, a third. One that names a
variable of the same chunk is found that variable in a list of all that are named so, from the end on; a variable of a
chunk around it costs nothing more. So each section becomes a chunk within the one before it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

_COMMENT = re.compile(r"--[^\n]*")
_WORD = re.compile(r"\w+")
_BEGIN = re.compile(r"^(?:local )?function (\w+)\(", re.MULTILINE)
_END = re.compile(r"^end\b[^\n]*\n", re.MULTILINE)
#: Where a part says which of its functions others may use; to be named there is not to be called.
_DECLARED = re.compile(r"^local [\w, \n]+?\n(?=do\n|local function load_\w+\(\)\n)", re.MULTILINE)


#: The kinds of arguments that misfit() knows, and one of them.
_KINDS = re.compile(r"(?<=\nlocal KINDS = \{\n).*?(?=\n\}\n)", re.DOTALL)
_KIND = re.compile(r"(?:\['(\w+\?)'\]|\b(\w+)) = (?:'[^']*'|[A-Z]+)")
#: Where a script says of which kinds its arguments are.
_JUDGED = re.compile(r"(?:misfit|expect) ?\(?\{([^}]*)\}")


class _Function(NamedTuple):
    name: str
    begin: int
    end: int


def nested(sections: Sequence[str]) -> str:
    """Return the script of these *sections*, each a chunk within the one before it."""
    return "return (function()\n".join(sections) + "\nend)()" * (len(sections) - 1)


def lean(text: str) -> str:
    """Return the script *text* without the functions at its margin that nothing calls, and unused kinds of words."""
    judged = set(re.findall(r"'([^']*)'", " ".join(_JUDGED.findall(text))))
    text = _KINDS.sub(lambda kinds: _kept(kinds[0], judged), text)
    while idle := _idle(text):
        for function in reversed(idle):
            text = text[: function.begin] + text[function.end :]
    return text


def _kept(kinds: str, judged: set[str]) -> str:
    """Return those of the *kinds* that something is *judged* by."""
    return ", ".join(kind[0] for kind in _KIND.finditer(_COMMENT.sub("", kinds)) if (kind[1] or kind[2]) in judged)


def _idle(text: str) -> list[_Function]:
    uses = _uses(_DECLARED.sub("", text))
    return [
        function
        for function in _functions(text)
        if uses.get(function.name, 0) == _uses(text[function.begin : function.end]).get(function.name, 0)
    ]


def _functions(text: str) -> list[_Function]:
    """Return the functions that begin at the margin; each ends there, or on its own line."""
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
