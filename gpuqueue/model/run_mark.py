"""Marks: what looks wrong about a run that goes on. A mark changes no state. Pure.

This is the one list of them. A new kind needs an entry in :class:`MarkKind` and its words in ``_WORDS``, a check in
:mod:`workers.services.mark_watch`, and its place in :mod:`gpuqueue.model.notification`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from enum import Enum
from types import MappingProxyType

from gpuqueue.lazy.frozen import dataclass


class MarkKind(str, Enum):
    """The kinds of marks, in the order in which lists have them."""

    #: A metric is not a number, or a loss is infinite.
    NAN = "nan"
    #: The run writes no output and does not use its devices.
    STALLED = "stalled"
    #: No counter in the output goes on.
    STEP = "step"
    #: The disk of the working directory, or of the log, is nearly full.
    DISK = "disk"
    #: The run does not use its devices.
    IDLE = "idle"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, slots=True)
class _Words:
    """What is said of a kind: in a table, in the title of a message, in a sentence, and when the mark is over.

    ``{what}`` is the ``what`` of the mark, or ``unknown`` if the reader may not see it.
    """

    brief: str
    predicate: str
    sentence: str
    over: str
    unknown: str = ""


_WORDS: Mapping[str, _Words] = MappingProxyType(
    {
        MarkKind.NAN.value: _Words(
            "NaN", "has a metric that is no number", "{what}", "its metrics are numbers again", "a metric is no number"
        ),
        MarkKind.STALLED.value: _Words(
            "stalled",
            "is stalled",
            "it writes no output and does not use its devices",
            "it writes output or uses its devices again, or the use is unknown",
        ),
        MarkKind.STEP.value: _Words(
            "same step", "stays at the same step", "it stays at {what}", "its steps go on", "the same step"
        ),
        MarkKind.DISK.value: _Words(
            "disk nearly full",
            "has a disk that is nearly full",
            "{what}",
            "its disk has room again",
            "its disk is nearly full",
        ),
        MarkKind.IDLE.value: _Words(
            "idle",
            "is idle",
            "it does not use its devices",
            "its devices are in use again, or the use is unknown",
        ),
    }
)


@dataclass(frozen=True, kw_only=True, slots=True)
class RunMark:
    """What looked wrong about a run from ``since`` on. ``until`` is None while it does, or if it did to the end.

    ``kind`` is a :class:`MarkKind`, as text: that of a newer version must not make a job unreadable. ``what`` is what
    the mark names, in words: a metric and its value, a count, or a disk and what is free on it.
    """

    kind: str
    since: datetime
    until: datetime | None = None
    what: str = ""

    #: What the API sends beside the fields.
    DERIVED = ("brief", "words")

    @property
    def brief(self) -> str:
        """The mark in a word or two, for a table."""
        return _words_of(self.kind).brief

    @property
    def words(self) -> str:
        """The mark as a sentence for all who read it."""
        return sentence_of(self.kind, self.what)


def without_what(marks: tuple[RunMark, ...]) -> tuple[RunMark, ...]:
    """Return *marks* for a reader who may not see the arguments or the log of the job."""
    return tuple(replace(each, what="") for each in marks)


def sentence_of(kind: str, what: str) -> str:
    """Return the sentence about a mark."""
    words = _words_of(kind)
    return words.sentence.format_map({"what": what or words.unknown})


def predicate_of(kind: str) -> str:
    """Return a mark as the predicate of a sentence about the job: ``is idle``."""
    return _words_of(kind).predicate


def over_of(kind: str) -> str:
    """Return the sentence about a mark that is over."""
    return _words_of(kind).over


def _words_of(kind: str) -> _Words:
    text = kind.replace("_", " ")
    return _WORDS.get(kind) or _Words(text, f"is marked: {text}", text, f"no longer marked: {text}")


def sorted_marks(marks: Mapping[str, RunMark]) -> tuple[RunMark, ...]:
    """Return *marks* by kind in the order of :class:`MarkKind`; unknown kinds come last."""
    order = [each.value for each in MarkKind]
    places = {kind: place for place, kind in enumerate(order)}
    return tuple(marks[kind] for kind in sorted(marks, key=lambda kind: (places.get(kind, len(order)), kind)))
