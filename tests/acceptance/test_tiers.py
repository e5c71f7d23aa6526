"""Tests which tests the quick run must contain."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parents[1]
#: The promises: acknowledged jobs are kept; a job starts only where it fits; devices are not over-committed; a job
#: outlives its worker; nothing outlives its job; every run is recorded; nobody starves; queueing is cheap; and P12,
#: trouble has a name.
PROMISES = {*(f"P{number}" for number in range(1, 9)), "P12"}


def promises_in_quick() -> Iterator[str]:
    """Yield the promises that the tests of the quick run are marked with."""
    for path in TESTS.rglob("test_*.py"):
        text = path.read_text()
        for node in ast.walk(ast.parse(text)) if "pytest.mark.promise" in text else ():
            if isinstance(node, ast.FunctionDef):
                marks = [ast.unparse(each) for each in node.decorator_list]
                if not any(mark.startswith("pytest.mark.full") for mark in marks):
                    yield from (mark.split("'")[1] for mark in marks if mark.startswith("pytest.mark.promise"))


def test_the_quick_run_tests_every_promise() -> None:
    """A contributor who runs only ``dev.py test`` sees when a promise breaks."""
    assert set(promises_in_quick()) == PROMISES
