"""The group ``client.files`` over the service. The methods are those of :class:`gpuqueue.client.files.Files`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gpuqueue.client.fetching import RunArchive, RunFiles
from gpuqueue.client.remote.link import WARNING, Link, segment
from gpuqueue.model import job_ref, validation
from gpuqueue.model.file_patterns import file_patterns
from gpuqueue.model.run_files import FILES_RUN, FILES_SOURCE, KeptFiles

if TYPE_CHECKING:
    from gpuqueue.client.remote.http import Answer

#: How long the service may take to begin its answer, in seconds: longer than it waits for a host that searches.
BEGINS_S = 660.0


class RemoteFiles(RunFiles):
    """The files of runs that the service can read, on any of its hosts."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def kept(self, job: int | str, *, run: int | None = None) -> KeptFiles:
        """Return what is there of the files that a job asked to keep of a run, by default of its newest."""
        name = str(job_ref.one_job(job))
        query = {"run": None if run is None else validation.count("run", run)}
        return self._link.get(KeptFiles, f"/jobs/{segment(name)}/files/kept", query)

    @contextmanager
    def _archive(
        self,
        job: int | str,
        patterns: Sequence[str],
        number: int | None,
        warn: Callable[[str], None] | None,
        *,
        kept: bool,
    ) -> Iterator[RunArchive]:
        name, wanted = str(job_ref.one_job(job)), file_patterns("patterns", patterns)
        query = {
            "run": None if number is None else validation.count("run", number),
            "pattern": wanted,
            "kept": "true" if kept else None,
        }
        with self._link.opened(f"/jobs/{segment(name)}/files", query, begins_s=BEGINS_S) as answer:
            if warn is not None and WARNING in answer.headers:
                warn(answer.headers[WARNING])
            run = answer.headers.get(FILES_RUN, "")
            yield RunArchive(
                label=name,
                patterns=wanted,
                source=answer.headers.get(FILES_SOURCE, ""),
                content=_Body(self._link, answer),
                run=int(run) if run.isascii() and run.isdigit() else None,
            )


class _Body:
    """The body of an answer, as a file that is read once. At most one piece of it is in memory."""

    def __init__(self, link: Link, answer: Answer) -> None:
        self._link, self._pieces = link, answer.pieces()
        self._rest = memoryview(b"")

    def read(self, size: int, /) -> bytes:
        """Return at most *size* bytes, none at the end.

        Raises:
            ServiceUnreachable: the connection was lost.

        """
        if not self._rest:
            with self._link.reporting():
                self._rest = memoryview(next(self._pieces, b""))
        found, self._rest = bytes(self._rest[:size]), self._rest[size:]
        return found
