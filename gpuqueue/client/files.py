"""The group ``client.files``: the files of runs whose code travelled, in the run directories of this host.

``gpuqueue-worker pack`` packs them, because the package ``workers`` knows the layout of a run directory.
"""

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
from gpuqueue.client.run_logs import own_log
from gpuqueue.errors import GpuQueueError, Refused
from gpuqueue.files.errors import ArchiveCutShort
from gpuqueue.files.kept import absence, kept_files, noted
from gpuqueue.files.pack_program import NO_COPY, PackProgram, PackRequest
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.code_snapshot import CodeSnapshot
from gpuqueue.model.file_patterns import file_patterns, from_directory
from gpuqueue.system.delivered_layout import RESULTS, TOKEN
from gpuqueue.system.safe_open import is_regular
from gpuqueue.text.sanitize import plain
from gpuqueue.text.units import format_duration

if TYPE_CHECKING:
    from gpuqueue.model.job import Job
    from gpuqueue.model.run import Record, Run
    from gpuqueue.model.run_files import KeptFiles
    from gpuqueue.settings.settings import Settings

_FIRST_BYTES = 512


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
        wanted, place = file_patterns("patterns", patterns), self._place(job, number)
        packed, source = self._packed(place, wanted, only_kept=kept)
        with closing(packed):
            yield RunArchive(
                label=place.job.label, patterns=wanted, source=source, content=packed, run=place.run.attempt
            )

    def kept(self, job: int | str, *, run: int | None = None) -> KeptFiles:
        """Return what is there of the files that a job asked to keep of a run, by default of its newest."""
        place = self._place(job, run)
        return kept_files(self._connection.settings, place.job, place.run, place.kept)

    def _place(self, job: int | str, number: int | None) -> Place:
        """Return where the files of the run *number*, or of the newest one, are on this host.

        Raises:
            Refused: the job has no such run, or it was on another host.

        """
        record = reads.newest(self._connection, job) if number is None else reads.show(self._connection, job)
        place = Place.of(self._connection.settings, record, number)
        if place.directory is None:
            where = f"on host {place.run.host}, in {Path(place.run.log_path or '').parent}"
            raise Refused(f"the files of job {place.job.label} are {where}: fetch them there")
        return place

    def _packed(self, place: Place, patterns: Sequence[str], *, only_kept: bool) -> tuple[PackedRun, str]:
        """Return the archive of the run's files, and its source.

        Raises:
            Refused: there are no files any more, or not yet.
            GpuQueueError: they cannot be read.

        """
        settings, directory = self._connection.settings, str(place.directory)
        from_top = from_directory(patterns, place.code.directory)
        if not only_kept:
            with suppress(NoCopy):
                return PackedRun(PackRequest(directory=directory, patterns=from_top)), "directory"
        if is_regular(Path(directory, RESULTS)):
            return PackedRun(PackRequest(directory=directory, patterns=from_top, source=RESULTS)), "kept"
        if only_kept:
            raise absence(kept_files(settings, place.job, place.run, place.kept), place.job.label)
        raise Refused(place.why_empty(settings))


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where the files of a run are. ``directory`` is its run directory, None if that is not on this host.

    ``kept`` are the directories that may have an archive of kept files, or the reason why there is none.
    """

    job: Job
    code: CodeSnapshot
    run: Run
    directory: Path | None
    kept: tuple[Path, ...]

    @classmethod
    def of(
        cls, settings: Settings, record: Record, number: int | None = None, *, none: type[Refused] = Refused
    ) -> Place:
        """Return where the files of the run *number* of *record*, by default of its newest, are.

        Raises:
            Refused: the job is an array, or has no such run.
            none: it has not run yet, or its code did not travel.

        """
        job = record.job
        if job.spec.array is not None:
            one = f"{job.id}_{next(iter(job.spec.array.indexes))}"
            raise Refused(f"array {job.id} has no files of its own: name a member, such as {one}")
        run = (record if number is None else with_run(record, number)).last_run
        if run is None:
            raise none(f"job {job.label} ({job.state}) has no files yet: it has not run")
        if job.spec.snapshot is None:
            where = f"in {plain(job.spec.cwd)} on {run.host}"
            raise none(f"job {job.label} ran {where}: its code did not travel, copy files from there")
        code, directory = CodeSnapshot.parse(job.spec.snapshot), _directory(settings, run)
        return cls(job=job, code=code, run=run, directory=directory, kept=() if directory is None else (directory,))

    def why_empty(self, settings: Settings, trouble: str = "") -> str:
        """Return why there are no files: none in the directory, because of *trouble*, and no kept ones."""
        label, note = self.job.label, noted(self.kept)
        if note is not None:
            return str(absence(note, label))
        if self.directory is None:
            return f"the files of job {label} cannot be had from host {self.run.host}: {trouble}"
        if self.job.state.is_active and self.run.attempt == self.job.attempt:
            return f"the code of job {label} is not unpacked yet: try again in a moment"
        gone, keep_s = f"the copy of the code of job {label} is not there any more", settings.keep_code_s
        if keep_s is None:
            return gone
        return f"{gone}; it is kept for {format_duration(keep_s)} after the run (setting keep_code)"


def _directory(settings: Settings, run: Run) -> Path | None:
    """Return the directory of *run* if it is on this host."""
    if run.log_path:
        path = own_log(settings, run)
        return None if path is None else path.parent
    is_here = run.host == settings.own_host and TOKEN.fullmatch(run.token) is not None
    return settings.runs_dir / str(run.job_id) / run.token if is_here else None


class NoCopy(GpuQueueError):
    """The run has no copy of its code, or none any more."""


class PackedRun:
    """The output of ``gpuqueue-worker pack`` for *request*, as a file that is read once.

    Raises:
        NoCopy: there is no copy of the code.
        GpuQueueError: the program is not installed, or cannot read the directory.

    """

    def __init__(self, request: PackRequest) -> None:
        try:
            self._program = PackProgram(request)
        except OSError as error:
            raise GpuQueueError(f"gpuqueue-worker cannot be run: {error.strerror}") from None
        try:
            self._first = os.read(self._program.output, _FIRST_BYTES)
            ending = None if self._first else self._program.ending()
        except BaseException:
            self.close()
            raise
        if ending is not None:
            self.close()
            code, reason = ending
            raise NoCopy(reason) if code == NO_COPY else GpuQueueError(f"the files cannot be read: {reason}")

    def read(self, size: int, /) -> bytes:
        """Return at most *size* bytes, none at the end.

        Raises:
            ArchiveCutShort: the program has failed.

        """
        if self._first:
            found, self._first = self._first[:size], self._first[size:]
            return found
        found = os.read(self._program.output, size)
        if not found:
            code, reason = self._program.ending()
            if code:
                raise ArchiveCutShort(f"the archive was cut short: {reason}")
        return found

    def close(self) -> None:
        """End the program if it still runs."""
        self._program.close()
