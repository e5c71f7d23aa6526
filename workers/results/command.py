"""The command ``gpuqueue-worker pack``: packs the results of a run, as the owner of the copy of the code."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import stat
from collections.abc import Iterator

from gpuqueue.results.pack_request import PackRequest
from gpuqueue.snapshot.patterns import rules_of
from gpuqueue.text.sanitize import brief
from workers.results.errors import NoCopy, PackFailed
from workers.results.files import open_file, open_folder
from workers.results.pack import pack
from workers.results.progress import STALL_S, Progress, stalled
from workers.results.repack import repack
from workers.results.wanted import ArchiveRequest
from workers.shim.code import DIRECTORY
from workers.shim.launched import pack_code

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
