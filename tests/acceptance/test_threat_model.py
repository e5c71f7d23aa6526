"""The threat model names tests that exist, and its table of rights is that of the code."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from gpuqueue.model.access import RULES, Action

ROOT = Path(__file__).parents[2]


def rows(page: str) -> list[list[str]]:
    """Return the cells of all rows of all tables of a page."""
    lines = (ROOT / "docs" / page).read_text().splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]


def checks(test: ast.FunctionDef) -> bool:
    """Return whether a test asserts something: with ``assert``, or with ``raises`` and ``fail`` of pytest."""
    nodes = [*ast.walk(test)]
    called = {each.attr for each in nodes if isinstance(each, ast.Attribute)}
    return any(isinstance(each, ast.Assert) for each in nodes) or bool(called & {"raises", "fail"})


def test_every_threat_has_a_test_that_checks_something_or_is_open() -> None:
    """A threat names its tests, each of which is in tests/ and asserts something, or says that it is open."""
    threats = [row for row in rows("internals/threat-model.md") if len(row) == 3 and row[0] != "threat"]
    wanted = {name for _, _, tests in threats for name in re.findall(r"`(test_\w+)`", tests)}
    there = set()
    for path in ROOT.glob("tests/**/test_*.py"):
        text = path.read_text()
        if wanted & {*re.findall(r"def (test_\w+)", text)}:
            found = [each for each in ast.parse(text).body if isinstance(each, ast.FunctionDef)]
            there |= {each.name for each in found if checks(each)}

    assert len(threats) > 30
    for threat, _, tests in threats:
        named = re.findall(r"`(test_\w+)`", tests)
        assert named or tests == "open", threat
        assert set() == set(named) - there, threat


def test_the_table_of_rights_in_the_docs_is_that_of_the_code() -> None:
    """Each right that a site may change is in the docs with its default and the choices."""
    known = {str(action): rule for action, rule in RULES.items() if rule.choices}
    shown = {}
    for right, default, *choices in rows("explanation/identity.md"):
        names = [name for name in re.findall(r"`([\w-]+)`", right) if name in known]
        if len(names) == 1 and choices:
            shown[names[0]] = (default, re.findall(r"`(\w+)`", choices[0]))

    assert {name: [*map(str, rule.choices)] for name, rule in known.items()} == {
        name: choices for name, (_, choices) in shown.items()
    }
    for name, (default, _) in shown.items():
        audience = str(RULES[Action(name)].audience)
        assert default.startswith({"owner": "owner and admins"}.get(audience, audience)), name
