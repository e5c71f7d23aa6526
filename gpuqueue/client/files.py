"""The files of runs whose code travelled: those in the run directories of this host."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from gpuqueue.client import reads
from gpuqueue.client.connection import Connection
from gpuqueue.client.fetching import RunArchive, RunFiles
from gpuqueue.client.log_places import with_run
from gpuqueue.client.packing import NoCopy, PackedRun
from gpuqueue.errors import Refused
from gpuqueue.model.code_snapshot import CodeSnapshot
from gpuqueue.model.file_patterns import file_patterns, from_directory
from gpuqueue.results.pack_request import PackRequest
from gpuqueue.system.delivered_layout import FAILED, RESULTS
from gpuqueue.text.sanitize import in_one_line, plain
from gpuqueue.text.units import format_duration

if TYPE_CHECKING:
    from gpuqueue.model.job import Job
    from gpuqueue.model.run import Record, Run

#: Longest reason that is read, in bytes.
_MOST_REASON_BYTES = 4096


class Files(RunFiles):
    """The files of runs on this host that this account can read."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @contextmanager
    def _archive(
        self, job: int | str, patterns: Sequence[str], number: int | None, warn: Callable[[str], None] | None
    ) -> Iterator[RunArchive]:
        wanted = file_patterns("patterns", patterns)
        record = reads.newest(self._connection, job) if number is None else reads.show(self._connection, job)
        run, directory = self._run_of(record, number)
        packed, source = self._packed(record.job, run, directory, wanted)
        with closing(packed):
            yield RunArchive(label=record.job.label, patterns=wanted, source=source, content=packed, run=run.attempt)
            if warn is not None:
                for line in packed.notes():
                    warn(line)

    def _run_of(self, record: Record, number: int | None) -> tuple[Run, Path]:
        """Return the run whose files are meant, and its directory.

        Raises:
            Refused: the job is an array or has no such run or no copy of its code, or the run was on another host.

        """
        job = record.job
        if job.spec.array is not None:
            one = f"{job.id}_{next(iter(job.spec.array.indexes))}"
            raise Refused(f"array {job.id} has no files of its own: name a member, such as {one}")
        runs = record.runs if number is None else with_run(record, number).runs
        run = next((run for run in reversed(runs) if run.log_path), None)
        if run is None:
            raise Refused(f"job {job.label} ({job.state}) has no files yet: it has not run")
        if job.spec.snapshot is None:
            raise Refused(
                f"job {job.label} ran in {plain(job.spec.cwd)} on {run.host}: its code did not travel, copy files "
                "from there"
            )
        directory = Path(run.log_path or "").parent
        settings = self._connection.settings
        if run.host != settings.host and not (settings.runs_dir in directory.parents and directory.exists()):
            raise Refused(f"the files of job {job.label} are on host {run.host}, in {directory}: fetch them there")
        return run, directory

    def _packed(self, job: Job, run: Run, directory: Path, patterns: Sequence[str]) -> tuple[PackedRun, str]:
        """Return the archive of the run's files, and its source.

        Raises:
            Refused: there are no files any more, or not yet.
            GpuQueueError: they cannot be read.

        """
        from_top = from_directory(patterns, CodeSnapshot.parse(job.spec.snapshot or "").directory)
        try:
            return PackedRun(PackRequest(directory=str(directory), patterns=from_top)), "directory"
        except NoCopy:
            if os.path.exists(directory / RESULTS):  # noqa: PTH110 - False also without permission
                return PackedRun(PackRequest(directory=str(directory), patterns=from_top, source=RESULTS)), "kept"
            raise Refused(self._why_gone(job, run, directory)) from None

    def _why_gone(self, job: Job, run: Run, directory: Path) -> str:
        """Return why the run has no files, neither in its directory nor kept ones."""
        with suppress(OSError), (directory / FAILED).open("rb") as file:
            reason = in_one_line(file.read(_MOST_REASON_BYTES).decode("utf-8", "replace")).strip()
            return f"the files that job {job.label} asked to keep were not kept: {reason}"
        if job.state.is_active and run.attempt == job.attempt:
            return f"the code of job {job.label} is not unpacked yet: try again in a moment"
        keep_s = self._connection.settings.keep_code_s
        kept = f"; it is kept for {format_duration(keep_s)} after the run (setting keep_code)" if keep_s else ""
        return f"the copy of the code of job {job.label} is not there any more{kept}"
