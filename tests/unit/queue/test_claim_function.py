"""Tests that acts which stay loaded in the store keep no state between calls. The tests inspect the Lua text."""

from __future__ import annotations

import re

import pytest

from gpuqueue.queue.scripts import LASTING, PRELUDE, SHARED, lasting, source

_NAMES = r"[A-Za-z_]\w*(?:,\s*[A-Za-z_]\w*)*"
#: Top-level variables of a text: ``local a, b`` and ``local a = …``, without functions.
_DECLARED = re.compile(rf"^local (?!function)({_NAMES})\s*?(?: =[^=]|$)", re.MULTILINE)
#: An assignment in a function: an indented ``a, b = …``, also after ``then``; below, an element: ``a[…] = …``.
_SET = re.compile(rf"(?:^ +|then |else |do )({_NAMES}) = ", re.MULTILINE)
_PUT = re.compile(r"\b([A-Za-z_]\w*)(?:\.\w+|\[[^\n]*?\]) = |\btable\.(?:insert|remove|sort)\((\w+)")
_LOCAL = re.compile(
    r"local ([\w, ]+?)(?: =|$| *--)|function [\w.]*\(([\w, .]*)\)|for ([\w, ]+?) (?:=|in) ", re.MULTILINE
)


def words(names: str) -> set[str]:
    """Return the names in a comma-separated list."""
    return {name.strip() for name in names.split(",")}


def shared_between_calls(text: str) -> set[str]:
    """Return the top-level variables of *text* that a function changes."""
    text = re.sub(r"--[^\n]*", "", text)
    at_margin = {name for found in _DECLARED.findall(text) for name in words(found)}
    its_own = {name for line in text.splitlines() if line.startswith(" ") for name in _locals(line)}
    changed = {name for found in _SET.findall(text) for name in words(found)}
    changed |= {name for found in _PUT.findall(text) for name in found}
    return (at_margin - its_own) & changed


def _locals(line: str) -> set[str]:
    return {name for found in _LOCAL.findall(line) for names in found for name in words(names)}


def is_its_own(act: str, part: str) -> bool:
    """Return whether a part belongs to one act alone, like `claim_room` to `claim`."""
    return part.startswith(f"{act}_")


def parts(act: str) -> list[str]:
    """Return the names of the texts that come before an act and are not its own."""
    return [*PRELUDE, *(part for part in SHARED[act] if not is_its_own(act, part))]


def text_of(act: str) -> str:
    """Return the text of an act with its own parts before it."""
    return "".join(map(source, (*(part for part in SHARED[act] if is_its_own(act, part)), act)))


@pytest.mark.parametrize("act", sorted(LASTING))
def test_what_stands_before_an_act_that_lasts_keeps_nothing(act: str) -> None:
    """The parts before a lasting act keep state only in the `cache` table, which each call replaces."""
    for part in parts(act):
        assert shared_between_calls(source(part)) <= {"cache"}, part


def test_a_claim_keeps_only_what_it_parsed() -> None:
    # Each call sets the variables above them again.
    above, _, below = text_of("claim").partition("\nlocal parsed, many_parsed, MOST_PARSED = {}, 0, 1000\n")

    assert shared_between_calls(below) == set()
    assert {"parsed", "many_parsed"} == shared_between_calls(text_of("claim")) - shared_between_calls(
        f"{above}\n{below}"
    )


def test_the_search_finds_every_form_in_which_a_part_could_keep_state() -> None:
    text = (
        "local once, table_of, none\nlocal pools = {} -- known ones\nlocal MOST = 3\n"
        "local function a(b)\n  if not b then once = true end\n  pools[b] = {}\n  table_of.b = 1\n"
        "  local none = 1\n  none = 2\nend\n"
    )

    assert {"once", "pools", "table_of"} == shared_between_calls(text)
    more = (
        "local MOST_MS, late\nlocal first,\n  second -- of two lines\nlocal SEEN, row = {}, {}\n"
        "local function a(b)\n  late = b\n  second = b\n  SEEN[b] = 1\n  table.insert(row, b)\nend\n"
    )
    assert {"late", "second", "SEEN", "row"} == shared_between_calls(more)


@pytest.mark.parametrize("act", sorted(LASTING))
def test_a_lasting_act_resets_cache_before_it_does_anything_else(act: str) -> None:
    assert "\nreturn function()\n  cache = {}\n" in source(act)


@pytest.mark.parametrize("act", sorted(LASTING))
def test_what_a_library_is_made_of_is_one_chunk(act: str) -> None:
    """A lasting act is one chunk that returns the act as a function without parameters."""
    # Keys and arguments are variables outside of it.
    text = lasting(act)

    assert text.endswith("end)()")
    assert text.count("\nreturn function()\n") == 1
