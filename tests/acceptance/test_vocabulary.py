"""The words of docs/glossary.md are the only words for what they name: retired ones do not come back."""

from __future__ import annotations

import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: Retired word -> the word of the glossary. Refused everywhere: in names, comments, texts and documents.
RETIRED = {
    "beat": "heartbeat",
    "bell": "wake-up channel",
    "book": "history, history database",
    "door": "connection, client",
    "doorbell": "subscriber",
    "ear": "subscriber",
    "foreign": "external process",
    "gate": "admission check",
    "giveback": "release a claim",
    "lift": "promote",
    "lifted": "promoted",
    "outline": "dead letter",
    "seat": "attached terminal",
    "spare": "warm interpreter",
    "standing": "state",
    "stranger": "external process",
    "tell": "record, report",
    "told": "recorded, reported",
    "untold": "unknown",
    "vouch": "renew, heartbeat",
    "whoever": "a sentence with a noun",
    "whom": "a sentence with a noun",
    "wish": "device filter",
}
#: Refused as parts of names only: in a sentence they have a plain meaning too.
RETIRED_IN_NAMES = {
    "look": "poll, check, sample, read",
    "looked": "polled, checked, sampled, read",
    "looking": "polling, checking, sampling, reading",
    "notice": "notification",
    "said": "message, text",
    "say": "print, report",
    "stand": "state",
}
#: Refused phrases: word of the glossary by pattern.
PHRASES = {
    r"\b(make|makes|made|making)[ _]place\b": "preempt",
    r"\bkept_for\b|\broom(s| is| was)? kept\b": "reserved",
}
#: Names with a retired word that are not ours, or have another meaning.
ALLOWED = {"foreign_keys", "ForeignKeyConstraint", "get_foreign_keys", "stand_in"}
#: Texts with a retired word that has another meaning.
ALLOWED_TEXT = re.compile(r"foreign[ _]keys?\b|PRAGMA foreign|log\.tell\(", re.IGNORECASE)
PYTHON = sorted(path for part in ("gpuqueue", "workers", "integrations") for path in ROOT.glob(f"{part}/**/*.py"))
HELPERS = sorted({*ROOT.glob("benchmarks/**/*.py"), *ROOT.glob("tests/support/**/*.py"), *ROOT.glob("docs/**/*.py")})
LUA = sorted(ROOT.glob("gpuqueue/**/*.lua"))
PAGES = sorted({*ROOT.glob("docs/**/*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md"})
FILES = [*PYTHON, *HELPERS, *LUA, *PAGES]
NAMES = re.compile(r"[A-Za-z_]\w*")


def words(text: str) -> Iterator[str]:
    """Yield the words of a text or name in lower case: ``LOOK_MS`` has two."""
    for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", text):
        yield word.lower()


def names(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the names of a Python or Lua file, each with its line."""
    if path.suffix == ".py":
        with path.open("rb") as file:
            for token in tokenize.tokenize(file.readline):
                if token.type == tokenize.NAME:
                    yield token.start[0], token.string
    if path.suffix == ".lua":
        for number, line in enumerate(path.read_text().splitlines(), 1):
            for name in NAMES.findall(re.sub(r"'[^']*'|--.*", "", line)):
                yield number, name


def retired(word: str, of: dict[str, str]) -> str | None:
    """Return the word to use in place of *word*, None if it is not retired."""
    return of.get(word) or of.get(word.removesuffix("s"))


def wrong(path: Path) -> Iterator[str]:
    """Yield each retired word of a file, with its line and the word to use."""
    for number, line in enumerate(path.read_text().splitlines(), 1):
        text = ALLOWED_TEXT.sub("", line)
        for name in NAMES.findall(text):
            for word in () if name in ALLOWED else words(name):
                if instead := retired(word, RETIRED):
                    yield f"{number}: {word}: write {instead}"
        for pattern, instead in PHRASES.items():
            if re.search(pattern, text):
                yield f"{number}: {pattern}: write {instead}"
    for number, name in names(path):
        for word in () if name in ALLOWED else words(name):
            if instead := retired(word, RETIRED_IN_NAMES):
                yield f"{number}: {name}: write {instead}"


@pytest.mark.parametrize("folder", sorted({path.parent.relative_to(ROOT).as_posix() for path in FILES}))
def test_no_retired_word_is_used(folder: str) -> None:
    """A reader meets one word for one thing: in names, comments, messages and documents."""
    files = [path for path in FILES if path.parent == ROOT / folder]

    assert [] == [f"{path.relative_to(ROOT)}:{found}" for path in files for found in wrong(path)]


def test_no_test_has_a_retired_word_in_its_name() -> None:
    """The names of the tests use the words of the glossary too."""
    files = (*ROOT.glob("tests/**/*.py"), *ROOT.glob("integrations/*/tests/**/*.py"))
    tests = {name for path in files for name in re.findall(r"def (test_\w+)", path.read_text())}

    assert {} == {name: word for name in tests for word in words(name) if retired(word, RETIRED)}


@pytest.mark.parametrize(
    "line", ["def told(x): ...", "x = 1  # the door", "job.kept_for = 3", "looks = 4", "BEAT_S = 1"]
)
def test_a_retired_word_is_found(tmp_path: Path, line: str) -> None:
    """Each kind of place is searched: names, comments, attributes and constants."""
    path = tmp_path / "module.py"
    path.write_text(f"{line}\n")

    assert len(list(wrong(path))) == 1


def test_a_word_with_another_meaning_is_no_fault(tmp_path: Path) -> None:
    """SQL's foreign keys, and plain verbs in a sentence, are allowed."""
    path = tmp_path / "module.py"
    path.write_text('foreign_keys = "PRAGMA foreign_keys"  # the message says where to look\n')

    assert [] == list(wrong(path))
