"""The directory of a run for the code that came with its job. It belongs to the submitter. Standard library only."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import signal

from gpuqueue.system.login_account import NOBODY
from workers.launcher.account import Refused, Rules
from workers.launcher.run_directory import open_below
from workers.shim.code import DIRECTORY, delete_below
from workers.shim.tree import PR_SET_PDEATHSIG, prctl

PR_SET_DUMPABLE, PR_SET_NO_NEW_PRIVS = 4, 38
#: Longest time for a deletion, in seconds. The owner can stop the process that deletes, and mount a file system below
#: ``code`` that never answers. What is left is deleted the next time.
DELETE_S = 600.0
#: The group id of ``nogroup``.
NO_GROUP = 65534
ROOT_S_GROUP = 0


def make_code_directory(run_dir: int, uid: int) -> int:
    """Make the directory ``code`` in the open *run_dir* for the account *uid*, and return its descriptor.

    Raises:
        Refused: the account of the workers has put another directory into its place meanwhile.
        OSError: the directory cannot be made.

    """
    os.mkdir(DIRECTORY, 0o700, dir_fd=run_dir)
    fd = open_below(run_dir, DIRECTORY)
    if not _is_locked(fd) or os.fstat(fd).st_uid != os.geteuid() or os.listdir(fd):
        os.close(fd)
        raise Refused("the directory for its code was replaced")
    # The group of root marks what the launcher has made: the account of the workers can move those of others here.
    os.fchown(fd, uid, ROOT_S_GROUP)
    os.fchmod(fd, 0o700)
    for acl in ("system.posix_acl_default", "system.posix_acl_access"):  # inherited from the run directory
        with contextlib.suppress(OSError):
            os.removexattr(fd, acl)
    return fd


def _is_locked(fd: int) -> bool:
    """Lock the open directory *fd*, so that another guard cannot give it to another account as well."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def empty_code_directory(run_dir: int, rules: Rules) -> None:
    """Delete the content of ``code`` in the open *run_dir*, in a child process that has become the owner of ``code``.

    Raises:
        Refused: the owner is no person.
        OSError: there is no directory ``code``, something in it could not be deleted, or that took too long.

    """
    fd, uid = open_code_directory(run_dir, rules)
    guard, (reader, writer) = os.getpid(), os.pipe()
    pid = os.fork()
    if pid == 0:
        failed = 1
        try:
            os.close(reader)
            become_owner(uid, guard)
            delete_below(fd)
            failed = 1 if os.listdir(fd) else 0
        finally:
            os._exit(failed)
    os.close(fd)
    os.close(writer)  # the child has it open until it ends
    poll = select.poll()
    poll.register(reader, select.POLLIN)
    ended = poll.poll(DELETE_S * 1000)
    os.close(reader)
    if not ended:
        os.kill(pid, signal.SIGKILL)  # not reaped, because a file system that does not answer can hold it up
        raise OSError(errno.ETIMEDOUT, f"the user id {uid} has not deleted all files in it after {DELETE_S:g} s")
    _, status = os.waitpid(pid, 0)
    if status != 0:
        raise OSError(errno.ENOTEMPTY, f"the user id {uid} cannot delete all files in it")


def open_code_directory(run_dir: int, rules: Rules) -> tuple[int, int]:
    """Open the directory ``code`` in the open *run_dir*, and return it with the user id of its owner.

    Raises:
        Refused: the owner is no person.
        OSError: there is no directory ``code``.

    """
    fd = open_below(run_dir, DIRECTORY)
    uid, gid = os.fstat(fd).st_uid, os.fstat(fd).st_gid
    if gid != ROOT_S_GROUP:
        os.close(fd)
        raise Refused("the directory for the code of the run was not made by the launcher")
    if uid < rules.least_uid or uid in NOBODY:
        os.close(fd)
        raise Refused(f"the code of a run belongs to the user id {uid}, which is no person's")
    return fd, uid


def become_owner(uid: int, parent: int) -> None:
    """Give up root for good and become the account with the user id *uid*, without any of its groups.

    This process ends with its parent, the process *parent*.

    Raises:
        Refused: some privilege is left.

    """
    os.setgroups([])
    os.setresgid(NO_GROUP, NO_GROUP, NO_GROUP)  # it owns no files: those here are the user's own
    os.setresuid(uid, uid, uid)
    prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)  # the user may not look into a process that was root's
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if os.getresuid() != (uid,) * 3 or os.getresgid() != (NO_GROUP,) * 3 or os.getgroups():
        raise Refused(f"could not become the user id {uid}")
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # the change of the user id would clear it
    if os.getppid() != parent:  # the parent was killed before the prctl call
        os._exit(1)
