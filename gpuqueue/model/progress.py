"""Reads a job's progress from the last progress bar in its log. Pure.

Known forms are the bars of tqdm (PyTorch Lightning, Hugging Face), rich and Keras, and plain counts such as
``epoch 3/10``. Jobs need no changes for this.

A program redraws a bar as long as its work continues. So a full bar is over as soon as the log has other output below
it, and an unfinished bar is over once much other output follows. The job then has no known progress.
"""

from __future__ import annotations

import re

from gpuqueue.lazy.frozen import dataclass
from gpuqueue.lazy.imports import pattern
from gpuqueue.text.sanitize import ESCAPES

#: Length of the end of a log to read, in bytes. It is enough, since bars are redrawn many times a minute.
TAIL_BYTES = 8192

#: An unfinished bar with more lines than this below it is over: the job left its loop early.
MOST_BELOW = 20

#: `` 45%|####      | 45/100 [00:12<00:15,  3.6it/s]``. The share is computed from the counts, which are more precise.
_TQDM = pattern(r"(?P<percent>\d{1,3})%\|.*?\|\s*(?P<rest>\S.*)?$")
#: ``12/100 ━━━━━─────  3s 35ms/step`` and ``12/100 [===>......] - ETA: 3s``
_KERAS = pattern(r"(?<![\d/.])(?P<done>\d+)/(?P<all>\d+)\s*(?:\[[=>.\s]+\]|[━─╸╺]+)\s*(?P<rest>.*)$")
#: ``epoch 2/3 ━━━━━╸━━━━ 13/40 0:00:05`` and ``━━━━━╸━━━━  33%`` of rich: the count of the bar is behind it.
_RICH = pattern(r"(?<![━─╸╺])[━─╸╺]{2,}\s+(?:(?P<percent>\d{1,3})%|(?P<done>\d+)/(?P<all>\d+))(?![\d./])")
_COUNTS = pattern(r"(?<![\d/.])(?P<done>\d+(?:\.\d+)?)(?P<unit>[kMGTP]?)B?/(?P<all>\d+(?:\.\d+)?)(?P<units>[kMGTP]?)B?")
#: A count next to a word that names the counted thing, so that a date does not match.
_WORDED = pattern(
    r"\b(?:epoch|step|iter(?:ation)?|batch|round|fold|trial|it)s?\b[\s:=#\[(]*(?P<done>\d+)\s*(?:/|of)\s*(?P<all>\d+)",
    re.IGNORECASE,
)
#: The remaining time: ``[00:12<00:15`` of tqdm, ``ETA: 3s`` of Keras.
_LEFT = pattern(r"\[[\d:]+<(?P<tqdm>[\d:]+)|ETA:\s*(?P<keras>[\d:]+s?)")
_SCALE = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """The done share of the work, 0 to 1, and the words next to the bar: the counts and any remaining time."""

    share: float
    words: str


def progress_in(tail: bytes) -> Progress | None:
    """Return the current progress in the end of a log, or None if there is none."""
    text = ESCAPES.sub("", tail.decode("utf-8", "replace"))
    lines = [line for line in map(str.strip, re.split(r"[\r\n]+", text)) if line]
    is_over = False
    for below, line in enumerate(reversed(lines)):
        bar = _bar_in(line)
        if bar is not None and not is_over and (below == 0 or (bar.share < 1 and below <= MOST_BELOW)):
            return bar
        is_over = is_over or bar is not None  # all bars above this line are over, too
        counted = _counted_in(line, _WORDED)
        if counted is not None and (bar is None or counted.share < 1):  # beside its bar, epoch 2/2 has only begun
            return counted
    return None


def _bar_in(line: str) -> Progress | None:
    bar = _TQDM.search(line)
    if bar and int(bar["percent"]) <= 100:  # noqa: PLR2004 - per cent
        counts = _COUNTS.match(bar["rest"] or "")
        share = _share(_scaled(counts, "done", "unit"), _scaled(counts, "all", "units")) if counts else None
        return Progress(share=int(bar["percent"]) / 100 if share is None else share, words=_words(counts, line))
    return _rich_bar_in(line) or _counted_in(line, _KERAS)


def _rich_bar_in(line: str) -> Progress | None:
    bar = _RICH.search(line)
    if bar is None or bar["percent"] is None:
        return _counted_in(line, _RICH) if bar else None
    share = _share(float(bar["percent"]), 100)
    return None if share is None else Progress(share=share, words="")


def _counted_in(line: str, form: re.Pattern[str]) -> Progress | None:
    counts = form.search(line)
    share = _share(float(counts["done"]), float(counts["all"])) if counts else None
    return None if share is None else Progress(share=share, words=_words(counts, line))


def _words(counts: re.Match[str] | None, line: str) -> str:
    """Return a text such as ``45/100, 00:15 left``, with the parts that *line* has."""
    left = _LEFT.search(line)
    numbers = ""
    if counts:
        cut = counts.re.pattern != _COUNTS.pattern
        numbers = f"{counts['done']}/{counts['all']}" if cut else counts[0]
    time_left = f"{left['tqdm'] or left['keras']} left" if left else ""
    return ", ".join(words for words in (numbers, time_left) if words)


def _scaled(counts: re.Match[str], number: str, unit: str) -> float:
    return float(counts[number]) * _SCALE[counts[unit]]


def _share(done: float, whole: float) -> float | None:
    return done / whole if 0 <= done <= whole and whole > 0 else None


def steps_of(progress: Progress) -> int | None:
    """Return how many steps are done by the counts of *progress*, or None if it has no plain count."""
    done = progress.words.partition("/")[0]
    return int(done) if done.isascii() and done.isdigit() else None
