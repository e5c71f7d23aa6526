"""The reasons why a job's first process could not be started. Standard library only."""

from __future__ import annotations

import errno
import os

#: Why a run must not start after ``start_before``: another worker may hold the claim by then.
TOO_LATE = "started too late: another worker may hold the claim"
#: The errors of a host that lacks a resource. A job that could not start for such an error has not failed.
SHORTAGES = {errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE}
#: The errors of a request that no host can start. Any other error may be this host's: a directory, program or
#: interpreter is missing or not accessible there.
WRONG_REQUESTS = {errno.E2BIG, errno.ENAMETOOLONG, errno.EINVAL}

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class NotStarted(Exception):
    """The job's first process could not be started."""

    def __init__(self, kind: str, detail: str, *, hosts_fault: bool = False, host_lacks: bool = False) -> None:
        super().__init__(detail)
        self.kind = kind
        self.hosts_fault = hosts_fault
        self.host_lacks = host_lacks

    def ending(self) -> dict[str, Any]:
        """Return the ending of the run, for the file ``exit``."""
        faults = {"hosts_fault": self.hosts_fault, "host_lacks": self.host_lacks}
        return {"kind": self.kind, "status": None, "detail": str(self), **faults}


def no_process(error: OSError) -> NotStarted:
    """Return the exception for a host that lacks a resource."""
    return NotStarted("lost", f"cannot make a process: {error.strerror}", hosts_fault=True)


def no_start(answer: str) -> NotStarted:
    """Return the exception for an answer of the child: an errno, or 0 for too late, and the reason."""
    text, _, reason = answer.partition(" ")
    number = int(text)
    if number in SHORTAGES or number == 0:
        return NotStarted("lost", reason, hosts_fault=number in SHORTAGES)
    return NotStarted("refused", reason, host_lacks=number > 0 and number not in WRONG_REQUESTS)


def why(error: Exception, program: str) -> str:
    """Return the error in words, with details that the kernel's message lacks."""
    words = str(getattr(error, "strerror", None) or error)
    number = getattr(error, "errno", None)
    if number == errno.ENOEXEC:
        return f"{words}: it is no program for this kind of machine, and no script that begins with #!"
    if number == errno.EACCES and os.path.isdir(program):
        return f"{words}: it is a directory"
    if number == errno.ENOENT and "/" in program and os.path.exists(program):
        return f"{words}: the interpreter that its first line names"
    return words
