"""Tests of the text by which a spec names a snapshot."""

from __future__ import annotations

import pytest

from gpuqueue.errors import BadRequest
from gpuqueue.model.code_snapshot import CodeSnapshot, address_word

ADDRESS, DIFF = "a" * 64, "b" * 64


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"{ADDRESS}:.", CodeSnapshot(ADDRESS)),
        (f"{ADDRESS}:src/a+b:c", CodeSnapshot(ADDRESS, "src/a+b:c")),
        (f"{ADDRESS}+{DIFF}:src", CodeSnapshot(ADDRESS, "src", DIFF)),
    ],
)
def test_the_text_is_read_as_it_is_written(text: str, expected: CodeSnapshot) -> None:
    """With and without a difference from a commit; the directory may have the separators."""
    assert expected == CodeSnapshot.parse(text)
    assert text == str(expected)


@pytest.mark.parametrize(
    "text", ["", ":.", f"{ADDRESS}", f"{ADDRESS}+:.", f"{ADDRESS}+b:.", f"+{DIFF}:.", f"{ADDRESS}+{DIFF}+{DIFF}:."]
)
def test_what_is_no_snapshot_is_refused(text: str) -> None:
    """Each hash has 64 digits, and there is a directory."""
    with pytest.raises(BadRequest):
        CodeSnapshot.parse(text)


@pytest.mark.parametrize("word", ["", "abcde", "../x", "ABCDEF", "abcdef*", "a" * 65, "abcdef\n"])
def test_what_is_no_address_is_refused(word: str) -> None:
    """A word for an address has 6 to 64 digits, and can be no path."""
    with pytest.raises(BadRequest, match="at least 6 of its hexadecimal digits"):
        address_word(word)
    assert "abcdef" == address_word("abcdef")
