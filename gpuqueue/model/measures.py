"""What users, groups and pools can have limits on, and how much of it is in use. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from gpuqueue.lazy.frozen import dataclass
from gpuqueue.text.units import KIB, MIB, format_bytes


class Measure(str, Enum):
    """The quantities that users and groups can have limits on."""

    #: Concurrent runs.
    RUNNING_JOBS = "running_jobs"
    #: Devices of these runs, except CPUs.
    RUNNING_GPUS = "running_gpus"
    #: Memory allocated to these runs on all their devices, in bytes.
    RUNNING_MEM = "running_mem"
    #: Waiting jobs, including held ones. Each member of an array counts.
    QUEUED_JOBS = "queued_jobs"
    #: Jobs that have not ended. An array counts as one, and each of its runs as one.
    OPEN_JOBS = "open_jobs"
    #: The requests of these jobs as the store holds them, in bytes.
    OPEN_BYTES = "open_bytes"
    #: Waiting members of all arrays.
    ARRAY_MEMBERS = "array_members"
    #: Arguments of one job, and its environment, in bytes of JSON.
    ARGUMENTS = "arguments"
    ENVIRONMENT = "environment"

    def __str__(self) -> str:
        return self.value

    def shown(self, amount: int) -> str:
        """Return *amount* of this measure, formatted for display."""
        return format_bytes(amount) if self in SIZES and amount else str(amount)


@dataclass(frozen=True, slots=True)
class Limit:
    """A maximum. A job beyond it is refused at submit if ``refuses`` is set, else it waits."""

    most: int
    refuses: bool = False


#: Measures in bytes.
SIZES = frozenset({Measure.RUNNING_MEM, Measure.OPEN_BYTES, Measure.ARGUMENTS, Measure.ENVIRONMENT})
#: Measures of runs. A job waits for room under them.
OF_RUNS = frozenset({Measure.RUNNING_JOBS, Measure.RUNNING_GPUS, Measure.RUNNING_MEM})
#: Sizes of one job. Nothing of them is used up.
OF_ONE_JOB = frozenset({Measure.ARGUMENTS, Measure.ENVIRONMENT})
#: Limits of each user that only a submit meets, and their defaults. They protect the store and the history from a loop
#: without an end and from a file in a variable. Ten thousand jobs take about 100 MiB in the store. The kernel gives a
#: process 2 MiB for both sizes by default.
AT_SUBMIT = {
    Measure.OPEN_JOBS: Limit(10_000, refuses=True),
    Measure.OPEN_BYTES: Limit(256 * MIB, refuses=True),
    Measure.ARRAY_MEMBERS: Limit(100_000, refuses=True),
    Measure.ARGUMENTS: Limit(128 * KIB, refuses=True),
    Measure.ENVIRONMENT: Limit(256 * KIB, refuses=True),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolLimits:
    """Defaults and maxima of the jobs of a pool. None means that the pool sets none."""

    default_mem_bytes: int | None = None
    max_mem_bytes: int | None = None
    default_time_s: float | None = None
    max_time_s: float | None = None
    max_gpus: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Use:
    """The running and waiting amounts of a user or a group, by measure. A group has none of AT_SUBMIT."""

    running_jobs: int = 0
    running_gpus: int = 0
    running_mem: int = 0
    queued_jobs: int = 0
    open_jobs: int = 0
    #: None if the store has too many jobs to add their sizes up.
    open_bytes: int | None = 0
    array_members: int = 0

    def of(self, measure: Measure) -> int | None:
        """Return the amount of *measure*, None if it is not known, or is the size of one job."""
        amount: int | None = getattr(self, measure.value, None)
        return amount

    def __add__(self, other: Use) -> Use:
        counted = (*OF_RUNS, Measure.QUEUED_JOBS)
        return Use(**{each.value: (self.of(each) or 0) + (other.of(each) or 0) for each in counted})


#: The limits of one user or group.
Figures = Mapping[Measure, Limit]
