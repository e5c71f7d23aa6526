"""The route by which the files of a run come back: those that its job has made or changed in its copy of the code."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gpuqueue.client.run_logs import own_log
from gpuqueue.errors import Refused
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.access import Action
from gpuqueue.model.code_snapshot import CodeSnapshot
from gpuqueue.model.file_patterns import file_patterns, from_directory
from gpuqueue.model.job import Job
from gpuqueue.model.run import Run
from gpuqueue.model.run_files import FILES_RUN, FILES_SOURCE, FilesSource, KeptFiles
from gpuqueue.results.kept import absence, kept_files, noted
from gpuqueue.results.pack_request import PackRequest
from gpuqueue.service.archives import Archive, CutShort, Packed, Source, begun
from gpuqueue.service.call import Call
from gpuqueue.service.problems import NotHere
from gpuqueue.service.relay_requests import HostRun
from gpuqueue.service.routes.described import Operations, Query, route
from gpuqueue.service.routes.logs import run_record
from gpuqueue.service.site import Site, site_of
from gpuqueue.service.streamed_file import StreamedFile
from gpuqueue.settings.settings import Settings
from gpuqueue.system.delivered_layout import RESULTS, TOKEN
from gpuqueue.system.safe_open import is_regular
from gpuqueue.text.sanitize import plain
from gpuqueue.text.units import format_duration

router = Operations("files")
TAR = "application/x-tar"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Place:
    """Where the files of a run are. ``directory`` is its run directory, if that is on this host."""

    account: str
    job: Job
    code: CodeSnapshot
    run: Run
    directory: Path | None
    #: The directories that may have an archive of kept files, or the reason why there is none.
    kept: tuple[Path, ...]


@route(router, "GET", "/jobs/{name}/files", answer=bytes, media_type=TAR)
async def fetch_files(
    request: Request,
    name: str,
    run: Annotated[int | None, Query(ge=1, description="The run; by default the newest.")] = None,
    patterns: Annotated[
        list[str] | None,
        Query(alias="pattern", description="Only files that match one of these, in the syntax of .gitignore."),
    ] = None,
    *,
    kept: Annotated[bool, Query(description="Take the kept files, also if the copy of the code is there.")] = False,
) -> Response:
    """Return an archive (tar) of the files that a run has made or changed in its copy of the code.

    With patterns, all files that match one of them. The header ``Gpuqueue-Run`` has the number of the run, and
    ``Gpuqueue-Source`` says where the files come from: the run's ``directory``, or what was ``kept`` after its end. An
    archive without its end was cut short.
    """
    wanted = file_patterns("pattern", patterns or [])
    site = site_of(request)
    place = await site.work(request, lambda call: _place(call, name, run))
    archive, source = await _found(site, place, from_directory(wanted, place.code.directory), only_kept=kept)
    headers = {FILES_RUN: str(place.run.attempt), FILES_SOURCE: str(source), "X-Accel-Buffering": "no"}
    return _ArchiveResponse(archive, headers, place.job.label)


@route(router, "GET", "/jobs/{name}/files/kept", answer=KeptFiles)
async def kept_files_of(
    request: Request,
    name: str,
    run: Annotated[int | None, Query(ge=1, description="The run; by default the newest.")] = None,
) -> Response:
    """Return what is there of the files that a job asked to keep of a run: their size, or why there are none."""
    settings = site_of(request).settings

    def work(call: Call) -> KeptFiles:
        place = _place(call, name, run)
        return kept_files(settings, place.job, place.run, place.kept)

    return await site_of(request).answer(request, work)


def _place(call: Call, name: str, attempt: int | None) -> _Place:
    """Return where the files of a run are, for a caller who may read its output and its code.

    Raises:
        Forbidden: the caller may not.
        Refused: the job is an array.
        NotHere: it has not run yet, or its code did not travel.

    """
    record = run_record(call, name, attempt)
    call.must(Action.SEE_ARGUMENTS, record.job.spec.account)  # patterns can name any file of the code
    job, run, settings = record.job, record.last_run, call.connection.settings
    if job.spec.array is not None:
        one = f"{job.id}_{next(iter(job.spec.array.indexes))}"
        raise Refused(f"array {job.id} has no files of its own: name a member, such as {one}")
    if run is None:
        raise NotHere(f"job {job.label} ({job.state}) has no files yet: it has not run")
    if job.spec.snapshot is None:
        where = f"in {plain(job.spec.cwd)} on {run.host}"
        raise NotHere(f"job {job.label} ran {where}: its code did not travel, copy files from there")
    directory = _run_directory(settings, run)
    here = [] if directory is None else [directory]
    there = [settings.delivered_dir / str(run.job_id) / run.token] if TOKEN.fullmatch(run.token) else []
    return _Place(
        account=call.caller.account,
        job=job,
        code=CodeSnapshot.parse(job.spec.snapshot),
        run=run,
        directory=directory,
        kept=(*here, *there),
    )


def _run_directory(settings: Settings, run: Run) -> Path | None:
    """Return the directory of *run* if it is on this host."""
    if run.log_path:
        path = own_log(settings, run)
        return None if path is None else path.parent
    is_here = run.host == settings.own_host and TOKEN.fullmatch(run.token) is not None
    return settings.runs_dir / str(run.job_id) / run.token if is_here else None


async def _found(
    site: Site, place: _Place, patterns: tuple[str, ...], *, only_kept: bool
) -> tuple[Archive, FilesSource]:
    """Return the archive, and where its files come from.

    Raises:
        NotHere: there are no files; the message says why, and what can be done.
        TooManyRequests: too many archives are sent.

    """
    give_back = site.archives.take(place.account)
    try:
        if only_kept:
            return await _only_kept(site, place, patterns, give_back), FilesSource.KEPT
        return await _live_or_kept(site, place, patterns, give_back)
    except BaseException:
        give_back()
        raise


async def _live_or_kept(
    site: Site, place: _Place, patterns: tuple[str, ...], at_end: Callable[[], None]
) -> tuple[Archive, FilesSource]:
    try:
        return await begun(await _live(site, place, patterns), at_end), FilesSource.DIRECTORY
    except (NotHere, CutShort) as error:
        failure = error
    found = await _kept(place, patterns, at_end)
    if found is not None:
        return found, FilesSource.KEPT
    if isinstance(failure, CutShort):
        raise failure
    raise _absent(site.settings, place, str(failure))


async def _only_kept(site: Site, place: _Place, patterns: tuple[str, ...], at_end: Callable[[], None]) -> Archive:
    found = await _kept(place, patterns, at_end)
    if found is None:
        raise NotHere(str(absence(kept_files(site.settings, place.job, place.run, place.kept), place.job.label)))
    return found


async def _kept(place: _Place, patterns: tuple[str, ...], at_end: Callable[[], None]) -> Archive | None:
    """Return an archive of the kept files, or None if there are none."""
    for each in place.kept:
        if is_regular(each / RESULTS):
            request = PackRequest(directory=str(each), patterns=patterns, source=RESULTS)
            return await begun(await Packed.start(request), at_end)
    return None


async def _live(site: Site, place: _Place, patterns: tuple[str, ...]) -> Source:
    if place.directory is None:
        return site.relays.files(HostRun.of(place.run), patterns)
    return await Packed.start(PackRequest(directory=str(place.directory), patterns=patterns))


def _absent(settings: Settings, place: _Place, why: str) -> NotHere:
    """Return the error that there are no files of a run, neither in its directory, because of *why*, nor kept."""
    label = place.job.label
    note = noted(place.kept)
    if note is not None:
        return NotHere(str(absence(note, label)))
    if place.directory is None:
        return NotHere(f"the files of job {label} cannot be had from host {place.run.host}: {why}")
    if place.job.state.is_active and place.run.attempt == place.job.attempt:
        return NotHere(f"the code of job {label} is not unpacked yet: try again in a moment")
    keep_s = settings.keep_code_s
    kept = f"; it is kept for {format_duration(keep_s)} after the run (setting keep_code)" if keep_s is not None else ""
    return NotHere(f"the copy of the code of job {label} is not there any more{kept}")


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
