"""The values with which the steps of a run end: a conclusion about an ended run, or the reason why it did not start."""

from __future__ import annotations

import logging
import os
import select
from collections.abc import Callable
from typing import TypeVar

from gpuqueue.errors import Unreachable
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.job_values import JobValues
from gpuqueue.model.mem_source import Shortage
from gpuqueue.model.run import Ending, RunDevice, RunNote
from gpuqueue.queue.evidence import NO_EVIDENCE, Evidence
from workers.threads import SteadyEvent

log = logging.getLogger(__name__)

T = TypeVar("T")

#: Pause between two attempts to report to a store that does not answer, in seconds.
RETRY_S = 1.0


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
    notes: tuple[RunNote, ...] = ()
    #: What the job reported about the run, None if it reported nothing.
    values: JobValues | None = None


class Detached(Exception):
    """The worker is stopping. The next worker of the device continues from the run directory."""


def pause(stopping: SteadyEvent, pause_s: float = RETRY_S) -> None:
    """Wait for *pause_s* seconds.

    Raises:
        Detached: The worker is stopping.

    """
    if stopping.wait(pause_s):
        raise Detached


def answered(ask: Callable[[], T], stopping: SteadyEvent) -> T:
    """Call *ask* until the store answers, so that a store outage does not lose an ending.

    Raises:
        Detached: The worker is stopping.

    """
    while True:
        try:
            return ask()
        except Unreachable as error:
            log.warning("the store does not answer, trying again: %s", error)
        pause(stopping)


def wait_for(handle: int, stopping: SteadyEvent) -> None:
    """Wait until the process behind the pidfd *handle* ends, and close it.

    Raises:
        Detached: The worker stops before the process ends.

    """
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    poll.register(stopping, select.POLLIN)
    try:
        poll.poll()
    finally:
        os.close(handle)
    if stopping.is_set():
        raise Detached
