"""Keeps the code of a signed job where nobody but root can replace it. Standard library only.

The run directory belongs to the account of the workers. A worker that was taken over could put other files into the
place of the code after its digest was checked, while the program reads it. So the job sees its code at a place of root:
a bind mount, in a mount namespace of the run.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket

from workers.launcher.account import Refused
from workers.shim.code import TREE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from workers.launcher.become import LaunchRequest

CLONE_NEWNS = 0x20000
MS_BIND, MS_REC, MS_SLAVE = 0x1000, 0x4000, 0x80000
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def pin(request: LaunchRequest, made: int, place: str, guard: socket.socket) -> None:
    """Mount the code of *request* at *place*, an empty directory of root, in a new mount namespace of this process.

    *made* is the open directory of the code. The process at the other end of *guard* gets the namespace.

    Raises:
        Refused: somebody has replaced the directory meanwhile.
        OSError: the kernel permits no mounts here, as in most containers.

    """
    code = request.code or {}
    libc = ctypes.CDLL(None, use_errno=True)
    _call(libc.unshare(CLONE_NEWNS))
    _call(libc.mount(b"none", b"/", None, MS_REC | MS_SLAVE, None))  # what the host mounts later still arrives
    # The kernel mounts only what was opened in the new namespace.
    found = os.open(code["directory"], _FOLDER)
    if not os.path.samestat(os.fstat(found), os.fstat(made)):
        raise Refused("the directory of its code was replaced")
    _call(libc.mount(f"/proc/self/fd/{found}".encode(), os.fsencode(place), None, MS_BIND, None))
    os.close(found)
    namespace = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    socket.send_fds(guard, [b"."], [namespace])
    os.close(namespace)


def enter(namespace: int) -> None:
    """Enter the mount *namespace*, which :func:`pin` has made.

    Raises:
        OSError: the kernel refuses.

    """
    _call(ctypes.CDLL(None, use_errno=True).setns(namespace, CLONE_NEWNS))


def pinned(request: LaunchRequest, place: str) -> LaunchRequest:
    """Return *request* with its code at *place*."""
    code = request.code or {}
    cwd = os.path.normpath(os.path.join(place, TREE, code["cwd"]))
    return request._replace(cwd=cwd, code={**code, "directory": place}, env={**request.env, "PWD": cwd})


def _call(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        # Whatever the number is, another host may be able to do it.
        raise OSError(errno.EPERM, f"cannot keep its code from being replaced ({os.strerror(number)})")


def prepared(path: str) -> str:
    """Make the directory *path* of root, and return it.

    Raises:
        OSError: it cannot be made, or belongs to others.

    """
    os.makedirs(path, mode=0o700, exist_ok=True)
    if os.lstat(path).st_uid != 0 or not os.path.isdir(path) or os.path.islink(path):
        raise PermissionError(None, f"{path} is not root's")
    return path
