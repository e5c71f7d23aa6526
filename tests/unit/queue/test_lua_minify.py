from __future__ import annotations

import re

from gpuqueue.queue.lua_minify import lean, nested
from gpuqueue.queue.scripts import LASTING, whole


def test_what_nothing_calls_is_left_out() -> None:
    """An unused function is removed, with the functions that only it calls and with recursive ones.

    A name in a comment is no call.
    """
    text = (
        "local function used(a) return a end\n"
        "local function idle(a) -- used(1)\n  return called_by_idle(idle(a))\nend\n"
        "local function called_by_idle(a)\n  return a\nend\n"
        "-- called_by_idle\n"
        "local shown, hidden\ndo\n"
        "function shown() return used(2) end -- for others\n"
        "function hidden()\n  return 1\nend\n"
        "end\n"
        "return shown()\n"
    )

    assert (
        "local function used(a) return a end\n-- called_by_idle\nlocal shown, hidden\ndo\n"
        "function shown() return used(2) end -- for others\nend\nreturn shown()\n"
    ) == lean(text)


def test_a_lean_script_has_all_that_it_calls() -> None:
    """Every called function is defined in the script, belongs to Lua or the store, or is a parameter."""
    for act in LASTING:
        text = re.sub(r"--[^\n]*", "", whole(act))
        made = set(re.findall(r"function (\w+)\(", text)) | set(re.findall(r"(\w+) = function", text))
        called = set(re.findall(r"(?<![.:\w])([a-z_]\w+)\(", text))
        lua = {
            "tonumber",
            "tostring",
            "ipairs",
            "pairs",
            "pcall",
            "unpack",
            "next",
            "type",
            "assert",
            "error",
            "select",
        }
        assert called - made - lua <= {"call", "factor", "after_close", "function", "and", "or", "not", "if", "return"}


def test_what_no_argument_is_judged_by_is_left_out() -> None:
    """An unused entry of the table of kinds is removed, because each run builds that table.

    The same word elsewhere does not keep an entry.
    """
    text = (
        "local NUMBER = '^%d+$'\n"
        "local KINDS = {\n  ms = NUMBER, ['level?'] = '^[0-3]?$', user = '^%w+$', -- not 'ms'\n  pool = '^%w*$',\n}\n"
        "local wrong = misfit {'ms', 'level?'}\n"
        "if wrong then expect({'pool'}) end\n"
        "call('GET', 'user')\n"
    )

    kept = lean(text)

    assert "local KINDS = {\nms = NUMBER, ['level?'] = '^[0-3]?$', pool = '^%w*$'\n}\n" in kept


def test_a_section_is_a_chunk_within_the_one_before_it() -> None:
    """Each section is nested in the section before it. The script returns the last section's result."""
    assert "local a = 1\nreturn (function()\nlocal b = a\nreturn (function()\nreturn b\nend)()\nend)()" == nested(
        ("local a = 1\n", "local b = a\n", "return b")
    )
