"""The code of a job that travelled with it: unpacked before the job's program starts, by the same process and account.

Standard library only. The worker writes the file ``bundle`` into the run directory: the stream of the snapshot (see
:mod:`gpuqueue.files.manifest`). The files are unpacked into ``code/tree``, and ``code/manifest`` says which they were.
The directory ``code`` belongs to the account of the job, and nobody else enters it. Its owner deletes what is in it.
"""

from __future__ import annotations

import contextlib
import errno
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: The names of the packed code and of the directory for the files, in the run directory.
BUNDLE, DIRECTORY = "bundle", "code"
#: The names in that directory: the files, and the manifest of the snapshot that they were made from.
TREE, MANIFEST = "tree", "manifest"


def unpack(bundle: int, code: dict[str, Any]) -> None:
    """Unpack the open file *bundle* as *code* says: ``directory``, ``address`` and ``cwd``.

    Raises:
        OSError: the files cannot be made, or the bundle is damaged.

    """
    # Few jobs need these, and every shim would have them in memory. The launcher has loaded them.
    from gpuqueue.errors import GpuQueueError  # noqa: PLC0415
    from gpuqueue.files.unpack import unpack_stream  # noqa: PLC0415

    try:
        with open(bundle, "rb", closefd=False) as stream:
            unpack_stream(
                stream,
                os.path.join(code["directory"], TREE),
                address=code["address"],
                cwd=code["cwd"],
                copy=os.path.join(code["directory"], MANIFEST),
            )
    except GpuQueueError as error:
        raise OSError(errno.EIO, str(error)) from error


def delete_below(top: int) -> None:
    """Delete what is in the open directory *top*, as far as this account may. No link is followed.

    A job can close its directories to their owner, and nest them deeper than the stack and the descriptors of a process
    reach. So each is opened to its owner first, and what is in it moves up to *top*.
    """
    with contextlib.suppress(OSError):
        os.fchmod(top, 0o700)
    left = os.listdir(top)
    while left:
        name = left.pop()
        with contextlib.suppress(OSError):
            if not _is_unlinked(name, top):
                left += _moved_up(name, top)
                os.rmdir(name, dir_fd=top)


def _is_unlinked(name: str, directory: int) -> bool:
    """Delete a file, and return False for a directory."""
    try:
        os.unlink(name, dir_fd=directory)
    except IsADirectoryError:
        return False
    return True


def _moved_up(name: str, top: int) -> list[str]:
    """Delete the files of the directory *name* in *top*, move its directories up, and return their new names."""
    moved, fd = list[str](), _opened_to_owner(name, top)
    try:
        for child in os.listdir(fd):
            with contextlib.suppress(OSError):
                if not _is_unlinked(child, fd):
                    os.close(_opened_to_owner(child, fd))  # moving changes its entry ..
                    new = f".{os.urandom(8).hex()}"
                    os.rename(child, new, src_dir_fd=fd, dst_dir_fd=top)
                    moved.append(new)
    finally:
        os.close(fd)
    return moved


def _opened_to_owner(name: str, directory: int) -> int:
    """Open a directory, after giving its owner all rights to it."""
    place = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    try:
        with contextlib.suppress(OSError):  # it belongs to another account
            os.chmod(f"/proc/self/fd/{place}", 0o700)
        return os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=place)
    finally:
        os.close(place)
