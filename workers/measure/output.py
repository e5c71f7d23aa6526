"""Reads the output of the live runs for their progress, a bounded part of it each second."""

from __future__ import annotations

import dataclasses
import os
import re
import threading
from dataclasses import field
from typing import TYPE_CHECKING, Any

from gpuqueue.clock import Clock
from gpuqueue.codec.wire import to_stored
from gpuqueue.errors import Unreadable
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.progress import MAX_SHARE
from gpuqueue.model.progress_reader import ProgressReader
from gpuqueue.system import progress_file
from gpuqueue.system.logs import LOGS
from gpuqueue.system.safe_open import open_regular
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


@dataclasses.dataclass(slots=True)
class OutputFigures:
    """What the output of a run has shown, and how far it was read: what another worker continues."""

    offsets: dict[str, int] = field(default_factory=dict)
    reader: ProgressReader = field(default_factory=ProgressReader)
    #: What the run has written so far, in bytes, without the lines that the worker has added to its log, and when it
    #: wrote last, None before that.
    written_bytes: int = 0
    own_bytes: int = 0
    written_s: float | None = None
    #: Since when all counters show the same, how long they have shown the same before, and the number of steps.
    step_s: float = 0.0
    longest_s: float = 0.0
    steps: int = 0


class RunOutput(OutputFigures):
    """The output of one run: how far it was read, and what it has shown. One thread reads.

    ``kept`` is all that as plain values, for a worker that adopts the run. Any thread may take it.
    """

    def __init__(self, command: str = "", **figures: Any) -> None:
        super().__init__(**figures)
        self.reader.declare(command)
        self._shown: tuple[str, float, bool, bool] | None = None
        self._shown_s = 0.0
        self.kept: dict[str, Any] | None = None
        #: Guards ``own_bytes``: another thread adds the lines.
        self.adding = threading.Lock()
        #: What all counters show.
        self._step = tuple(each.done for each in self.reader.counters.values())

    def read(self, directory: RunDir, now_s: float) -> None:
        """Read what is new at *now_s*, in seconds since the start of the run, and write the run's progress.

        Raises:
            OSError: The progress cannot be written now.

        """
        self._note_size(directory, now_s)
        for name in LOGS:
            self._read(f"{directory.path}/{name}", name, now_s)
        self._note_step(now_s)
        self.kept = to_stored(self)
        self.kept.get("reader", {}).pop("pending", None)  # unfinished lines are read again
        reading = self.reader.reading(now_s)
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
        if written_bytes != self.written_bytes:
            self.written_bytes, self.written_s = written_bytes, now_s

    def _note_step(self, now_s: float) -> None:
        step = tuple(each.done for each in self.reader.counters.values())
        if step != self._step:
            if self._step:
                self.longest_s, self.steps = max(self.longest_s, now_s - self.step_s), self.steps + 1
            self._step, self.step_s = step, now_s

    def step(self, now_s: float) -> Step | None:
        """Return the step at which the run is, None if its output has shown none or too few, or its work is done."""
        reading = self.reader.reading(now_s)
        if reading is None or reading.progress.share >= MAX_SHARE or self.steps < LEAST_STEPS:
            return None
        progress = reading.progress
        return Step(progress.counts or progress.percent, now_s - self.step_s, self.longest_s)

    def _read(self, path: str, name: str, now_s: float) -> None:
        try:
            log = open_regular(path)
        except (OSError, Unreadable):  # no such output, or the job has put something else there
            return
        try:
            size, offset = os.fstat(log).st_size, self.offsets.get(name, 0)
            offset = min(offset, size)  # it was shortened: what is left was read
            if size - offset <= BEGIN_BYTES + END_BYTES:
                self.reader.feed(_of_job(os.pread(log, size - offset, offset)), now_s, name)
            else:
                self.reader.feed(_of_job(os.pread(log, BEGIN_BYTES, offset)), now_s, name)
                self.reader.feed(_of_job(os.pread(log, END_BYTES, size - END_BYTES)), now_s, name, is_cut=True)
            self.offsets[name] = size
        except OSError:
            return
        finally:
            os.close(log)


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
