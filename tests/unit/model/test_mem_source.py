"""Tests of the source of a job's memory as text."""

from __future__ import annotations

import pytest

from gpuqueue.errors import BadRequest
from gpuqueue.model.mem_source import MemKind, MemSource, Signature


@pytest.mark.parametrize(
    ("source", "text", "words"),
    [
        (MemSource(MemKind.ASKED), "asked", "asked"),
        (MemSource(MemKind.DEFAULT), "default", "default"),
        (MemSource(MemKind.ESTIMATE), "estimate", "estimated by a dry run"),
        (
            MemSource(MemKind.LEARNED, 12, Signature.ARGUMENTS),
            "learned 12 arguments",
            "learned from 12 runs with the same arguments",
        ),
        (
            MemSource(MemKind.LEARNED, 1, Signature.SCRIPT),
            "learned 1 script",
            "learned from 1 run of the script with any arguments",
        ),
    ],
)
def test_a_source_has_a_text_and_words(source: MemSource, text: str, words: str) -> None:
    """The text is what a spec has, and the words are what ``show`` prints."""
    assert (text, words) == (str(source), source.words)
    assert source == MemSource.parse(text)


@pytest.mark.parametrize(
    "text",
    ["", "guessed", "learned", "learned 0 script", "learned x script", "asked 3 script", "learned 3", "learned 3 a b"],
)
def test_another_text_is_refused(text: str) -> None:
    """A text that names no source is an error in one line."""
    with pytest.raises(BadRequest):
        MemSource.parse(text)
