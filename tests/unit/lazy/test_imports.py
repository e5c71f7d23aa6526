from __future__ import annotations

import re
import subprocess
import sys

import pytest

from gpuqueue.lazy.imports import pattern


def test_a_module_waits_until_something_of_it_is_used() -> None:
    """A lazy module is loaded at its first use.

    A long-lived process loads all of them at once, before the files can change.
    """
    code = """
import sys
from gpuqueue.lazy.imports import import_all_now, later
assert "stringprep" not in sys.modules and "colorsys" not in sys.modules
first, second = later("stringprep"), later("colorsys")
assert "stringprep" not in sys.modules
assert first.in_table_a1 is __import__("stringprep").in_table_a1
assert "colorsys" not in sys.modules
import_all_now()
assert "colorsys" in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_recorder_has_read_every_script_before_it_begins() -> None:
    """The recorder reads every Lua script at its start. It runs for weeks, and an upgrade may replace the files."""
    code = """
from gpuqueue.queue import scripts
from workers import cli
def load():
    raise SystemExit(0 if scripts.source.cache_info().currsize >= len(scripts.ACTS) else "read on demand")
cli.Settings.load = load
cli.record.callback(path=None, parent=None)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_pattern_is_compiled_when_it_is_first_asked() -> None:
    """A pattern is compiled at its first use, with its flags, and gives the results of a compiled pattern."""
    waits = pattern(r"(\w+)=(\d+)", re.IGNORECASE | re.ASCII)
    assert "fullmatch" not in vars(waits)

    found = waits.fullmatch("a=12")

    assert found is not None
    assert ("a", "12") == found.groups()
    assert "fullmatch" in vars(waits)
    assert [("a", "1"), ("b", "2")] == waits.findall("a=1 b=2")
    assert re.IGNORECASE | re.ASCII == waits.flags


def test_a_pattern_that_makes_no_sense_says_so_when_it_is_asked() -> None:
    """An invalid pattern raises an error at its first use. Each pattern therefore needs a test that uses it."""
    with pytest.raises(re.error):
        pattern("(").fullmatch("a")
