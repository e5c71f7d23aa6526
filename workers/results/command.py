"""The command ``gpuqueue-worker pack``: packs the results of a run, as the owner of the copy of the code."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import stat
from collections.abc import Callable, Iterator

from gpuqueue.files.archive import ArchiveReader, ArchiveWriter, Member
from gpuqueue.files.errors import ArchiveCutShort, ArchiveRefused
from gpuqueue.files.folders import open_file, open_folder
from gpuqueue.files.ignore import rules_of
from gpuqueue.files.names import faulty_links, quoted, target_fault
from gpuqueue.files.pack_program import PackRequest
from gpuqueue.text.sanitize import brief
from workers.results.pack import (
    MOST_FILES,
    STALL_S,
    ArchiveRequest,
    LeftOut,
    NoCopy,
    PackFailed,
    Progress,
    Wanted,
    pack,
    stalled,
)
from workers.shim.code import DIRECTORY
from workers.shim.launched import pack_code

_DAMAGED = "the archive of the results is damaged"
_GONE = "there is no copy of the code of this run: the job brought none, or the copy was deleted"


def pack_results(asked: PackRequest, launcher: str | None, output: int) -> list[str]:
    """Write the archive of the files that *asked* names to the open file *output*.

    The *launcher* packs a copy that belongs to another account. Must be called in the main thread of a process. Return
    one line for each kind of thing that was left out.

    Raises:
        BadRequest: a pattern cannot be used.
        NoCopy: the run directory has no copy of the code, or not the archive that *asked* names.
        PackFailed: the archive is not complete; the message says why.
        OSError: *output* cannot be written to.

    """
    request = ArchiveRequest.of(asked.patterns, rules_of(asked.patterns))
    with _opened(asked.directory) as run, _bounded():
        progress = Progress(output, lambda: signal.alarm(int(STALL_S)))
        progress()
        if asked.source is not None:
            with _archive(run, asked.source) as archive:
                return repack(archive, request, output, progress)
        owner = _owner(run)
        if owner != os.geteuid():
            signal.alarm(0)  # the launcher ends what makes no progress
            return _by_launcher(launcher, asked.directory, request, output, owner)
        with _code(run) as code:
            return pack(code, request, output, progress)


@contextlib.contextmanager
def _bounded() -> Iterator[None]:
    """End the work by an error if no step of it is done for a while."""

    def stop(_number: int, _frame: object) -> None:
        raise PackFailed(stalled())

    before = signal.signal(signal.SIGALRM, stop)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def _opened(run_dir: str) -> Iterator[int]:
    try:
        run = os.open(run_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        raise NoCopy(_GONE) from None
    except OSError as error:
        raise PackFailed(f"the run directory {brief(run_dir)} cannot be opened: {error.strerror}") from None
    try:
        yield run
    finally:
        os.close(run)


def _owner(run: int) -> int:
    """Return the user id of the owner of the code directory in the open run directory."""
    try:
        about = os.stat(DIRECTORY, dir_fd=run, follow_symlinks=False)
    except FileNotFoundError:
        raise NoCopy(_GONE) from None
    if not stat.S_ISDIR(about.st_mode):
        raise PackFailed("the copy of the code was replaced by something else")
    return about.st_uid


@contextlib.contextmanager
def _code(run: int) -> Iterator[int]:
    code = open_folder(DIRECTORY, run)
    if code is None:
        raise NoCopy(_GONE)
    try:
        yield code
    finally:
        os.close(code)


@contextlib.contextmanager
def _archive(run: int, source: str) -> Iterator[int]:
    """Open the archive *source* in the open run directory. A job may have put something else there."""
    try:
        found = open_file(source, run)
    except OSError as error:
        raise PackFailed(f"the archive {brief(source)} cannot be read: {error.strerror}") from None
    if found is None:
        raise NoCopy(f"there is no archive {brief(source)} of this run: none was made, or it was deleted")
    try:
        yield found[0]
    finally:
        os.close(found[0])


def _by_launcher(launcher: str | None, run_dir: str, request: ArchiveRequest, output: int, owner: int) -> list[str]:
    """Have the launcher pack as the *owner* of the copy."""
    if launcher is None:
        raise PackFailed(
            f"the copy of the code belongs to the user id {owner}: call this as that account, or with the setting "
            "run_as of the workers"
        )
    written = os.memfd_create("gpuqueue-pack-request")
    try:
        with open(written, "wb", closefd=False) as file:
            file.write(request.text())
        number, text = pack_code(launcher, run_dir, written, output)
    except OSError as error:
        raise PackFailed(f"the launcher {launcher} cannot be used: {error.strerror or error}") from None
    finally:
        os.close(written)
    if number == errno.ENOENT:
        raise NoCopy(_GONE)
    if number == errno.EPIPE:
        raise BrokenPipeError(number, text)
    if number:
        raise PackFailed(text)
    return text.splitlines()


def repack(source: int, request: ArchiveRequest, output: int, progress: Callable[[], object]) -> list[str]:
    """Write the wanted members of the archive in the open regular file *source* to *output*.

    Where all jobs have the account of the worker, a job may have put another file in its place, so nothing in it is
    trusted. Return one line for each kind of thing that was left out, now or when the archive was made.

    Raises:
        PackFailed: the archive is damaged or was cut short; so is what was written.
        OSError: *output* cannot be written to, or *source* cannot be read.

    """
    wanted, left, writer = Wanted(request), LeftOut(), ArchiveWriter(output, progress)
    before = ""
    with open(source, "rb", buffering=0, closefd=False) as file:
        reader = ArchiveReader(file)
        try:
            for number, member in enumerate(reader.members(), start=1):
                progress()
                if member.path <= before or number > MOST_FILES:
                    raise PackFailed(f"{_DAMAGED}: {quoted(member.path)} should not be there")
                before = member.path
                if (wanted.everything or wanted.has(member.path)) and _is_fine(member, left):
                    _pass_on(member, reader, writer)
                else:
                    for _ in reader.content():
                        progress()
        except (ArchiveRefused, ArchiveCutShort) as error:
            raise PackFailed(f"{_DAMAGED}: {error}") from None
    notes = [*dict.fromkeys([*reader.notes, *left.lines()])]
    writer.end(notes)
    return notes


def _pass_on(member: Member, reader: ArchiveReader, writer: ArchiveWriter) -> None:
    writer.put(member.header())
    for part in reader.content():
        writer.put(part)
    writer.pad(member.size_bytes)


def _is_fine(member: Member, left: LeftOut) -> bool:
    """Return whether a member can be passed on, and note it if not."""
    fault = target_fault(member.path) or next(
        (f"has the part {part!r}" for part in member.path.split("/") if part in {"", ".", ".."}), None
    )
    if fault is not None:
        left.name(member.path, fault)
    elif member.target is not None and (
        target_fault(member.target) is not None or faulty_links({member.path: member.target})
    ):
        left.link(member.path)
    else:
        return True
    return False
