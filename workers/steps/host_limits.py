"""A part of the second step: a host that cannot limit a job's host memory and processors does not start it."""

from __future__ import annotations

from gpuqueue.queue.evidence import NO_EVIDENCE
from workers.measure.active_runs import LiveRun
from workers.steps.conclusion import NotStarted


def check_limits(run: LiveRun, launcher: str | None) -> LiveRun:
    """Return *run* if its job has no such limits, or there is a *launcher*, which checks what the kernel can do.

    Raises:
        NotStarted: Jobs run without a launcher here.

    """
    spec = run.spec
    if launcher is None and spec is not None and (spec.cpus, spec.cpu_mem_bytes) != (None, None):
        raise NotStarted(
            "this host cannot limit host memory and processors of jobs, which needs run_as = submitter",
            host_lacks=NO_EVIDENCE,
        )
    return run
