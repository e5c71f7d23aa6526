"""All errors that gpuqueue reports to users, in one tree.

::

    GpuQueueError
    ├── BadRequest             the request is malformed                          exit 2
    │   └── Impossible         no device could ever run the job                  exit 2
    ├── JobNotFound            neither the queue nor the history has the job     exit 3
    ├── Unreachable            a service does not answer                         exit 4
    │   ├── StoreUnreachable   the Redis store does not answer                   exit 4
    │   ├── StoreNotReady      the store answers, but cannot serve or is unsafe  exit 4
    │   │   ├── StoreNotOpen   the store was never opened, or lost its data      exit 4
    │   │   └── StoreLoading   the store still loads its data                    exit 4
    │   ├── HistoryUnreachable    the history database does not answer              exit 4
    │   │   └── HistoryNewer      the history database is of a newer version        exit 4
    │   ├── ServiceUnreachable the HTTP service does not answer                 exit 4
    │   └── HostUnreachable    the worker host of a job does not answer         exit 4
    ├── Refused                valid, but not allowed now, or beyond a limit     exit 5
    │   ├── SubmittedInPart    some jobs of a list were refused                 exit 5
    │   ├── NotListening       no process of a job listens on a port            exit 5
    │   ├── NotAuthenticated   the service does not know who calls              exit 5
    │   └── TooManyRequests    the account or the address calls too often       exit 5
    ├── Unreadable             stored data is damaged or of a newer version      exit 1
    ├── DryRunFailed           a dry run failed, so there is no estimate         exit 1
    ├── DryRunTimeout          a dry run made no step in the given time          exit 124
    ├── NoResult               the job of a Python call ended without its result exit 1
    └── WaitTimeout            the job has not ended in the given time           exit 124

Each message is one line. It says what is wrong and what to do next.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path
    from typing import Any


class GpuQueueError(Exception):
    """An error that gpuqueue can explain in one line."""

    #: Exit code of the command line when this error ends it.
    exit_code = 1


class BadRequest(GpuQueueError):
    """The request is malformed; nothing was changed.

    ``faults`` is what is wrong with each field of the request, with the field first, if that is known.
    """

    exit_code = 2
    faults: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of_faults(cls, faults: Iterable[tuple[str, str]]) -> BadRequest:
        """Return the error for several fields, which names all faults."""
        known = tuple(faults)
        made = cls("; ".join(dict.fromkeys(words for _, words in known)))
        made.faults = known
        return made


class Impossible(BadRequest):
    """No known device could ever run the job; nothing was queued."""


class JobNotFound(GpuQueueError):
    """Neither the queue nor the history knows this job id."""

    exit_code = 3


class Unreachable(GpuQueueError):
    """A required service does not answer."""

    exit_code = 4

    def __init__(self, what: str, remedy: str = "", *, is_unanswered: bool = False) -> None:
        super().__init__(f"{what}: {remedy}" if remedy else what)
        self.what = what
        #: What to do about the error. Empty if *what* already says it.
        self.remedy = remedy
        #: Whether the request was sent, so that it may have been carried out.
        self.is_unanswered = is_unanswered


class StoreUnreachable(Unreachable):
    """The Redis store does not answer."""


class StoreNotReady(Unreachable):
    """The Redis store answers, but cannot serve or is not safe to use."""


class StoreNotOpen(StoreNotReady):
    """The Redis store was never opened, or it lost its data and is not rebuilt yet.

    No job can be claimed in this state, so the running jobs may continue.
    """


class StoreLoading(StoreNotReady):
    """The Redis store is still loading its data and will serve soon."""


class HistoryUnreachable(Unreachable):
    """The history database does not answer, cannot be written, or has the tables of another version."""


class HistoryNewer(HistoryUnreachable):
    """The history database has the tables of a newer version."""


class ServiceUnreachable(Unreachable):
    """The HTTP service does not answer."""


class HostUnreachable(Unreachable):
    """The worker host on which a job runs does not answer the HTTP service."""


class Refused(GpuQueueError):
    """The request is valid, but the job's state, a limit or a permission does not allow it."""

    exit_code = 5


class SubmittedInPart(Refused):
    """Some jobs of a list were refused, and the others are queued.

    ``jobs`` has the queued job of each request, None for a refused one, and ``refusals`` the errors of those, by their
    place in the list.
    """

    def __init__(
        self, message: str, jobs: Sequence[Any] = (), refusals: Mapping[int, GpuQueueError] | None = None
    ) -> None:
        super().__init__(message)
        self.jobs, self.refusals = jobs, refusals or {}


class HostTaken(Refused):
    """Another machine has the host name of this one."""


class NotListening(Refused):
    """No process of a job listens on a port, or others listen there, too."""


class NotAuthenticated(Refused):
    """The HTTP service does not know who calls: there is no access token, or it is not valid."""


class TooManyRequests(Refused):
    """The account or the address calls the HTTP service too often, or sends too much."""

    def __init__(self, what: str, wait_s: float = 1.0) -> None:
        super().__init__(what)
        #: Seconds after which to try again.
        self.wait_s = wait_s


class Unreadable(GpuQueueError):
    """Data in the store, in the history or in a file is damaged, or comes from a newer version."""


class DryRunFailed(GpuQueueError):
    """A script failed in its dry run, or the dry run found nothing to measure."""

    def __init__(self, what: str, trace: str = "") -> None:
        super().__init__(what)
        #: The end of the script's own error output, in several lines. Empty if there is none.
        self.trace = trace


class DryRunTimeout(GpuQueueError):
    """A dry run made no step within the given time, and the script was ended."""

    exit_code = 124


class WaitTimeout(GpuQueueError):
    """The job has not ended within the given time, and continues."""

    exit_code = 124


class NoResult(GpuQueueError):
    """The job of a Python call ended without a result of the call, or its result cannot be loaded."""

    def __init__(self, what: str, job: str) -> None:
        super().__init__(what)
        #: The name of the job: ``"17"``, or ``"17_2"`` for a member of an array.
        self.job = job


def install_extra(name: str) -> str:
    """Return the command that installs the libraries of the extra *name* beside gpuqueue."""
    return f"pip install 'gpuqueue-server[{name}]'"


#: What to do where nobody has started a queue.
START_ONE = "start one with gpuqueue up; if yours is elsewhere, correct GPUQUEUE_STATE_DIR"


def no_queue(state_dir: Path) -> str:
    """Return that nobody has started a queue in *state_dir*. The remedy is :data:`START_ONE`."""
    return f"there is no queue in {state_dir} yet"


def unusable(state_dir: Path, error: OSError) -> GpuQueueError:
    """Return the error for a state directory that cannot be written to."""
    return GpuQueueError(
        f"the state directory {state_dir} cannot be used: {error.strerror}. Set GPUQUEUE_STATE_DIR to one that you may "
        "write to"
    )
