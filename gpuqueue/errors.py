"""Every error that a person can meet, in one tree.

::

    GpuQueueError
    ├── BadRequest          the request cannot be meant as written        exit 2
    │   └── Impossible      no device could ever run it                   exit 2
    ├── JobNotFound         neither the queue nor the book knows the id   exit 3
    ├── Unreachable         a service does not answer                     exit 4
    │   ├── StoreUnreachable   Redis
    │   ├── StoreNotReady      Redis answers but cannot serve, or is unsafe
    │   │   ├── StoreNotOpen   it knows nothing: never opened, or its data is lost
    │   │   └── StoreLoading   Redis still reads its data and will be there soon
    │   └── BookUnreachable    the SQL database
    ├── Refused             understood, but not allowed now, or by a limit exit 5
    ├── Unreadable          what is kept somewhere makes no sense         exit 1
    ├── DryRunFailed        an estimate could not be made                 exit 1
    ├── DryRunTimeout       a dry run made no step in the time given      exit 124
    └── WaitTimeout         the job has not ended in the time given       exit 124

The message says what is wrong and what to do next, in one line.
"""

from __future__ import annotations


class GpuQueueError(Exception):
    """Something that gpuqueue can explain in one line."""

    #: Exit code of the command line when this error ends it.
    exit_code = 1


class BadRequest(GpuQueueError):
    """The request is malformed; nothing was changed."""

    exit_code = 2


class Impossible(BadRequest):
    """No known device could ever run the job; nothing was queued."""


class JobNotFound(GpuQueueError):
    """Neither the queue nor the book knows this job id."""

    exit_code = 3


class Unreachable(GpuQueueError):
    """A service that is needed does not answer."""

    exit_code = 4


class StoreUnreachable(Unreachable):
    """The Redis store does not answer."""


class StoreNotReady(Unreachable):
    """The Redis store answers, but cannot serve or is not safe to use."""


class StoreNotOpen(StoreNotReady):
    """The Redis store answers and knows nothing: it was never opened, or it lost its data and is not rebuilt yet.

    It gives no job to anybody meanwhile, so what runs may go on.
    """


class StoreLoading(StoreNotReady):
    """The Redis store still reads its data: it will serve as soon as it has."""


class BookUnreachable(Unreachable):
    """The SQL database does not answer, cannot be written, or has other tables than this version's."""

    def __init__(self, what: str, remedy: str = "") -> None:
        super().__init__(f"{what}: {remedy}" if remedy else what)
        self.what = what
        #: What to do about it; empty where *what* says it.
        self.remedy = remedy


class Refused(GpuQueueError):
    """The request is clear, but the job's state, or a limit, does not allow it."""

    exit_code = 5


class Unreadable(GpuQueueError):
    """What a store, a book or a file holds is damaged, or of a version that this one does not know."""


class DryRunFailed(GpuQueueError):
    """A script failed in its dry run, or there was nothing to count."""

    def __init__(self, what: str, trace: str = "") -> None:
        super().__init__(what)
        #: The end of what the script said of its own failure, in several lines; empty where it said nothing.
        self.trace = trace


class DryRunTimeout(GpuQueueError):
    """A dry run made no step within the time given; the script was ended."""

    exit_code = 124


class WaitTimeout(GpuQueueError):
    """The job has not ended within the time given; it goes on."""

    exit_code = 124
