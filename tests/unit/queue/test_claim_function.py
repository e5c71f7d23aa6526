"""Acts that stay in the store begin each call with nothing of the call before: read off their text."""

from __future__ import annotations

import re

import pytest

from gpuqueue.queue.scripts import LASTING, PRELUDE, SHARED, lasting, source

_NAMES = r"[A-Za-z_]\w*(?:,\s*[A-Za-z_]\w*)*"
#: What a text declares at its margin, other than functions: ``local a, b``, and ``local a = …``.
_DECLARED = re.compile(rf"^local (?!function)({_NAMES})\s*?(?: =[^=]|$)", re.MULTILINE)
#: What a function sets: an indented ``a, b = …``, also within ``if … then a = …``; or something in it, ``a[…] = …``.
_SET = re.compile(rf"(?:^ +|then |else |do )({_NAMES}) = ", re.MULTILINE)
_PUT = re.compile(r"\b([A-Za-z_]\w*)(?:\.\w+|\[[^\n]*?\]) = |\btable\.(?:insert|remove|sort)\((\w+)")
_LOCAL = re.compile(
    r"local ([\w, ]+?)(?: =|$| *--)|function [\w.]*\(([\w, .]*)\)|for ([\w, ]+?) (?:=|in) ", re.MULTILINE
)


def words(names: str) -> set[str]:
    """Return the names in a list of them."""
    return {name.strip() for name in names.split(",")}


def kept_between_calls(text: str) -> set[str]:
    """Return the variables at the margin of *text* that a function changes."""
    text = re.sub(r"--[^\n]*", "", text)
    at_margin = {name for found in _DECLARED.findall(text) for name in words(found)}
    its_own = {name for line in text.splitlines() if line.startswith(" ") for name in _locals(line)}
    changed = {name for found in _SET.findall(text) for name in words(found)}
    changed |= {name for found in _PUT.findall(text) for name in found}
    return (at_margin - its_own) & changed


def _locals(line: str) -> set[str]:
    return {name for found in _LOCAL.findall(line) for names in found for name in words(names)}


def parts(act: str) -> list[str]:
    """Return the texts that stand before an act."""
    return [*PRELUDE, *(str(part) for part in SHARED[act])]


@pytest.mark.parametrize("act", sorted(LASTING))
def test_what_stands_before_an_act_that_lasts_keeps_nothing(act: str) -> None:
    """All that one call learns is in one table, and the next begins with another."""
    for part in parts(act):
        assert kept_between_calls(source(part)) <= {"learned"}, part


def test_a_claim_keeps_only_what_it_parsed() -> None:
    """Beside the variables that stand above that, which each call sets anew."""
    above, _, below = source("claim").partition("\nlocal parsed, many_parsed, MOST_PARSED = {}, 0, 1000\n")

    assert kept_between_calls(below) == set()
    assert {"parsed", "many_parsed"} == kept_between_calls(source("claim")) - kept_between_calls(f"{above}\n{below}")


def test_a_variable_that_keeps_something_would_be_found() -> None:
    """The ways in which parts kept what they had looked up, or could."""
    text = (
        "local once, table_of, none\nlocal pools = {} -- known ones\nlocal MOST = 3\n"
        "local function a(b)\n  if not b then once = true end\n  pools[b] = {}\n  table_of.b = 1\n"
        "  local none = 1\n  none = 2\nend\n"
    )

    assert {"once", "pools", "table_of"} == kept_between_calls(text)
    more = (
        "local MOST_MS, late\nlocal first,\n  second -- of two lines\nlocal SEEN, row = {}, {}\n"
        "local function a(b)\n  late = b\n  second = b\n  SEEN[b] = 1\n  table.insert(row, b)\nend\n"
    )
    assert {"late", "second", "SEEN", "row"} == kept_between_calls(more)


@pytest.mark.parametrize("act", sorted(LASTING))
def test_an_act_that_lasts_begins_with_nothing_learned(act: str) -> None:
    """Before it asks for anything."""
    assert "\nreturn function()\n  learned = {}\n" in source(act)


@pytest.mark.parametrize("act", sorted(LASTING))
def test_what_a_library_is_made_of_is_one_chunk(act: str) -> None:
    """It returns the act as a function, which is handed nothing: keys and arguments are variables around it."""
    text = lasting(act)

    assert text.endswith("end)()")
    assert text.count("\nreturn function()\n") == 1
