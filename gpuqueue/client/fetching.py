"""Lists and fetches the files in the archive of a run, which came from this host or from a service."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from gpuqueue.errors import Refused
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model import validation
from gpuqueue.model.run_files import Fetched, RunFile
from gpuqueue.snapshot.archive import ArchiveReader
from gpuqueue.snapshot.receive import receive
from gpuqueue.snapshot.stream import Source
from gpuqueue.text.sanitize import plain


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


def fetched(
    archive: RunArchive,
    to: str | os.PathLike[str] | None,
    *,
    replace: bool,
    seen: Callable[[int], None] | None,
) -> Fetched:
    """Write the files of *archive* into the directory *to*, by default ``results-`` and the name of the job.

    Raises:
        Refused: no file matches.
        GpuQueueError: as for :func:`gpuqueue.snapshot.receive.receive`.

    """
    directory = validation.path_or_none("to", to) or f"results-{archive.label}"
    found = receive(archive.content, directory, replace=replace, seen=seen)
    if not found.files and not found.left_out:
        raise _nothing(archive)
    return Fetched(
        files=found.files,
        size_bytes=found.size_bytes,
        skipped=found.skipped,
        left_out=tuple(found.left_out),
        directory=directory,
        source=archive.source,
        run=archive.run,
    )


def listed(archive: RunArchive) -> Sequence[RunFile]:
    """Return the files of *archive*, with those that :func:`fetched` would leave out.

    Raises:
        Refused: no file matches.
        GpuQueueError: the archive is damaged or cut short.

    """
    members = ArchiveReader(archive.content).members()
    found = [RunFile(path=each.path, size_bytes=each.size_bytes, target=each.target) for each in members]
    if not found:
        raise _nothing(archive)
    return found


def _nothing(archive: RunArchive) -> Refused:
    label, kept = archive.label, "kept file" if archive.source == "kept" else "file"
    every = f"gpuqueue fetch --list {label} '**' shows all"
    if archive.patterns:
        return Refused(f"no {kept} of job {label} matches {plain(' '.join(archive.patterns))}: {every}")
    return Refused(f"job {label} has made or changed no file in its copy of the code: {every}")
