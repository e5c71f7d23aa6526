"""The code that travels with a job of the embedded store: kept in the state directory, where the workers find it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpuqueue.errors import BadRequest, Refused
from gpuqueue.files.blob_store import blob_store_of, limits_of
from gpuqueue.files.limits import DIFF_BYTES, IGNORE_FILE
from gpuqueue.files.take import IgnoredFiles, Snapshot, take_snapshot
from gpuqueue.model.code_snapshot import CodeSnapshot, CodeWith
from gpuqueue.model.file_patterns import from_directory
from gpuqueue.settings.sources import embedded_socket
from gpuqueue.system.account import cache_directory
from gpuqueue.text.sanitize import plain
from gpuqueue.text.units import format_bytes

if TYPE_CHECKING:
    from gpuqueue.client.connection import Connection
    from gpuqueue.files.limits import Limits
    from gpuqueue.model.job_request import JobRequest
    from gpuqueue.model.job_spec import JobSpec

Note = Callable[[str], None]
#: Ignored files that a line names, the largest first.
NAMED = 3


def kept(connection: Connection, request: JobRequest, spec: JobSpec, note: Note | None, *, dry: bool) -> JobSpec:
    """Return *spec* with a snapshot of its code, which is kept in the state directory unless this is *dry*.

    Raises:
        BadRequest: a directory does not exist.
        Refused: the store is not the embedded one, the snapshot is too large, or a file in it must not travel.

    """
    settings = connection.settings
    if settings.redis_url != f"unix://{embedded_socket(settings.state_dir)}" or settings.store_through_service:
        raise Refused(
            "code travels over a service or with the embedded store, not directly to a store: submit without --snapshot"
        )
    store, limits = blob_store_of(settings), limits_of(settings)
    snapshot = taken(request, spec, limits)
    if dry:
        return noted(request, spec, snapshot, None, note)
    uid, sizes = spec.account.uid, snapshot.sends()
    missing = store.missing(uid, sizes)
    for sha256 in missing:
        store.put(uid, sha256, sizes[sha256], snapshot.blob(sha256), most_bytes=max(limits.file_bytes, DIFF_BYTES))
    store.add_manifest(uid, snapshot.text, limits, diff=snapshot.diff_sha256)
    blobs = snapshot.blobs()
    return noted(request, spec, snapshot, sum(blobs.get(each, 0) for each in missing), note)


def taken(request: JobRequest, spec: JobSpec, limits: Limits) -> Snapshot:
    """Take the snapshot that *request* asks for, for a job in the directory of *spec*.

    Raises:
        BadRequest: a directory does not exist.
        Refused: the snapshot is too large, or a file in it must not travel.

    """
    given = request.snapshot
    code = given if isinstance(given, CodeWith) else CodeWith({}, None if given in {None, True} else str(given))
    snapshot = take_snapshot(
        Path(spec.cwd),
        root=None if code.directory is None else Path(code.directory),
        limits=limits,
        allowed=request.snapshot_allow,
        cache=cache_directory(),
        added=code.files,
    )
    if spec.script is not None:
        _check_script(spec.script, spec.cwd, snapshot)
    return snapshot


def _check_script(script: str, cwd: str, snapshot: Snapshot) -> None:
    """Check that the *script* of a job in *cwd* travels.

    Raises:
        BadRequest: it is not in *snapshot*.

    """
    path = os.path.normpath(os.path.join(snapshot.cwd, os.path.relpath(os.path.join(cwd, script), cwd)))  # noqa: PTH118 - as the snapshot
    if all(each.path != path for each in snapshot.manifest.entries):
        raise BadRequest(
            f"the script {plain(script)} does not travel: it is not in {snapshot.root}, or git or {IGNORE_FILE} leaves "
            "it out. Name a script that does, or a directory that holds it with --snapshot"
        )


def noted(request: JobRequest, spec: JobSpec, snapshot: Snapshot, new_bytes: int | None, note: Note | None) -> JobSpec:
    """Return *spec* with *snapshot* and the files to keep of *request*.

    Call *note* with what was left out, and with a line about what travels: *new_bytes* of it, None if nothing was sent.
    """
    if note is not None:
        for each in snapshot.notes:
            note(each)
        left_out = f", without {', '.join(each.pattern for each in snapshot.excluded)}" if snapshot.excluded else ""
        files = len(snapshot.manifest.entries)
        size = format_bytes(snapshot.manifest.size_bytes())
        counted = f"{files} file{'' if files == 1 else 's'} of {snapshot.root}"
        new = "" if new_bytes is None else f" ({format_bytes(new_bytes)} of it new)"
        note(f"code: {counted}, {size}{new}{left_out}")
        if snapshot.ignored.files:
            note(ignored_line(snapshot.ignored))
        for word in spec.argv:
            if word.startswith(f"{snapshot.root}/"):
                note(f"{plain(word)} is a path of the directory itself, not of the copy: write it from {snapshot.cwd}")
    sent = CodeSnapshot(snapshot.address, snapshot.cwd, snapshot.diff_sha256)
    return replace(spec, snapshot=str(sent), keep=from_directory(request.keep, snapshot.cwd))


def ignored_line(ignored: IgnoredFiles) -> str:
    """Return a line about the *ignored* files, of which there is at least one."""
    files = ignored.files
    count = f"{len(files)}{'' if ignored.is_all else ' or more'}"
    what = "ignored file stays" if count == "1" else "ignored files stay"
    named = ", ".join(f"{plain(path)} {format_bytes(size_bytes)}" for path, size_bytes in files[:NAMED])
    return f"{count} {what} here: {named}{', …' if len(files) > NAMED else ''}"
