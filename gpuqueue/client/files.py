"""The group ``client.files``: the files of runs whose code travelled, in the run directories of this host.

``gpuqueue-worker pack`` packs them, because the package ``workers`` knows the layout of a run directory.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, TYPE_CHECKING

from gpuqueue.client import reads
from gpuqueue.client.connection import Connection
from gpuqueue.client.fetching import RunArchive, RunFiles
from gpuqueue.client.log_places import with_run
from gpuqueue.errors import GpuQueueError, Refused
from gpuqueue.model.code_snapshot import CodeSnapshot
from gpuqueue.model.file_patterns import file_patterns, from_directory
from gpuqueue.results.kept import absence, kept_files, noted
from gpuqueue.results.pack_request import NO_COPY, PackRequest, pack_command, reason_in
from gpuqueue.snapshot.errors import ArchiveCutShort
from gpuqueue.system.delivered_layout import RESULTS
from gpuqueue.system.safe_open import is_regular
from gpuqueue.text.sanitize import plain
from gpuqueue.text.units import format_duration

if TYPE_CHECKING:
    from gpuqueue.model.job import Job
    from gpuqueue.model.run import Record, Run
    from gpuqueue.model.run_files import KeptFiles

_FIRST_BYTES, _MOST_ERRORS_BYTES = 512, 2**16


class Files(RunFiles):
    """The files of runs on this host that this account can read."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @contextmanager
    def _archive(
        self,
        job: int | str,
        patterns: Sequence[str],
        number: int | None,
        warn: Callable[[str], None] | None,  # noqa: ARG002 - files of this host are the newest
        *,
        kept: bool,
    ) -> Iterator[RunArchive]:
        wanted = file_patterns("patterns", patterns)
        record, run, directory = self._found(job, number)
        packed, source = self._packed(record.job, run, directory, wanted, only_kept=kept)
        with closing(packed):
            yield RunArchive(label=record.job.label, patterns=wanted, source=source, content=packed, run=run.attempt)

    def kept(self, job: int | str, *, run: int | None = None) -> KeptFiles:
        """Return what is there of the files that a job asked to keep of a run, by default of its newest."""
        record, of, directory = self._found(job, run)
        return kept_files(self._connection.settings, record.job, of, [directory])

    def _found(self, job: int | str, number: int | None) -> tuple[Record, Run, Path]:
        """Return the job, the run *number* or the newest one, and its directory."""
        record = reads.newest(self._connection, job) if number is None else reads.show(self._connection, job)
        return (record, *self._run_of(record, number))

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
        if run.host != settings.own_host and not (settings.runs_dir in directory.parents and directory.exists()):
            raise Refused(f"the files of job {job.label} are on host {run.host}, in {directory}: fetch them there")
        return run, directory

    def _packed(
        self, job: Job, run: Run, directory: Path, patterns: Sequence[str], *, only_kept: bool
    ) -> tuple[PackedRun, str]:
        """Return the archive of the run's files, and its source.

        Raises:
            Refused: there are no files any more, or not yet.
            GpuQueueError: they cannot be read.

        """
        from_top = from_directory(patterns, CodeSnapshot.parse(job.spec.snapshot or "").directory)
        if not only_kept:
            with suppress(NoCopy):
                return PackedRun(PackRequest(directory=str(directory), patterns=from_top)), "directory"
        if is_regular(directory / RESULTS):
            return PackedRun(PackRequest(directory=str(directory), patterns=from_top, source=RESULTS)), "kept"
        if only_kept:
            raise absence(kept_files(self._connection.settings, job, run, [directory]), job.label)
        note = noted([directory])
        raise absence(note, job.label) if note is not None else Refused(self._why_gone(job, run))

    def _why_gone(self, job: Job, run: Run) -> str:
        """Return why the run has no files, neither in its directory nor kept ones."""
        if job.state.is_active and run.attempt == job.attempt:
            return f"the code of job {job.label} is not unpacked yet: try again in a moment"
        keep_s = self._connection.settings.keep_code_s
        kept = f"; it is kept for {format_duration(keep_s)} after the run (setting keep_code)" if keep_s else ""
        return f"the copy of the code of job {job.label} is not there any more{kept}"


class NoCopy(GpuQueueError):
    """The run has no copy of its code, or none any more."""


class PackedRun:
    """The output of ``gpuqueue-worker pack`` for *request*, as a file that is read once.

    Raises:
        NoCopy: there is no copy of the code.
        GpuQueueError: the program is not installed, or cannot read the directory.

    """

    def __init__(self, request: PackRequest) -> None:
        self._errors: IO[bytes] = TemporaryFile()  # noqa: SIM115 - closed by close
        try:
            with request.as_input() as asked:
                self._process = subprocess.Popen(
                    pack_command(), stdin=asked, stdout=subprocess.PIPE, stderr=self._errors, bufsize=0
                )
        except OSError as error:
            raise GpuQueueError(f"gpuqueue-worker cannot be run: {error.strerror}") from None
        try:
            self._first = self._output(_FIRST_BYTES)
        except BaseException:
            self.close()
            raise
        if not self._first:
            code = self._process.wait()
            trouble = self._trouble()
            self.close()
            raise NoCopy(trouble) if code == NO_COPY else GpuQueueError(f"the files cannot be read: {trouble}")

    def read(self, size: int, /) -> bytes:
        """Return at most *size* bytes, none at the end.

        Raises:
            ArchiveCutShort: the program has failed.

        """
        if self._first:
            found, self._first = self._first[:size], self._first[size:]
            return found
        found = self._output(size)
        if not found and self._process.wait() != 0:
            raise ArchiveCutShort(f"the archive was cut short: {self._trouble()}")
        return found

    def close(self) -> None:
        """End the program if it still runs."""
        with suppress(ProcessLookupError):
            self._process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._errors.close()

    def _output(self, size: int) -> bytes:
        return self._process.stdout.read(size) or b"" if self._process.stdout is not None else b""

    def _trouble(self) -> str:
        return reason_in(self._written(), self._process.returncode)

    def _written(self) -> bytes:
        """Return the beginning of the program's errors."""
        self._errors.seek(0)
        return self._errors.read(_MOST_ERRORS_BYTES)
