"""The words of docs/glossary.md are the only words for what they name: retired ones do not come back."""

from __future__ import annotations

import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: Retired word -> the word of the glossary.
RETIRED = {
    "bell": "wake-up channel",
    "book": "history, history database",
    "gate": "admission check",
    "giveback": "release a claim",
    "outline": "dead letter",
    "seat": "attached terminal",
    "stranger": "external process",
    "vouch": "renew, heartbeat",
    "whom": "a sentence with a noun",
    "wish": "device filter",
}
#: Lines on which a retired word is the name of a channel in the store.
ALLOWED = re.compile(r"PREFIX \+ \"bell\"|``bell``")
FILES = sorted({*ROOT.glob("gpuqueue/**/*.py"), *ROOT.glob("workers/**/*.py")})


def words(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the words of a Python file: of its identifiers, comments and texts, each with its line."""
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            if not ALLOWED.search(token.line):
                for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", token.string):
                    yield token.start[0], word.lower()


@pytest.mark.parametrize("folder", sorted({path.parent.relative_to(ROOT).as_posix() for path in FILES}))
def test_no_retired_word_is_used(folder: str) -> None:
    """A reader meets one word for one thing."""
    found = [
        f"{path.relative_to(ROOT)}:{line}: {word}: say {RETIRED[word.removesuffix('s')]}"
        for path in FILES
        if path.parent == ROOT / folder
        for line, word in words(path)
        if word.removesuffix("s") in RETIRED
    ]

    assert [] == found
