"""The values with which the steps of a run end: a conclusion about an ended run, or the reason why it did not start."""

from __future__ import annotations

from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.mem_source import Shortage
from gpuqueue.model.run import Ending, RunDevice
from gpuqueue.queue.evidence import NO_EVIDENCE, Evidence


class NotStarted(Exception):
    """The run did not start, so its claim is released, unless the claim is *stale*.

    *host_failed*: the host was short of a resource, so the device accepts no job until a trial start succeeds.
    *host_lacks*: the job's directory or program is missing there, so the host is excluded for the job. This carries the
    evidence about the devices.
    """

    def __init__(
        self, why: str, *, host_failed: bool = False, stale: bool = False, host_lacks: Evidence | None = None
    ) -> None:
        super().__init__(why)
        self.host_failed = host_failed
        self.stale = stale
        self.host_lacks = host_lacks


@dataclass(frozen=True, kw_only=True, slots=True)
class Conclusion:
    """What is reported about an ended run. A run whose ending is LOST has no devices with peaks."""

    ending: Ending
    devices: tuple[RunDevice, ...] = ()
    duration_s: float | None = None
    evidence: Evidence = NO_EVIDENCE
    #: The facts about a lack of device memory, None if the run lacked none.
    shortage: Shortage | None = None
