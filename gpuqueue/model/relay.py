"""What the service asks the relay of a worker host for, and what the relay delivers. Pure."""

from __future__ import annotations

from enum import Enum

from gpuqueue.lazy.frozen import dataclass


class RelayKind(str, Enum):
    """What the service asks the relay of a worker host for."""

    #: What is new in the log of a run, now, and for the next 30 s as it is written.
    LOG = "log"
    #: The files that a run has made or changed in its copy of the code, as an archive.
    FILES = "files"
    #: Passing on what somebody types on the terminal of a run.
    TERMINAL = "terminal"
    #: Passing on the input and output of a second command in a run.
    EXEC = "exec"
    #: What a run that goes on has used and reported so far.
    FIGURES = "figures"
    #: The progress of all runs of the host.
    PROGRESS = "progress"
    #: A connection to a port at which a run listens.
    PORT = "port"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, kw_only=True, slots=True)
class RelayRequest:
    """What the service asks the relay of a worker host for. ``patterns`` choose among the files of a run.

    ``job`` and ``token`` name the run, and ``port`` one at which it listens. A request for the progress of all runs has
    none of them.
    """

    id: str
    kind: RelayKind
    job: int | None = None
    token: str | None = None
    patterns: tuple[str, ...] = ()
    port: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class RunProgress:
    """The progress of a run as its worker has read it from the output: the fields of a ``Reading``."""

    job: int
    token: str
    share: float
    counts: str = ""
    left_s: float | None = None
    is_sure: bool = True


class DeliveredFile(str, Enum):
    """A file of a run's output, or the record of its growth over time."""

    LOG = "log"
    STDERR = "stderr"
    LOG_TIMES = "log.times"
    STDERR_TIMES = "stderr.times"

    def __str__(self) -> str:
        return self.value
