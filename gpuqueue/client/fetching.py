"""Lists and fetches the files in the archive of a run, which came from this host or from a service."""

from __future__ import annotations

import contextlib
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from gpuqueue.errors import Refused
from gpuqueue.files.archive import ArchiveReader
from gpuqueue.files.manifest import Source
from gpuqueue.files.receive import receive
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model import validation
from gpuqueue.model.run_files import Fetched, KeptFiles, RunFile
from gpuqueue.text.sanitize import plain

#: The ignore file in a directory of results that this program has named.
_IGNORE = "# Made by gpuqueue fetch: results are no code.\n*\n"
#: Why a file of the job is not in its place.
_TAKEN = "is not written, because gpuqueue puts its own one there: to get it, name another directory with --to"


@dataclass(frozen=True, kw_only=True, slots=True)
class RunArchive:
    """The archive of the files of a run that match *patterns*, or that the job made or changed if there are none.

    ``label`` is the name of the job, ``run`` the number of the run, and ``source`` is ``directory`` or ``kept``.
    """

    label: str
    patterns: tuple[str, ...]
    source: str
    content: Source
    run: int | None = None


class RunFiles(ABC):
    """The group ``client.files``. :class:`~gpuqueue.client.files.Files` and RemoteFiles find the archive of a run."""

    def fetch(
        self,
        job: int | str,
        patterns: Sequence[str] = (),
        *,
        run: int | None = None,
        to: str | os.PathLike[str] | None = None,
        replace: bool = False,
        kept: bool = False,
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
            kept: Whether to take the files that were kept, also if the copy of the code is still there.
            seen: Called with the number of bytes that have arrived.
            warn: Called with a line about what was left out, or if the files may not be the newest.

        Raises:
            JobNotFound: the job does not exist.
            BadRequest: a pattern is invalid, or *to* is a file.
            Refused: the job has no such run or no copy of its code, no file matches, or a file is there with another
                content.
            GpuQueueError: the archive is cut short or damaged, or the disk refuses. Files that are whole stay.

        """
        check_patterns(patterns)
        with self._archive(job, patterns, run, warn, kept=kept) as archive:
            return fetched(archive, to, replace=replace, seen=seen, warn=warn)

    def list(
        self,
        job: int | str,
        patterns: Sequence[str] = (),
        *,
        run: int | None = None,
        kept: bool = False,
        warn: Callable[[str], None] | None = None,
    ) -> Sequence[RunFile]:
        """Return the files that :meth:`fetch` would write. The whole archive is read for it.

        Raises:
            GpuQueueError: as for :meth:`fetch`.

        """
        check_patterns(patterns)
        with self._archive(job, patterns, run, warn, kept=kept) as archive:
            reader = ArchiveReader(archive.content)
            found = [
                RunFile(path=each.path, size_bytes=each.size_bytes, target=each.target) for each in reader.members()
            ]
            _report(reader.notes, warn)
            if not found and not reader.notes:
                raise _nothing(archive)
            return found

    @abstractmethod
    def kept(self, job: int | str, *, run: int | None = None) -> KeptFiles:
        """Return what is there of the files that a job asked to keep of a run, by default of its newest.

        Raises:
            JobNotFound: the job does not exist.
            Refused: the job has no such run, or no copy of its code.

        """

    @abstractmethod
    def _archive(
        self,
        job: int | str,
        patterns: Sequence[str],
        number: int | None,
        warn: Callable[[str], None] | None,
        *,
        kept: bool,
    ) -> AbstractContextManager[RunArchive]:
        """Return a context with the archive of the run *number* of *job*, by default of its newest run.

        With *kept*, it has the kept files, also if the copy of the code is there.
        """


def check_patterns(patterns: Sequence[str]) -> None:
    """Check that each of *patterns* can match a file.

    Raises:
        BadRequest: one cannot.

    """
    if patterns:
        from gpuqueue.files.ignore import rules_of  # noqa: PLC0415 - lazy import: it needs pathspec

        rules_of(patterns)


def fetched(
    archive: RunArchive,
    to: str | os.PathLike[str] | None,
    *,
    replace: bool,
    seen: Callable[[int], None] | None = None,
    warn: Callable[[str], None] | None = None,
) -> Fetched:
    """Write the files of *archive* into the directory *to*, by default ``results-`` and the name of the job.

    *warn* is called with what was left out where they come from.

    Raises:
        Refused: no file matches.
        GpuQueueError: as for :func:`gpuqueue.files.receive.receive`.

    """
    own = f"results-{archive.label}"
    directory = validation.path_or_none("to", to) or own
    taken = {".gitignore": _TAKEN} if directory == own else {}
    try:
        found = receive(archive.content, directory, replace=replace, taken=taken, seen=seen)
    finally:
        if directory == own:
            _add_ignore_file(own)
    _report(found.notes, warn)
    if not found.files and not found.left_out and not found.notes:
        raise _nothing(archive)
    return Fetched(
        files=found.files,
        size_bytes=found.size_bytes,
        skipped=found.skipped,
        left_out=tuple(found.left_out),
        notes=found.notes,
        directory=directory,
        source=archive.source,
        run=archive.run,
    )


def _report(notes: Sequence[str], warn: Callable[[str], None] | None) -> None:
    if warn is not None:
        for line in notes:
            warn(line)


def _add_ignore_file(directory: str) -> None:
    """Leave the results out of git, and of the code of the next submit."""
    path = os.path.join(directory, ".gitignore")  # noqa: PTH118 - as receive
    with contextlib.suppress(OSError), open(path, "x", encoding="utf-8") as file:  # noqa: PTH123 - as receive
        file.write(_IGNORE)


def _nothing(archive: RunArchive) -> Refused:
    label, kept = archive.label, "kept file" if archive.source == "kept" else "file"
    every = f"gpuqueue fetch --list {label} '**' shows all"
    if not archive.patterns and archive.source == "kept":
        return Refused(f"no file of job {label} matched what it asked to keep, so there are no kept files")
    if archive.patterns:
        return Refused(f"no {kept} of job {label} matches {plain(' '.join(archive.patterns))}: {every}")
    return Refused(f"job {label} has made or changed no file in its copy of the code: {every}")
