"""Tests that each message in docs/troubleshooting.md is one that the code can print, in these words."""

from __future__ import annotations

import ast
import errno
import os
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "troubleshooting.md"
#: Matches the variable parts: a value that the code inserts, or ``…`` in the page.
ANY = "*"
#: The least share of a message's words that must be in the code's text. Otherwise ``{what}: {why}`` would match
#: everything.
OWN_WORDS = 0.6
#: Messages of other programs.
NOT_OURS = {
    "CUDA out of memory",
    "No such option: …. … What belongs to the script goes after --.",
    "ValueError: invalid literal for int() …: 'GPU-…'",
    "invalid device ordinal",
}


def tokens(text: str) -> tuple[str, ...]:
    """Return the words, numbers and punctuation marks of *text*, with ANY for the variable parts."""
    return tuple(ANY if each in "…\0" else each for each in re.findall(r"[^\W\d]+|\d+|[^\w\s]|\0", text))


def strings(tree: ast.AST) -> Iterator[str]:
    """Yield each text in the code, with a NUL for each value that is inserted."""
    inside = {id(part) for each in ast.walk(tree) if isinstance(each, ast.JoinedStr) for part in each.values}
    inside |= {id(each.value) for each in ast.walk(tree) if isinstance(each, ast.Expr)}  # docstrings
    for each in ast.walk(tree):
        if isinstance(each, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "\0" for part in each.values)
        elif isinstance(each, ast.Constant) and isinstance(each.value, str) and id(each) not in inside:
            yield each.value


@cache
def output() -> tuple[tuple[str, ...], ...]:
    """Return the tokens of all texts that the code can print."""
    files = [path for room in ("gpuqueue", "workers") for path in (ROOT / room).rglob("*.py")]
    ours = {text for path in files for text in strings(ast.parse(path.read_text()))}
    programs = (ROOT / "workers" / "inside" / "slurm" / "bin").iterdir()
    ours |= {text for path in programs for text in re.findall(r"'([^'\n]+)'", path.read_text())}
    return tuple(map(tokens, ours | {os.strerror(number) for number in errno.errorcode}))


def agreement(page: tuple[str, ...], code: tuple[str, ...]) -> int:
    """Return the number of words that two texts have in common if they match, else -1."""
    least = [-1] * len(code) + [0]
    for at in range(len(code) - 1, -1, -1):
        least[at] = 0 if code[at] == ANY and least[at + 1] == 0 else -1
    for word in reversed(page):
        row = [-1] * (len(code) + 1)
        row[-1] = least[-1] if word == ANY else -1
        for at in range(len(code) - 1, -1, -1):
            ways = []
            if word == ANY:
                ways += [least[at], row[at + 1]]
            if code[at] == ANY:
                ways += [row[at + 1], least[at]]
            if word == code[at] != ANY:
                ways.append(least[at + 1] + 1 if least[at + 1] >= 0 else -1)
            row[at] = max(ways, default=-1)
        least = row
    return least[0]


def is_said(message: str) -> bool:
    """Return whether one text of the code has this message, or several have its parts."""
    return _is_text(message, OWN_WORDS) or all(_is_text(part, 1.0) for part in parts(message))


def parts(message: str) -> list[str]:
    """Return the parts of *message* between punctuation marks and example values.

    Each part may come from a different text of the code.
    """
    found = re.split(r"[:;,.()?…]|\s{2,}|\b\d[\w.]*|'[^' ]*'|(?<=the file) \w+ (?=of)|(?= cannot be read)", message)
    return [part.strip() for part in found if re.search(r"[a-z]{2}", part)]


def _is_text(message: str, least: float) -> bool:
    words = tokens(message)
    own = {word for word in words if word.isalpha() and len(word) > len("and")}
    least *= sum(word != ANY for word in words)
    return any(
        agreement((ANY, *words, ANY), text) >= least for text in output() if 2 * len(own.intersection(text)) >= len(own)
    )


def explained() -> list[str]:
    """Return the messages in the page's tables, including those of ``show``."""
    found, wanted = [], False
    for line in PAGE.read_text().splitlines():
        if line.startswith(("| message |", "| ending |")):
            wanted = True
        elif not line.startswith("|"):
            wanted = False
        elif wanted:
            first = re.split(r"(?<!\\)\|", line)[1].replace("\\|", "|").split("` at `")[0]
            found += [message for message in re.findall(r"`([^`]+)`", first) if " " in message]
    return [message for message in found if message not in NOT_OURS]


@pytest.mark.full
def test_every_explained_message_exists() -> None:
    """Every message that the page explains is in the code.

    A message that is reworded must be reworded in the page as well.
    """
    assert [] == [message for message in explained() if not is_said(message)]


@pytest.mark.full
def test_the_judge_knows_a_message_from_its_like() -> None:
    """The comparison accepts other values and shortened ends, and rejects other words."""
    assert is_said("there is no job 17: see gpuqueue queue and gpuqueue history")
    assert is_said("the store at … does not answer: …")
    assert not is_said("there is no task 17: see gpuqueue queue and gpuqueue history")
    assert not is_said("the store at … will never answer: …")
    assert len(explained()) > 80
