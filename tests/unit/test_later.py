from __future__ import annotations

import subprocess
import sys


def test_a_module_waits_until_something_of_it_is_used() -> None:
    """And whoever lives for weeks has all of them before the files can change."""
    code = """
import sys
from gpuqueue.later import import_all_now, later
assert "stringprep" not in sys.modules and "colorsys" not in sys.modules
first, second = later("stringprep"), later("colorsys")
assert "stringprep" not in sys.modules
assert first.in_table_a1 is __import__("stringprep").in_table_a1
assert "colorsys" not in sys.modules
import_all_now()
assert "colorsys" in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)
