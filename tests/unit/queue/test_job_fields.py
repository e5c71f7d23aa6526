"""Tests that Lua and Python use only the fields of a job that the one table lists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gpuqueue.queue import job_fields
from gpuqueue.queue.job_fields import FIELDS
from gpuqueue.queue.scripts import source

QUEUE = Path(job_fields.__file__).parent
PARTS = sorted((QUEUE / "lua").rglob("*.lua"))
#: A field of a job's hash that is written as text: the first argument after the key.
LITERAL = re.compile(r"job_key\((?:[^()]|\([^()]*\))*\), '\w+'")


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.stem)
def test_lua_names_each_field_of_a_job_by_the_table(part: Path) -> None:
    text = part.read_text()

    assert [] == LITERAL.findall(text)
    assert not re.search(r"\bF[.{]", source(part.stem)), "a name that the table lacks is a KeyError"


def test_each_field_is_used() -> None:
    """The table has no field that neither Lua nor Python uses, and no two fields share a name in the store."""
    lua = "".join(part.read_text() for part in PARTS)
    tables = " ".join(re.findall(r"\bF\{([^}]*)\}", lua))
    used = {*re.findall(r"\bF\.(\w+)", lua), *re.findall(r"\w+", tables)}

    assert set(FIELDS) == used
    assert len(FIELDS) == len(set(FIELDS.values()))
