"""What an agent may do with the queue beside what its account may do: the limits of ``gpuqueue mcp``."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace

from gpuqueue.client import Client
from gpuqueue.errors import Refused
from gpuqueue.model.job import Job
from gpuqueue.model.job_ref import job_name
from gpuqueue.model.job_request import JobRequest
from gpuqueue.model.job_spec import JobSpec
from gpuqueue.text.units import format_bytes, format_duration

#: What to do about a limit.
ASK = "ask your user"


@dataclass(frozen=True, kw_only=True)
class AgentLimits:
    """The limits of one agent. None: no limit. Its jobs carry *tag*, which counts and recognises them.

    ``max_jobs`` counts the jobs that wait or run, each member of an array as one. ``max_mem_bytes`` is the memory of a
    job on all its devices together. ``cancels_any``: it may cancel all that its account may.
    """

    tag: str
    max_jobs: int | None = None
    max_mem_bytes: int | None = None
    max_time_s: float | None = None
    cancels_any: bool = False
    read_only: bool = False
    #: Held from the check of a job to its submit.
    lock: threading.Lock = field(default_factory=threading.Lock)

    def applied(self, request: JobRequest) -> JobRequest:
        """Return *request* with the tag, with a time limit if there must be one, and without growing memory."""
        return replace(
            request,
            tags=(*request.tags, self.tag),
            time_limit=self.max_time_s if request.time_limit is None else request.time_limit,
            mem_retries=request.mem_retries if self.max_mem_bytes is None else 0,
        )

    def check(self, client: Client, spec: JobSpec) -> None:
        """Check that the agent may submit a job with this *spec* now.

        Raises:
            Refused: the job is beyond a limit.

        """
        most_bytes, most_s = self.max_mem_bytes, self.max_time_s
        if most_bytes is not None and (spec.placement.whole or spec.gpus * spec.mem_bytes > most_bytes):
            asked = "all memory of a device" if spec.placement.whole else format_bytes(spec.gpus * spec.mem_bytes)
            raise Refused(f"your limit is {format_bytes(most_bytes)} for a job, and it asks for {asked}: {ASK}")
        if most_s is not None and (spec.time_limit_s is None or spec.time_limit_s > most_s):
            asked = "none" if spec.time_limit_s is None else format_duration(spec.time_limit_s)
            raise Refused(f"your longest time_limit is {format_duration(most_s)}, not {asked}: {ASK}")
        if self.max_jobs is not None:
            jobs = client.jobs.list(tags=[self.tag], user=client.account.name)
            key, live = spec.waits.dedupe, sum(map(_size, jobs))
            new = 1 if spec.array is None else len(spec.array)
            is_there = key is not None and key in {job.spec.waits.dedupe for job in jobs}  # nothing will be submitted
            if live + new > self.max_jobs and not is_there:
                raise Refused(
                    f"your limit is {self.max_jobs} jobs that wait or run. There are {live}, and this adds {new}: wait "
                    "for the end of some, or cancel what is no longer needed"
                )

    def check_cancel(self, client: Client, name: int | str) -> None:
        """Check that the agent may cancel the job, or the part of an array, *name*.

        Raises:
            Refused: it is none of the agent's jobs.

        """
        job = client.jobs.get(job_name(name).id)
        if not self.cancels_any and (self.tag not in job.tags or job.spec.account.name != client.account.name):
            raise Refused(f"job {name} is none of yours, it has no tag {self.tag}: {ASK}")


def _size(job: Job) -> int:
    """Return how many jobs this is: those of an array that have not begun. The others are jobs of their own."""
    return 1 if job.tally is None else len(job.tally.left) + len(job.tally.held)
