"""Sends the code of a job to the service: only the blobs that the service does not have.

If the service is on another machine, this also chooses the Python of a script. The first of these counts:
``--environment``, ``--python``, ``uv run`` if the code has a ``uv.lock`` for the script, and the ``python3`` of the
host.
"""

from __future__ import annotations

import base64
import os
import posixpath
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpuqueue.client.snapshots import Note, noted, taken
from gpuqueue.errors import BadRequest, GpuQueueError, Refused
from gpuqueue.files.limits import IGNORE_FILE, Limits
from gpuqueue.model.api import ContentPart, ContentParts, NewSnapshot, SnapshotLimits, SnapshotState
from gpuqueue.model.script_args import UV_INTERPRETER, UV_PYTHON, UV_RUN
from gpuqueue.text.sanitize import plain

if TYPE_CHECKING:
    from gpuqueue.client.remote.link import Link
    from gpuqueue.files.take import Snapshot
    from gpuqueue.model.job_request import JobRequest
    from gpuqueue.model.job_spec import JobSpec

#: Most bytes of blobs in one request. A request has at most 4 MiB, and base64 takes a third more.
BATCH_BYTES = 2 * 2**20
#: Longest manifest, in bytes: the service takes 4 MiB in one request, and JSON needs more for the same text.
MOST_MANIFEST_BYTES = 7 * 2**19
#: How often the service is asked which blobs are missing. Between two answers it may collect old blobs.
TRIES = 3
_LOCK, _PROJECT = "uv.lock", "pyproject.toml"


def sent(link: Link, request: JobRequest, spec: JobSpec, note: Note | None, *, is_far: bool, dry: bool) -> JobSpec:
    """Return *spec* with a snapshot of its code, which the service has then, unless this is *dry*.

    If *is_far*, its Python is that of the hosts.

    Raises:
        BadRequest: a directory does not exist, or the request names a Python of this machine.
        Refused: the snapshot is too large, or a file in it must not travel.

    """
    found: SnapshotLimits = link.get(SnapshotLimits, "/snapshots/limits")
    limits = Limits(total_bytes=found.total_bytes, file_bytes=found.file_bytes, files=found.files)
    snapshot = taken(request, spec, limits)
    if is_far:
        spec = with_host_python(request, spec, snapshot)
    spec = noted(request, spec, snapshot, None if dry else _send(link, snapshot), note)
    line = python_line(spec) if is_far else None
    if note is not None and line is not None:
        note(line)
    return spec


def _send(link: Link, snapshot: Snapshot) -> int:
    """Send *snapshot*, and return how many bytes of blobs the service did not have."""
    if len(snapshot.text) > MOST_MANIFEST_BYTES:
        raise Refused(
            f"the names of the {len(snapshot.manifest.entries)} files are too long together: leave out files that the "
            f"job does not need by lines in {IGNORE_FILE}"
        )
    sent_bytes = 0
    body = NewSnapshot(manifest=snapshot.text.decode(), diff=snapshot.diff_sha256)
    for _ in range(TRIES):
        state: SnapshotState = link.send("POST", "/snapshots", body, kind=SnapshotState)
        if not state.missing:
            return sent_bytes
        for batch in _batches(snapshot, state.missing):
            link.send("POST", "/snapshots/contents", ContentParts(parts=batch))
        blobs = snapshot.blobs()
        sent_bytes += sum(blobs.get(each, 0) for each in state.missing)
    raise GpuQueueError("the service does not keep the files that were sent: see its log")


def _batches(snapshot: Snapshot, missing: Sequence[str]) -> Iterator[tuple[ContentPart, ...]]:
    batch: list[ContentPart] = []
    left_bytes = BATCH_BYTES
    sizes = snapshot.sends()
    for sha256 in missing:
        for part, size_bytes in _parts(snapshot, sha256, sizes[sha256]):
            if batch and size_bytes > left_bytes:
                yield tuple(batch)
                batch, left_bytes = [], BATCH_BYTES
            batch.append(part)
            left_bytes -= size_bytes + 256  # the rest of a part's JSON
    if batch:
        yield tuple(batch)


def _parts(snapshot: Snapshot, sha256: str, size_bytes: int) -> Iterator[tuple[ContentPart, int]]:
    """Yield the parts of a blob of *size_bytes*, each with its own size in bytes. An empty blob has one part."""
    offset_bytes = 0
    whole = ContentPart(sha256=sha256, size_bytes=size_bytes, content="")
    for chunk in snapshot.blob(sha256):
        content = base64.b64encode(chunk).decode("ascii")
        yield replace(whole, content=content, offset_bytes=offset_bytes), len(chunk)
        offset_bytes += len(chunk)
    if not offset_bytes:
        yield whole, 0


def with_host_python(request: JobRequest, spec: JobSpec, snapshot: Snapshot) -> JobSpec:
    """Return *spec* with the Python that its script has on the host, by *request* and by what *snapshot* holds.

    Raises:
        BadRequest: *request* names a Python of this machine, which does not travel.

    """
    if spec.interpreter is None or spec.environment is not None or spec.container is not None:
        return spec
    paths = {each.path for each in snapshot.manifest.entries}
    if request.python is not None:
        _check_python(spec.interpreter, spec.cwd, snapshot, paths)
        return spec
    project = _uv_project(spec.argv[1], snapshot.cwd, paths)
    if project is None:
        return spec
    option = () if project == "." else (f"--project={project}",)
    return replace(spec, argv=(*UV_RUN, *option, UV_PYTHON, *spec.argv[1:]), interpreter=UV_INTERPRETER)


def python_line(spec: JobSpec) -> str | None:
    """Return a line about the Python of *spec* for its submitter, None for a command that names its own."""
    if spec.environment is not None:
        return f"python: environment {spec.environment}"
    if spec.interpreter is None:
        return None
    if spec.interpreter == UV_INTERPRETER:
        return f"python: {UV_INTERPRETER} ({_LOCK})"
    return f"python: {plain(spec.interpreter)} of the host"


def _uv_project(script: str, cwd: str, paths: set[str]) -> str | None:
    """Return the uv project for *script*, relative to *cwd*: "." if uv finds it from there, None if there is no lock.

    As with ``uv run python script`` in *cwd*, the project of *cwd* comes first, and that of the script second. Its lock
    may lie further up, in the workspace of a member.
    """
    for start in (cwd, posixpath.dirname(posixpath.normpath(posixpath.join(cwd, script)))):
        above = list(_upwards(start))
        if any({posixpath.join(each, _LOCK), posixpath.join(each, _PROJECT)} <= paths for each in above):
            project = next(each for each in above if posixpath.join(each, _PROJECT) in paths)
            return "." if start == cwd else posixpath.relpath(project or ".", cwd)
    return None


def _upwards(folder: str) -> Iterator[str]:
    """Yield *folder* and all directories above it, up to the top of the snapshot, which is empty."""
    folder = "" if folder == "." else folder
    while folder:
        yield folder
        folder = posixpath.dirname(folder)
    yield ""


def _check_python(python: str, cwd: str, snapshot: Snapshot, paths: set[str]) -> None:
    """Refuse a *python* of this machine. What the hosts have cannot be known, so other paths are accepted."""
    if "/" not in python:
        return
    if not python.startswith("/") and posixpath.normpath(posixpath.join(snapshot.cwd, python)) in paths:
        return
    path = os.path.normpath(os.path.join(cwd, python))  # noqa: PTH118 - a link to a Python elsewhere is not resolved
    place = _place_here(path, snapshot.root)
    if place is not None:
        fault = f"{plain(python)} is a Python of this machine, in {plain(place)}, and does not travel"
    elif not python.startswith("/"):
        fault = f"{plain(python)} does not travel with the code"
    else:
        return
    raise BadRequest(
        f"{fault}: name an environment of the hosts with --environment, or a path there with --python. If the hosts "
        "have it at the same path, put it and the script after --"
    )


def _place_here(path: str, root: Path) -> str | None:
    """Return what is only on this machine and holds *path*: an active environment, the code's directory or the home."""
    real = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))  # noqa: PTH118, PTH119, PTH120
    home = os.path.expanduser("~")  # noqa: PTH111 - as the settings do
    places = [os.environ.get("VIRTUAL_ENV"), os.environ.get("CONDA_PREFIX"), str(root)]
    if os.path.lexists(path):  # one that is not here is meant for the hosts
        places.append(home)
    for place in places:
        if place and place.strip("/"):
            whole = (os.path.abspath(place), os.path.realpath(place))  # noqa: PTH100
            if any(each.startswith(f"{holder}/") for each in (path, real) for holder in whole):
                return place
    return None
