"""The files of runs whose code travelled: those in the run directories of this host."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from gpuqueue.client import reads
from gpuqueue.client.connection import Connection
from gpuqueue.client.fetching import RunArchive, fetched, listed
from gpuqueue.client.log_places import with_run
from gpuqueue.client.packing import NoCopy, PackedRun
from gpuqueue.errors import Refused
from gpuqueue.model.code_snapshot import CodeSnapshot
from gpuqueue.model.file_patterns import file_patterns, from_directory
from gpuqueue.text.sanitize import in_one_line, plain
from gpuqueue.text.units import format_duration

if TYPE_CHECKING:
    from gpuqueue.model.job import Job
    from gpuqueue.model.run import Record, Run
    from gpuqueue.model.run_files import Fetched, RunFile

#: In a run directory: the files that were kept of the copy of the code, or why they could not be kept.
KEPT, NOT_KEPT = "results.tar", "results.failed"
#: Longest reason that is read, in bytes.
_MOST_REASON_BYTES = 4096


class Files:
    """The files of runs on this host that this account can read."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def fetch(
        self,
        job: int | str,
        patterns: Sequence[str] = (),
        *,
        run: int | None = None,
        to: str | os.PathLike[str] | None = None,
        replace: bool = False,
        seen: Callable[[int], None] | None = None,
        warn: Callable[[str], None] | None = None,
    ) -> Fetched:
        """Write files of a run into the directory *to*, by default those that the job made or changed.

        The files come from the job's copy of its code, or from those that were kept of it (``--keep``).

        Args:
            job: A job, or a member of an array.
            patterns: All files that match one of these, in the syntax of ``.gitignore``.
            run: The number of a run. By default the newest.
            to: A directory, which is made if it is missing. By default ``results-`` and the name of the job.
            replace: Whether to replace files that are there with another content.
            seen: Called with the number of bytes that have arrived.
            warn: Called with a line about what was left out, or if the files may not be the newest.

        Raises:
            JobNotFound: the job does not exist.
            BadRequest: a pattern is invalid, or *to* is a file.
            Refused: the job has no such run or no copy of its code, no file matches, or a file is there with another
                content.
            GpuQueueError: the archive is cut short or damaged, or the disk refuses. Files that are whole stay.

        """
        with self._archive(job, patterns, run, warn) as archive:
            return fetched(archive, to, replace=replace, seen=seen)

    def list(
        self,
        job: int | str,
        patterns: Sequence[str] = (),
        *,
        run: int | None = None,
        warn: Callable[[str], None] | None = None,
    ) -> Sequence[RunFile]:
        """Return the files that :meth:`fetch` would write. The whole archive is read for it.

        Raises:
            GpuQueueError: as for :meth:`fetch`.

        """
        with self._archive(job, patterns, run, warn) as archive:
            return listed(archive)

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
            return PackedRun(str(directory), from_top), "directory"
        except NoCopy:
            if os.path.exists(directory / KEPT):  # noqa: PTH110 - False also without permission
                return PackedRun(str(directory), from_top, kept=KEPT), "kept"
            raise Refused(self._why_gone(job, run, directory)) from None

    def _why_gone(self, job: Job, run: Run, directory: Path) -> str:
        """Return why the run has no files, neither in its directory nor kept ones."""
        with suppress(OSError), (directory / NOT_KEPT).open("rb") as file:
            reason = in_one_line(file.read(_MOST_REASON_BYTES).decode("utf-8", "replace")).strip()
            return f"the files that job {job.label} asked to keep were not kept: {reason}"
        if job.state.is_active and run.attempt == job.attempt:
            return f"the code of job {job.label} is not unpacked yet: try again in a moment"
        keep_s = self._connection.settings.keep_code_s
        kept = f"; it is kept for {format_duration(keep_s)} after the run (setting keep_code)" if keep_s else ""
        return f"the copy of the code of job {job.label} is not there any more{kept}"
