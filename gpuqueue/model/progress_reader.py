"""Reads the progress of a run from its output. Pure.

Known forms are the bars of tqdm (PyTorch Lightning, Hugging Face), rich and Keras, and plain counts such as
``epoch 3/20 step 100/500``. Jobs need no changes for this. docs/explanation/progress.md has the rules in short:

- Everything that counts is a counter: epochs, bars, steps. One that begins anew within the run is a part of the work.
- The whole is the counter of the epochs, if their number is known. Else it is the first bar that never began anew, that
  is not of a validation, and that covers at least half of the run so far. Else nothing is known.
- A bar alone may be that of the first epoch. It is sure only once the output has shown that it is more: the number of
  an epoch rose within it, it has gone on by one step for each bar within it, or the arguments name its total.
- What was shown never falls. If the whole was a part, nothing is shown until more is done than was shown.
- What counts within the present epoch, or step of an outer bar, adds its share of it.
- The time left follows from the pace of the newer half of what is done, so a slow start soon counts no more.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from gpuqueue.lazy.imports import pattern
from gpuqueue.model.progress import LEAST_SHARE, MAX_SHARE, Progress, Reading
from gpuqueue.text.sanitize import ESCAPES

#: Length of the end of a log to read for the progress of an ended run, in bytes. Bars are redrawn many times a minute.
TAIL_BYTES = 16384
#: A bar with more other lines than this below it, and not drawn for this many seconds, is over: the job left its loop.
MAX_BELOW, MAX_SILENT_S = 20, 60.0
#: A bar is the whole if it covers this share of the run's time so far.
COVERS = 0.5
#: A bar in which the number of the epoch rises by so much for its whole length covers more than one epoch.
MORE_THAN_ONE = 1.5
#: The pace of the run counts if it was seen for so long, in seconds.
LEAST_PACE_S = 10.0
#: A counter that falls by this share of its total, and by one, begins anew. The ranks of one job differ by less.
_FALL = 0.1
#: The reader keeps a point of the pace for each further part of the work: so much of all of it, and of what is done.
_STEP_OF_ALL, _STEP_OF_DONE = 0.002, 0.05
#: Most counters that are known at a time, and most characters of a line, of a label and of an unfinished line.
_MOST_COUNTERS, _MOST_COLUMNS, _MOST_LABEL, _MOST_PENDING = 32, 1000, 40, 8192
#: Most characters of the text of a counter.
_MOST_TEXT = 80
#: Of a line that is redrawn often, so many of the first and the last states are read.
_FIRST, _LAST = 2, 4
#: Of the lines with counts that come at a time, so many of the first and of the last ones are read.
_FIRST_LINES, _LAST_LINES = 16, 48
#: How far counters nest: folds, epochs, steps.
_DEPTH = 3

#: What each line that a form matches has, and nearly no other one.
_MAYBE = pattern(r"\d\s*/\s*\d|\d%|\d of \d|[Ee]poch|EPOCH|steps['\"]?\s{0,3}[=:]")
#: What each match of it has. To look for these takes a tenth of the time.
_MARKS = ("/", "%", " of ", "poch", "POCH", "steps")
#: What ends a state of a line: a redraw moves the cursor to the beginning of the line, back, or up.
_REDRAWN = pattern(r"[\r\b]+|\x1b\[\d*[AF]")
#: ``45%|####      | 45/100 [00:12<00:15,  3.6it/s]``. The share is computed from the counts, which are more precise.
_TQDM = pattern(r"(?P<percent>\d{1,3})%\|[^|]*\|\s*(?P<rest>\S.*)?$")
_COUNTS = pattern(r"(?P<done>\d+(?:\.\d+)?)(?P<unit>[kMGTP]?)B?/(?P<all>\d+(?:\.\d+)?)(?P<units>[kMGTP]?)B?")
#: ``12/100 ━━━━━─────  3s 35ms/step`` and ``12/100 [===>......] - ETA: 3s``
_KERAS = pattern(r"(?<![\d/.])(?P<done>\d+)/(?P<all>\d+)\s*(?:\[[=>.\s]+\]|[━─╸╺]+)")
#: ``epoch 2/3 ━━━━━╸━━━━ 13/40 0:00:05`` and ``━━━━━╸━━━━  33%`` of rich: the count of the bar is behind it.
_RICH = pattern(r"(?<![━─╸╺])[━─╸╺]{2,}\s+(?:(?P<percent>\d{1,3})%|(?P<done>\d+)/(?P<all>\d+))(?![\d./])")
#: A count next to a word that names the counted thing, so that a date does not match; and ``[25600/60000 (43%)]``.
_WORDED = pattern(
    r"\b(?P<word>step|iter(?:ation)?|batch|round|fold|trial|it)s?\b[\s:=#\[(]*(?P<done>\d+)\s*(?:/|of)\s*(?P<all>\d+)",
    re.IGNORECASE,
)
_BEHIND = pattern(
    r"(?<![\d/.])(?P<done>\d+)\s*/\s*(?P<all>\d+)\s+(?P<word>batch|step|iter(?:ation)?|sample)(?:e?s)?\b", re.IGNORECASE
)
#: ``progress: 3/20`` alone on its line, or behind a bar, by which a program says how much of the whole job is done.
_STATED = pattern(r"(?:^|\])\s*progress:\s*(?P<done>\d+(?:\.\d+)?)\s*/\s*(?P<all>\d+(?:\.\d+)?)\s*$")
_BRACKETS = pattern(r"\[\s*(?P<done>\d+)\s*/\s*(?P<all>\d+)\s*\(\d+\s*%\)\s*\]")
#: Beside an epoch also ``[ 100/5005]``.
_PLAIN_BRACKETS = pattern(r"\[\s*(?P<done>\d+)\s*/\s*(?P<all>\d+)\s*\]")
#: ``epoch 3/20``, ``Epoch [3/20]``, ``Epoch: 3 of 20``, ``| epoch   3 |``, ``'epoch': 1.5``. Neither ``epoch:  15%|``
#: nor the name of a file, ``epoch=3-step=400.ckpt``.
_EPOCH = pattern(
    r"(?<!best )\bepoch\b['\"]?[\s:=#\[('\"]*(?P<number>\d{1,9}(?:\.\d+)?)(?![\d%_-]|\.\d)"
    r"(?:\s*(?:/|of\s)\s*(?P<total>\d{1,9})(?![\d.]))?",
    re.IGNORECASE,
)
#: ``      3/100      2.1G      1.23: 45%|`` of Ultralytics: a bar whose label begins with the count of the epochs.
_ROW = pattern(r"\s*(?P<number>\d{1,9})/(?P<total>\d{1,9})\s+\S")
#: The number of all epochs in arguments and settings: ``--epochs 20``, ``max_epochs=20``, ``Num Epochs = 3``.
_EPOCHS = pattern(
    r"(?<![\w-])-{0,2}(?:(?:num|n|nb|max|total|train)[_ -])?(?:train[_ -])?epochs['\"]?\s{0,3}[=:\s]\s{0,3}"
    r"['\"]?(?P<all>\d{1,9})(?![\w.%/:])",
    re.IGNORECASE,
)
#: The number of all steps: ``--max_train_steps 5000``, ``iterations=1000``, ``Total optimization steps = 60``.
_STEPS = pattern(
    r"(?<![\w-])-{0,2}(?:(?:num|n|max|total|train|training|optimi[sz]ation)[_ -]){0,3}"
    r"(?:steps|iters|iterations|updates)['\"]?\s{0,3}[=:\s]\s{0,3}['\"]?(?P<all>\d{1,9})(?![\w.%/:])",
    re.IGNORECASE,
)
#: What a line has behind the number of an epoch that is over: measured values.
_MEASURED = pattern(r"\d\.\d|loss|acc", re.IGNORECASE)
#: Bars with such words count no training.
_VALIDATION = pattern(r"\bval(?!ue)|eval|\btest|sanity", re.IGNORECASE)
#: The numbers in a label, which differ from one bar to the next one of the same loop.
_NUMBERS = pattern(r"[\d.,:/|]+")
_SCALE = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
#: The kinds of counters, from the outermost one. An epoch with decimals comes beside a bar over all steps, if at all.
_FOLD, _EPOCH_OF_RUN, _STEP, _MEASURED_EPOCH = range(4)
_OUTER = frozenset({"fold", "trial"})
#: The name of the counter of the epochs.
_EPOCHS_KEY = "epoch"


@dataclass(kw_only=True, slots=True)
class Counter:
    """Something that counts in the output: ``done`` of ``total``. Times are seconds since the start of the run.

    ``rank`` is its kind. ``since_s`` and ``drawn_s`` are when it was drawn first and last, ``lines`` and ``draws`` the
    numbers of the reader then. ``is_part``: it has begun anew, or belongs to one epoch. ``inner`` is the counter within
    its present step, and ``inner_at`` what was done when one began there last. ``is_sure``: the output has shown that
    it is more than an epoch. ``epoch_from`` is the first number of an epoch since then, at ``done_from``.
    """

    total: float
    rank: int
    since_s: float
    done: float = -1.0
    text: str = ""
    drawn_s: float = 0.0
    lines: int = 0
    draws: int = 0
    is_part: bool = False
    is_validation: bool = False
    inner: str | None = None
    inner_at: float | None = None
    is_sure: bool = False
    epoch_from: float | None = None
    done_from: float = 0.0

    def __post_init__(self) -> None:
        if self.total <= 0:
            raise ValueError("a counter counts to a number above 0")
        self.text = self.text[:_MOST_TEXT]


@dataclass(frozen=True, slots=True)
class _Count:
    """A count in a line: its label, its numbers, its text, and its kind."""

    label: str
    done: float
    total: float
    text: str
    rank: int = _STEP


@dataclass(kw_only=True, slots=True)
class ProgressReader:
    """What the output of one run has shown so far. A worker that adopts the run goes on with these fields."""

    counters: dict[str, Counter] = field(default_factory=dict)
    #: The numbers of epochs and of steps by arguments or settings, None if they are unknown.
    declared: int | None = None
    steps: int | None = None
    #: The numbers of the first epoch and of the newest one, whether the output has their total beside them, and whether
    #: a full bar came before the first one.
    first_epoch: float | None = None
    last_epoch: float = 0.0
    is_total_beside: bool = False
    is_behind_bar: bool = False
    #: How many other lines there were, and how often a counter was drawn.
    lines: int = 0
    draws: int = 0
    #: The counter that is the whole, its share, and the points of the pace: times and shares. ``shown`` is the largest
    #: share of a whole before it.
    whole: str | None = None
    share: float = 0.0
    shown: float = 0.0
    was_sure: bool = False
    points: list[tuple[float, float]] = field(default_factory=list)
    #: The unfinished last line of each stream.
    pending: dict[str, str] = field(default_factory=dict)
    #: When the output is read, and when it was before that: what is new was written in between.
    at_s: float = 0.0
    before_s: float = 0.0

    def __post_init__(self) -> None:
        if len(self.counters) > _MOST_COUNTERS or not (self.whole is None or self.whole in self.counters):
            raise ValueError("the progress of a run has a few counters with that of the whole")
        self.share = min(MAX_SHARE, max(0.0, self.share))

    def declare(self, text: str) -> None:
        """Look for the numbers of epochs and steps in *text*, such as the arguments. The first one counts."""
        found = _EPOCHS.search(text)
        if found and self.declared is None and int(found["all"]):
            self.declared = int(found["all"])
        found = _STEPS.search(text)
        if found and self.steps is None and int(found["all"]):
            self.steps = int(found["all"])

    def feed(self, written: bytes, now_s: float, stream: str = "", *, is_cut: bool = False) -> None:
        """Read what was *written* to *stream* until *now_s*, in seconds since the start of the run.

        If nothing was written, the unfinished last line counts, too: it may be a bar. *is_cut*: output before this was
        left out, so the first line may lack its beginning.
        """
        if now_s > self.at_s:
            self.before_s, self.at_s = self.at_s, now_s
        text = written.decode("utf-8", "replace")
        if is_cut:
            begin = min((at for end in "\r\n" if (at := text.find(end)) >= 0), default=len(text))
            text = text[begin:]
        *lines, last = (("" if is_cut else self.pending.get(stream, "")) + text).split("\n")
        ended = max((each.end() for each in _REDRAWN.finditer(last)), default=0) if written else len(last)
        self.pending[stream] = last[ended:][-_MOST_PENDING:]
        states = [state for line in (*lines, last[:ended]) for state in _states(line)]
        counting = [at for at, state in enumerate(states) if _may_count(state)]
        begin = 0
        for at in (*counting[:_FIRST_LINES], *counting[max(_FIRST_LINES, len(counting) - _LAST_LINES) :]):
            self.lines += at - begin
            self._read(states[at], now_s)
            begin = at + 1
        self.lines += len(states) - begin
        self._choose(now_s)

    def reading(self, now_s: float) -> Reading | None:
        """Return the progress at *now_s*, None if it is unknown. ``left_s`` is None before the run has its own pace."""
        if self.whole is None or self.share < self.shown:
            return None
        counter = self.counters[self.whole]
        progress = Progress(share=self.share, counts=counter.text, left_s=self._left_s(now_s))
        return Reading(progress, is_sure=self._is_sure(counter))

    def progress(self, now_s: float) -> Progress | None:
        """Return the progress at *now_s*, None if it is unknown or unsure."""
        found = self.reading(now_s)
        return found.progress if found is not None and found.is_sure else None

    # ---- lines -------------------------------------------------------------------------------------------------------

    def _read(self, line: str, now_s: float) -> None:
        self.declare(line)
        epoch = _EPOCH.search(line)
        count = _count_in(line, 0 if epoch is None else epoch.end())
        if epoch is None and count is not None:
            epoch = _ROW.match(count.label)
        if epoch is None and count is None:
            self.lines += 1
            return
        is_now = epoch is not None and self._note_epoch(epoch, line, count, now_s)
        if count is not None and (epoch is None or is_now or _EPOCHS_KEY not in self.counters):
            key = self._draw(count, now_s, is_of_epoch=epoch is not None)
            if is_now and not self.counters[key].is_validation:
                self.counters[_EPOCHS_KEY].inner = key

    def _note_epoch(self, found: re.Match[str], line: str, count: _Count | None, now_s: float) -> bool:
        """Note the number of an epoch. Return whether it is the present epoch, of a known number of epochs."""
        number, beside = float(found["number"]), None if found["total"] is None else int(found["total"])
        is_measured = "." in found["number"] or not {"'", '"'}.isdisjoint(found[0])  # {'loss': 0.5, 'epoch': 1.5}
        self._compare(number)
        if beside is None and self.is_total_beside:
            return False
        if beside is not None and not self.is_total_beside:  # what was read of other numbers counts no more
            self.is_total_beside, self.first_epoch = True, None
            self.counters.pop(_EPOCHS_KEY, None)
        total = self._total_of(number, beside)
        if total is None or number > total:
            return False
        counter = self.counters.get(_EPOCHS_KEY)
        if counter is None or self.first_epoch is None:
            counter = self._add(_EPOCHS_KEY, Counter(total=total, rank=_EPOCH_OF_RUN, since_s=self.before_s))
            self.first_epoch, self.is_behind_bar = number, self._is_full_since(counter)
        elif number < self.last_epoch:
            is_first = number <= self.first_epoch
            if not is_first or (self.last_epoch < total and self.last_epoch - number <= 1):
                return False  # of a rank that is behind, or about an earlier epoch
            counter.is_part, counter.done = True, -1.0
        begun = number - (self.first_epoch != 0 and not is_measured)
        # A line alone may be of the beginning of its epoch. If all come behind a full bar, they are of the ends.
        is_full = self.is_behind_bar and count is None and not is_measured and self._is_full_since(counter)
        is_over = is_full and _MEASURED.search(line, found.end()) is not None
        done = min(begun + is_over, total)
        if done > counter.done:
            counter.done, counter.inner = done, None
            counter.text = f"epoch {min(begun + (not is_measured), total):g}/{total:g}"
            if done < total and not is_measured:
                self._enter(_EPOCHS_KEY, counter)
        counter.total, self.last_epoch = total, number
        counter.rank = _MEASURED_EPOCH if is_measured else _EPOCH_OF_RUN
        self._note_draw(counter, now_s)
        return True

    def _is_full_since(self, epochs: Counter) -> bool:
        """Return whether a bar of an epoch has become full since the number of the epoch was last seen."""
        within = (each for each in self.counters.values() if each.rank == _STEP and not each.is_validation)
        return any(each.draws > epochs.draws and each.done == each.total for each in within)

    def _compare(self, number: float) -> None:
        """Note how far the bars are at the epoch *number*: one of all steps covers several epochs."""
        for counter in self.counters.values():
            if counter.rank != _STEP or counter.is_part:
                continue
            if counter.epoch_from is None:
                counter.epoch_from, counter.done_from = number, counter.done
                continue
            share = (counter.done - counter.done_from) / counter.total
            if share > 0 and (number - counter.epoch_from) / share >= MORE_THAN_ONE:
                counter.is_sure = True

    def _total_of(self, number: float, beside: int | None) -> int | None:
        """Return the number of epochs. Where they count from 0, the one beside may be that of the last epoch."""
        if beside is None:
            return self.declared
        is_from_zero = 0 in {number, self.first_epoch}
        return beside + 1 if is_from_zero and beside != self.declared else beside or None

    # ---- counters ----------------------------------------------------------------------------------------------------

    def _draw(self, count: _Count, now_s: float, *, is_of_epoch: bool) -> str:
        """Note a count, and return the key of its counter."""
        label = _NUMBERS.sub("", count.label).strip().lower()[:_MOST_LABEL]
        key = f"{label} {count.total:g}"
        counter = self.counters.get(key)
        if counter is None:
            counter = self._add(key, Counter(total=count.total, rank=count.rank, since_s=self.before_s))
            counter.is_validation = _VALIDATION.search(count.label) is not None
        begins_anew = counter.done - count.done >= max(1.0, _FALL * count.total)
        counter.is_part = counter.is_part or is_of_epoch or begins_anew
        if count.done != counter.done:
            counter.done, counter.inner = count.done, None
        counter.text = count.text
        self._note_draw(counter, now_s)
        if not counter.is_validation and count.done < count.total:
            self._enter(key, counter)
        if begins_anew:
            self._note_beginning(key)
        return key

    def _note_beginning(self, key: str) -> None:
        """Note where in the counters around it the counter *key* begins anew. Once in each step: they are loops."""
        for outer in self.counters.values():
            if outer.inner == key and outer.rank == _STEP:
                outer.is_sure = outer.is_sure or (outer.inner_at is not None and outer.done == outer.inner_at + 1)
                outer.inner_at = outer.done

    def _enter(self, key: str, counter: Counter) -> None:
        """Let *counter* count within the present step of all counters around it that have no other one there."""
        is_older = True
        for outer in self.counters.values():
            if outer is counter:
                is_older = False
            elif outer.inner is None and (outer.rank < counter.rank or (outer.rank == counter.rank and is_older)):
                outer.inner = key
                outer.inner_at = outer.done if outer.inner_at is None else outer.inner_at
                if outer.rank == _EPOCH_OF_RUN:
                    outer.text = f"epoch {min(outer.done + 1, outer.total):g}/{outer.total:g}"

    def _note_draw(self, counter: Counter, now_s: float) -> None:
        self.draws += 1
        counter.drawn_s, counter.lines, counter.draws = now_s, self.lines, self.draws

    def _add(self, key: str, counter: Counter) -> Counter:
        if len(self.counters) >= _MOST_COUNTERS:
            idle = (each for each in self.counters if each not in {self.whole, _EPOCHS_KEY})
            del self.counters[min(idle, key=lambda each: self.counters[each].draws)]
        self.counters[key] = counter
        return counter

    # ---- the whole ---------------------------------------------------------------------------------------------------

    def _choose(self, now_s: float) -> None:
        """Find the counter that is the whole, and note its share."""
        whole = min(
            (key for key, each in self.counters.items() if self._is_whole(each, now_s)),
            key=lambda key: (self.counters[key].rank, not self._is_sure(self.counters[key])),
            default=None,
        )
        if whole != self.whole:
            if self.was_sure:
                self.shown = max(self.shown, self.share)
            ranks = {self.counters[key].rank for key in (whole, self.whole) if key in self.counters}
            if _MEASURED_EPOCH not in ranks:  # else both are of all steps, and neither was wrong
                self.share = 0.0
            self.whole, self.points = whole, []
        if whole is not None:
            self.share = max(self.share, min(MAX_SHARE, self._share_of(self.counters[whole])))
            self._note_pace(now_s)
        self.was_sure = whole is not None and self._is_sure(self.counters[whole])

    def _is_sure(self, counter: Counter) -> bool:
        """Return whether *counter* is that of the job for certain, if it is the whole."""
        return counter.rank != _STEP or counter.is_sure or counter.total == self.steps

    def _is_whole(self, counter: Counter, now_s: float) -> bool:
        if counter.is_part or counter.is_validation:
            return False
        if counter.rank != _STEP:
            return True
        if counter.done == counter.total and (self.lines > counter.lines or self.draws > counter.draws):
            return False
        if self.lines - counter.lines > MAX_BELOW and now_s - counter.drawn_s > MAX_SILENT_S:
            return False
        return self._is_sure(counter) or now_s - counter.since_s >= COVERS * now_s

    def _share_of(self, counter: Counter, depth: int = _DEPTH) -> float:
        inner = self.counters.get(counter.inner or "")
        within = 0.0
        if inner is not None and depth and counter.rank != _MEASURED_EPOCH:
            within = self._share_of(inner, depth - 1)
        return min(1.0, (max(0.0, counter.done) + within) / counter.total)

    def _note_pace(self, now_s: float) -> None:
        points = self.points
        if points and self.share - points[-1][1] < max(_STEP_OF_ALL, _STEP_OF_DONE * (self.share - points[0][1])):
            return
        points.append((now_s, self.share))
        del points[1 : self._middle()]

    def _middle(self) -> int:
        """Return the index of the last point in the older half of what is done."""
        half = (self.points[0][1] + self.points[-1][1]) / 2
        return max(at for at, (_, share) in enumerate(self.points) if share <= half or not at)

    def _left_s(self, now_s: float) -> float | None:
        """Return the time left by the pace of the newer half of what is done, None before there is enough of it."""
        if len(self.points) < 2 or self.share - self.points[0][1] < LEAST_SHARE:  # noqa: PLR2004 - two points of a pace
            return None
        (since_s, before), (at_s, share) = self.points[self._middle()], self.points[-1]
        if at_s - since_s < LEAST_PACE_S:
            return None
        left_s = (1 - share) * (at_s - since_s) / (share - before)
        # Until the next point is due. A job that hangs comes no nearer to its end.
        return max(0.0, left_s - min(now_s - at_s, at_s - self.points[-2][0]))


def progress_of(written: bytes, command: str = "") -> Progress | None:
    """Return the progress that the end of the output of an ended run shows, or None. *command* has its arguments."""
    reader = ProgressReader()
    reader.declare(command)
    reader.feed(written, 0.0)
    reader.feed(b"", 0.0)
    return reader.progress(0.0)


def steps_in(written: bytes) -> int | None:
    """Return how many steps the last counter in *written* has done, or None if it has no plain count."""
    for line in reversed(written.decode("utf-8", "replace").split("\n")):
        for state in reversed(_states(line)):
            epoch = _EPOCH.search(state)
            count = _count_in(state, 0 if epoch is None else epoch.end())
            if count is not None:
                return int(count.done) if count.text.partition("/")[0].rpartition(" ")[2].isdigit() else None
    return None


def _states(line: str) -> list[str]:
    """Return the states of a *line* that was redrawn, without escape sequences; of many the first and the last ones."""
    if "\r" not in line and "\b" not in line and "\x1b" not in line:  # nearly all
        return [line[:_MOST_COLUMNS]] if line and not line.isspace() else []
    states = [each for each in _REDRAWN.split(line) if each and not each.isspace()]
    if len(states) > _FIRST + _LAST:
        states = [*states[:_FIRST], *states[-_LAST:]]
    return [ESCAPES.sub("", each)[:_MOST_COLUMNS] for each in states]


def _may_count(line: str) -> bool:
    return any(mark in line for mark in _MARKS) and _MAYBE.search(line) is not None


def _count_in(line: str, begin: int) -> _Count | None:
    """Return what *line* counts. Plain counts stand at *begin* or behind it, where the number of an epoch ends."""
    stated = _STATED.search(line)
    if stated and (whole := _count("", stated)):
        return _Count("progress", whole.done, whole.total, f"{whole.done:g}/{whole.total:g}", _FOLD)
    bar = _TQDM.search(line)
    if bar and int(bar["percent"]) <= 100:  # noqa: PLR2004 - per cent
        counts = _COUNTS.match(bar["rest"] or "")
        scales = (_SCALE[counts["unit"]], _SCALE[counts["units"]]) if counts else (1.0, 1.0)
        found = _count(line[: bar.start()], counts, scales) if counts else None
        return found or _Count(line[: bar.start()], float(bar["percent"]), 100.0, "")
    bar = _RICH.search(line)
    if bar and bar["percent"]:
        return _Count(line[: bar.start()], float(bar["percent"]), 100.0, "") if int(bar["percent"]) <= 100 else None  # noqa: PLR2004 - per cent
    for form in (_RICH, _KERAS, _WORDED, _BEHIND, _BRACKETS, *([_PLAIN_BRACKETS] if begin else [])):
        counts = form.search(line, 0 if form is _RICH else begin)
        if counts:
            return _count(line[: counts.start()], counts)
    return None


def _count(label: str, counts: re.Match[str], scales: tuple[float, float] = (1.0, 1.0)) -> _Count | None:
    done, total = float(counts["done"]) * scales[0], float(counts["all"]) * scales[1]
    if not 0 <= done <= total or not total:
        return None
    if "unit" in counts.groupdict():
        return _Count(label, done, total, counts[0])
    word = (counts.groupdict().get("word") or "").lower()
    text = f"{word} {counts['done']}/{counts['all']}".lstrip()
    if word in _OUTER:  # the number of the present one, not of those that are over
        return _Count(word, max(0.0, done - 1), total, text, _FOLD)
    return _Count(f"{label} {word}", done, total, text)
