"""Reads the output of the live runs for their progress, a bounded part of it each second."""

from __future__ import annotations

import os
import re
import threading
from typing import TYPE_CHECKING, Any

from gpuqueue.clock import Clock
from gpuqueue.errors import Unreadable
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.progress import MAX_SHARE
from gpuqueue.model.progress_reader import ProgressReader
from gpuqueue.system import progress_file
from gpuqueue.system.logs import LOGS
from gpuqueue.system.safe_open import open_regular
from gpuqueue.text.json_fields import Fields
from workers.run.directory import RunDir
from workers.shim.acl import METRICS
from workers.shim.log import OWN_LINE

if TYPE_CHECKING:
    from workers.measure.active_runs import LiveRuns

#: How often the output of a run is read, in seconds.
READ_S = 1.0
#: What is read of more output than this: so many bytes of its beginning and of its end. The rest is left out.
BEGIN_BYTES, END_BYTES = 8 * 1024, 24 * 1024


#: So many steps must have been seen before one can be called too long.
LEAST_STEPS = 2
_OWN_LINES = re.compile(rb"^%b[^\n]*\n" % re.escape(OWN_LINE.encode()), re.MULTILINE)
_KEPT = ("written_bytes", "step_s", "longest_s", "steps")


@dataclass(frozen=True, slots=True)
class Step:
    """The step at which a run is: its counts, for how long, and how long the longest one before took, in seconds."""

    counts: str
    for_s: float
    longest_s: float


def _of_job(written: bytes) -> bytes:
    """Return *written* without the whole lines that gpuqueue has added to a log: they may quote a count."""
    return _OWN_LINES.sub(b"", written) if OWN_LINE.encode() in written else written


def _size(path: str) -> int:
    try:
        return os.stat(path, follow_symlinks=False).st_size  # noqa: PTH116 - a Path is slower to create than this
    except OSError:
        return 0


class RunOutput:
    """The output of one run: how far it was read, and what it has shown. One thread reads.

    ``kept`` is all that as plain values, for a worker that adopts the run. Any thread may take it.
    """

    def __init__(self, command: str = "") -> None:
        self._reader = ProgressReader()
        self._reader.declare(command)
        self._offsets: dict[str, int] = {}
        self._shown: tuple[str, float, bool, bool] | None = None
        self._shown_s = 0.0
        self.kept: dict[str, Any] | None = None
        #: What the run has written so far, in bytes, without the lines that the worker has added to its log, and when
        #: it wrote last, None before that.
        self._written_bytes, self.own_bytes = 0, 0
        self.written_s: float | None = None
        #: Guards ``own_bytes``: another thread adds the lines.
        self.adding = threading.Lock()
        #: What all counters show, since when, and how long they have shown the same before.
        self._step: tuple[float, ...] = ()
        self._step_s, self._longest_s, self._steps = 0.0, 0.0, 0

    def read(self, directory: RunDir, now_s: float) -> None:
        """Read what is new at *now_s*, in seconds since the start of the run, and write the run's progress.

        Raises:
            OSError: The progress cannot be written now.

        """
        self._note_size(directory, now_s)
        for name in LOGS:
            self._read(f"{directory.path}/{name}", name, now_s)
        self._note_step(now_s)
        self.kept = {
            "offsets": {**self._offsets},
            "reader": self._reader.to_plain(),
            **{name: getattr(self, f"_{name}") for name in _KEPT},
            "own_bytes": self.own_bytes,
            "written_s": self.written_s,
        }
        reading = self._reader.reading(now_s)
        if reading is None:
            if self._shown is not None:
                directory.drop_progress()
            self._shown = None
            return
        progress = reading.progress
        shown = (progress.counts, round(progress.share, 3), progress.left_s is None, reading.is_sure)
        if shown != self._shown or now_s - self._shown_s >= progress_file.RENEW_S:
            directory.keep_progress(reading)
            self._shown, self._shown_s = shown, now_s

    def _note_size(self, directory: RunDir, now_s: float) -> None:
        """Note whether the run has written to its logs or reported metrics since the last call."""
        with self.adding:
            sizes = [_size(f"{directory.path}/{name}") for name in (*LOGS, METRICS)]
            written_bytes = sum(sizes) - self.own_bytes
        if written_bytes != self._written_bytes:
            self._written_bytes, self.written_s = written_bytes, now_s

    def _note_step(self, now_s: float) -> None:
        step = tuple(each.done for each in self._reader.counters.values())
        if step != self._step:
            if self._step:
                self._longest_s, self._steps = max(self._longest_s, now_s - self._step_s), self._steps + 1
            self._step, self._step_s = step, now_s

    def step(self, now_s: float) -> Step | None:
        """Return the step at which the run is, None if its output has shown none or too few, or its work is done."""
        reading = self._reader.reading(now_s)
        if reading is None or reading.progress.share >= MAX_SHARE or self._steps < LEAST_STEPS:
            return None
        progress = reading.progress
        return Step(progress.counts or progress.percent, now_s - self._step_s, self._longest_s)

    def _read(self, path: str, name: str, now_s: float) -> None:
        try:
            log = open_regular(path)
        except (OSError, Unreadable):  # no such output, or the job has put something else there
            return
        try:
            size, offset = os.fstat(log).st_size, self._offsets.get(name, 0)
            offset = min(offset, size)  # it was shortened: what is left was read
            if size - offset <= BEGIN_BYTES + END_BYTES:
                self._reader.feed(_of_job(os.pread(log, size - offset, offset)), now_s, name)
            else:
                self._reader.feed(_of_job(os.pread(log, BEGIN_BYTES, offset)), now_s, name)
                self._reader.feed(_of_job(os.pread(log, END_BYTES, size - END_BYTES)), now_s, name, is_cut=True)
            self._offsets[name] = size
        except OSError:
            return
        finally:
            os.close(log)

    @classmethod
    def from_plain(cls, fields: Fields) -> RunOutput:
        """Return the output with what was ``kept``. Raises Unreadable if *fields* are not valid."""
        output, offsets = cls(), fields.below("offsets", "the offsets of a run's output")
        output._offsets = {name: offsets.whole(name) for name in LOGS if name in offsets}
        output._reader = ProgressReader.from_plain(fields.plain("reader"))
        if "own_bytes" in fields:  # else an earlier version wrote it
            output._written_bytes, output.own_bytes = fields.whole("written_bytes"), fields.whole("own_bytes")
            output.written_s = fields.number_or_none("written_s")
            output._step = tuple(each.done for each in output._reader.counters.values())
            output._step_s, output._longest_s = fields.number("step_s"), fields.number("longest_s")
            output._steps = fields.whole("steps")
        return output


class OutputWatch:
    """Reads the output of the runs of one worker, in a thread of its own: a log may be on a slow disk."""

    def __init__(self, runs: LiveRuns, clock: Clock) -> None:
        self._runs = runs
        self._clock = clock

    def loop(self, stopping: threading.Event) -> None:
        """Read until *stopping* is set."""
        while not stopping.wait(READ_S):
            for run in self._runs.all():
                if run.shim is not None:
                    run.read_output(self._clock.monotonic_s())
