"""The routes by which the files of a run come back: those that its job has made or changed in its copy of the code.

They come as a stream, from a process on this host or from the relay of another.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from tempfile import TemporaryFile
from typing import IO, Annotated, Protocol

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gpuqueue.client.files import Place
from gpuqueue.errors import GpuQueueError
from gpuqueue.files.kept import absence, kept_files
from gpuqueue.files.pack_program import NO_COPY, PackRequest, pack_command, reason_in
from gpuqueue.model.access import Action
from gpuqueue.model.file_patterns import file_patterns, from_directory
from gpuqueue.model.run_files import FILES_RUN, FILES_SOURCE, FilesSource, KeptFiles
from gpuqueue.service.call import Call
from gpuqueue.service.relay_requests import SEARCH_S, SILENCE_S, HostRun
from gpuqueue.service.responses import NotHere, StreamedFile
from gpuqueue.service.routes.described import Download, Operations, Query, operation, route
from gpuqueue.service.routes.logs import RunNumber, run_record
from gpuqueue.service.site import Site, site_of
from gpuqueue.system.delivered_layout import RESULTS, TOKEN
from gpuqueue.system.safe_open import is_regular
from gpuqueue.text.sanitize import in_one_line

router = Operations("files")
TAR = "application/x-tar"
#: The program that packs files. Empty: ``gpuqueue-worker`` beside this interpreter.
PROGRAM = ""
#: Most bytes that are read at once.
PART_BYTES = 256 * 1024


@route(router, "GET /jobs/{name}/files", answer=bytes, media_type=TAR)
async def fetch_files(
    request: Request,
    name: str,
    run: RunNumber = None,
    patterns: Annotated[
        list[str] | None,
        Query(alias="pattern", description="Only files that match one of these, in the syntax of .gitignore."),
    ] = None,
    *,
    kept: Annotated[bool, Query(description="Take the kept files, also if the copy of the code is there.")] = False,
    _download: Download = None,
) -> Response:
    """Return an archive (tar) of the files that a run has made or changed in its copy of the code.

    With patterns, all files that match one of them. The header ``Gpuqueue-Run`` has the number of the run, and
    ``Gpuqueue-Source`` says where the files come from: the run's ``directory``, or what was ``kept`` after its end. An
    archive without its end was cut short.
    """
    wanted = file_patterns("pattern", patterns or [])
    site = site_of(request)
    account, place = await site.work(request, lambda call: (call.caller.account, _place(call, name, run)))
    from_top = from_directory(wanted, place.code.directory)
    give_back = site.archives.take(account)
    try:
        archive, source = await _found(site, place, from_top, give_back, only_kept=kept)
    except BaseException:
        give_back()
        raise
    headers = {
        FILES_RUN: str(place.run.attempt),
        FILES_SOURCE: str(source),
        "Content-Disposition": f'attachment; filename="job-{place.job.label}-run-{place.run.attempt}.tar"',
        "X-Accel-Buffering": "no",
    }
    return _ArchiveResponse(archive, headers, place.job.label)


@operation(router, "GET /jobs/{name}/files/kept")
def kept_files_of(call: Call, name: str, run: RunNumber = None) -> KeptFiles:
    """Return what is there of the files that a job asked to keep of a run: their size, or why there are none."""
    place = _place(call, name, run)
    return kept_files(call.connection.settings, place.job, place.run, place.kept)


def _place(call: Call, name: str, attempt: int | None) -> Place:
    """Return where the files of a run are, for a caller who may read its output and its code.

    Raises:
        Forbidden: the caller may not.
        Refused: the job is an array.
        NotHere: it has not run yet, or its code did not travel.

    """
    record = run_record(call, name, attempt)
    call.must(Action.SEE_ARGUMENTS, record.job.spec.account)  # patterns can name any file of the code
    settings = call.connection.settings
    place = Place.of(settings, record, none=NotHere)
    if not TOKEN.fullmatch(place.run.token):
        return place
    return replace(place, kept=(*place.kept, settings.delivered_dir / str(place.run.job_id) / place.run.token))


async def _found(
    site: Site, place: Place, patterns: tuple[str, ...], at_end: Callable[[], None], *, only_kept: bool
) -> tuple[Archive, FilesSource]:
    """Return the archive, and where its files come from. *at_end* is called when the archive is closed.

    Raises:
        NotHere: there are no files; the message says why, and what can be done.
        CutShort: the program that packs them has failed.

    """
    failure: GpuQueueError | None = None
    if not only_kept:
        try:
            return await begun_archive(await _live(site, place, patterns), at_end), FilesSource.DIRECTORY
        except (NotHere, CutShort) as error:
            failure = error
    for each in place.kept:
        if is_regular(each / RESULTS):
            request = PackRequest(directory=str(each), patterns=patterns, source=RESULTS)
            return await begun_archive(await Packed.start(request), at_end), FilesSource.KEPT
    if failure is None:
        raise NotHere(str(absence(kept_files(site.settings, place.job, place.run, place.kept), place.job.label)))
    if isinstance(failure, CutShort):
        raise failure
    raise NotHere(place.why_empty(site.settings, str(failure)))


async def _live(site: Site, place: Place, patterns: tuple[str, ...]) -> Source:
    if place.directory is None:
        return site.relays.files(HostRun.of(place.run), patterns)
    return await Packed.start(PackRequest(directory=str(place.directory), patterns=patterns))


class _ArchiveResponse(StreamedFile):
    """The answer with an archive."""

    def __init__(self, archive: Archive, headers: dict[str, str], label: str) -> None:
        super().__init__(f"the files of job {label} were", archive.content(), headers, TAR)
        self._archive = archive

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the archive, and end what makes it in any case."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._archive.close()


class CutShort(GpuQueueError):
    """An archive ends before its end. The client sees a connection that is closed too early."""


class Source(Protocol):
    """An archive that arrives in parts."""

    def parts(self) -> AsyncIterator[bytes]:
        """Yield the parts. Raises NotHere if there is nothing to send, or no more."""

    async def close(self) -> None:
        """End it in any case."""


class Packed:
    """An archive that a process of ``gpuqueue-worker pack`` writes."""

    def __init__(self, process: asyncio.subprocess.Process, errors: IO[bytes]) -> None:
        self._process, self._errors = process, errors

    @classmethod
    async def start(cls, request: PackRequest) -> Packed:
        """Begin to pack what *request* names."""
        errors = TemporaryFile()  # noqa: SIM115 - closed by close
        try:
            with request.as_input() as asked:
                process = await asyncio.create_subprocess_exec(
                    *([PROGRAM, "pack"] if PROGRAM else pack_command()),
                    stdin=asked,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=errors,
                    limit=PART_BYTES,
                )
        except BaseException:
            errors.close()
            raise
        return cls(process, errors)

    async def parts(self) -> AsyncIterator[bytes]:
        """Yield the archive.

        Raises:
            NotHere: there is no copy of the code.
            CutShort: the program has failed.

        """
        output = self._process.stdout
        assert output is not None  # noqa: S101 - a pipe, see start
        most_s = SEARCH_S
        while True:
            try:
                part = await asyncio.wait_for(output.read(PART_BYTES), most_s)
            except (TimeoutError, asyncio.TimeoutError):  # two classes before Python 3.11
                raise CutShort(f"packing the files made no progress for {most_s:g} s") from None
            if not part:
                break
            yield part
            most_s = SILENCE_S
        code = await self._process.wait()
        if code:
            reason = in_one_line(reason_in(self._errors, code))
            raise NotHere(reason) if code == NO_COPY else CutShort(f"the files cannot be packed: {reason}")

    async def close(self) -> None:
        """End the process."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()
        self._errors.close()


class Archive:
    """An archive whose first part is there."""

    def __init__(self, source: Source, rest: AsyncIterator[bytes], first: bytes, at_end: Callable[[], None]) -> None:
        self._source, self._rest, self._first, self._at_end = source, rest, first, at_end

    async def content(self) -> AsyncIterator[bytes]:
        """Yield the whole archive. Raises NotHere or CutShort before its end."""
        yield self._first
        async for part in self._rest:
            yield part

    async def close(self) -> None:
        """End it in any case."""
        self._at_end()
        await self._source.close()


async def begun_archive(source: Source, at_end: Callable[[], None]) -> Archive:
    """Return the archive of *source*, which has begun to arrive. *at_end* is called when it is closed.

    Raises:
        NotHere: there is nothing to send.
        CutShort: the program has failed.

    """
    parts = source.parts()
    try:
        return Archive(source, parts, await parts.__anext__(), at_end)
    except StopAsyncIteration:
        await source.close()
        raise NotHere("no archive came") from None
    except BaseException:
        await source.close()
        raise
