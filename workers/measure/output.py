"""Reads the output of the live runs for their progress, a bounded part of it each second."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any

from gpuqueue.clock import Clock
from gpuqueue.errors import Unreadable
from gpuqueue.model.progress_reader import ProgressReader
from gpuqueue.system import progress_file
from gpuqueue.system.logs import LOGS
from gpuqueue.system.safe_open import open_regular
from gpuqueue.text.json_fields import Fields
from workers.run.directory import RunDir

if TYPE_CHECKING:
    from workers.measure.active_runs import LiveRuns

#: How often the output of a run is read, in seconds.
READ_S = 1.0
#: What is read of more output than this: so many bytes of its beginning and of its end. The rest is left out.
BEGIN_BYTES, END_BYTES = 8 * 1024, 24 * 1024


class RunOutput:
    """The output of one run: how far it was read, and what it has shown. One thread reads.

    ``kept`` is all that as plain values, for a worker that adopts the run. Any thread may take it.
    """

    def __init__(self, command: str = "") -> None:
        self._reader = ProgressReader()
        self._reader.declare(command)
        self._offsets: dict[str, int] = {}
        self._shown: tuple[str, float, bool] | None = None
        self._shown_s = 0.0
        self.kept: dict[str, Any] | None = None

    def read(self, directory: RunDir, now_s: float) -> None:
        """Read what is new at *now_s*, in seconds since the start of the run, and write the run's progress.

        Raises:
            OSError: The progress cannot be written now.

        """
        for name in LOGS:
            self._read(f"{directory.path}/{name}", name, now_s)
        self.kept = {"offsets": {**self._offsets}, "reader": self._reader.to_plain()}
        progress = self._reader.progress(now_s)
        if progress is None:
            if self._shown is not None:
                directory.drop_progress()
            self._shown = None
            return
        shown = (progress.counts, round(progress.share, 3), progress.left_s is None)
        if shown != self._shown or now_s - self._shown_s >= progress_file.RENEW_S:
            directory.keep_progress(progress)
            self._shown, self._shown_s = shown, now_s

    def _read(self, path: str, name: str, now_s: float) -> None:
        try:
            log = open_regular(path)
        except (OSError, Unreadable):  # no such output, or the job has put something else there
            return
        try:
            size, offset = os.fstat(log).st_size, self._offsets.get(name, 0)
            offset = min(offset, size)  # it was shortened: what is left was read
            if size - offset <= BEGIN_BYTES + END_BYTES:
                self._reader.feed(os.pread(log, size - offset, offset), now_s, name)
            else:
                self._reader.feed(os.pread(log, BEGIN_BYTES, offset), now_s, name)
                self._reader.feed(os.pread(log, END_BYTES, size - END_BYTES), now_s, name, is_cut=True)
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
