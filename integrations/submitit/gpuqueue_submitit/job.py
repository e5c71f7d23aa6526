"""Jobs of the queue as submitit knows them: states, results, output, cancellation."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping

from submitit.core import core
from submitit.core.logger import get_logger

from gpuqueue import Client, EndingKind, GpuQueueError, Job, JobState
from gpuqueue.errors import HistoryUnreachable, JobNotFound, Refused, WaitTimeout
from gpuqueue.model.job_ref import JobName

#: The states of jobs in the words of Slurm, which submitit and its users compare with.
STATES: Mapping[JobState, str] = {
    JobState.QUEUED: "PENDING",
    JobState.HELD: "PENDING",
    JobState.STARTING: "RUNNING",
    JobState.RUNNING: "RUNNING",
    JobState.CANCELLING: "COMPLETING",
    JobState.SUCCEEDED: "COMPLETED",
    JobState.FAILED: "FAILED",
    JobState.CANCELLED: "CANCELLED",
    JobState.LOST: "NODE_FAIL",
}
#: The same for endings of a failed job that have a word of their own.
ENDINGS: Mapping[EndingKind, str] = {
    EndingKind.TIMED_OUT: "TIMEOUT",
    EndingKind.OUT_OF_MEMORY: "OUT_OF_MEMORY",
}
UNKNOWN = "UNKNOWN"
#: Longest time between two questions to the queue about all jobs, in seconds. Slurm's is 600, because sacct is slow.
POLL_S = 10
#: Longest time of one wait for an end, in seconds. After it the result file is looked for again.
WAIT_S = 10.0


class GpuQueueInfoWatcher(core.InfoWatcher):
    """Knows the states of all jobs of this process. It asks the queue for all of them at once, and seldom."""

    def get_state(self, job_id: str, mode: str = "standard") -> str:
        """Return the state of a job in the words of Slurm. *mode*: see ``get_info``."""
        return self.get_info(job_id, mode=mode).get("State", UNKNOWN)

    def update(self) -> None:
        """Ask for the states of all jobs that have not ended."""
        self.ask(self._registered - self._finished)
        self._last_status_check = time.time()

    def ask(self, names: Collection[str]) -> bool:
        """Ask for the states of the jobs *names*. Return whether the queue answered; if not, a warning says why."""
        if not names:
            return True
        self._num_calls += 1
        try:
            with Client() as client:
                self._info_dict.update(infos(client, names))
        except GpuQueueError as error:
            get_logger().warning(f"Call #{self.num_calls} - the states of the jobs may be old: {error}")
            return False
        self._finished.update(name for name in names if self.is_done(name, mode="cache"))
        return True

    def has_ended(self, job_id: str) -> bool:
        """Return whether no run of the job follows. True as well if the queue does not answer or know the job."""
        if job_id in self._finished or not self.ask([job_id]):
            return True
        return self.is_done(job_id, mode="cache") or self.get_state(job_id, mode="cache") == UNKNOWN


def infos(client: Client, names: Collection[str]) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield each of the jobs *names*, such as ``"17"`` and ``"17_2"``, with what is known about it.

    One list has all that have not ended. The others, which end once, are asked for one by one.
    """
    wanted = {name: JobName.parse(name) for name in names}
    open_jobs: dict[int, Job] = {}
    if len(wanted) > 1:
        first = min(each.id for each in wanted.values())
        found = client.jobs.listing(user=client.account.name, after=first - 1)
        open_jobs = {job.id: job for job in found.jobs}
    for name, each in wanted.items():
        member = each.member
        array = None if member is None else open_jobs.get(each.id)
        waiting = None if array is None else array.tally
        if member and waiting and (member.index in waiting.left or member.index in waiting.held):
            yield name, _info(name, STATES[JobState.QUEUED])
            continue
        try:
            job = open_jobs.get(each.id if member is None else member.id) or client.jobs.get(name)
        except JobNotFound:
            yield name, _info(name, UNKNOWN)
        else:
            yield name, _info(name, _state(client, name, job), job.host or "")


def _info(name: str, state: str, host: str = "") -> dict[str, str]:
    """Return what sacct prints about a job."""
    return {"JobID": name, "State": state, "NodeList": host}


def _state(client: Client, name: str, job: Job) -> str:
    if job.state is JobState.FAILED:
        try:
            run = client.jobs.show(name).last_run
        except HistoryUnreachable:
            run = None
        if run is not None and run.ending is not None:
            return ENDINGS.get(run.ending.kind, STATES[job.state])
    return STATES[job.state]


class GpuQueueJob(core.Job[core.R]):
    """A job of the queue. Its id, such as ``17`` or ``17_2``, is the one that ``gpuqueue show`` takes."""

    watcher = GpuQueueInfoWatcher(delay_s=POLL_S)

    def done(self, force_check: bool = False) -> bool:  # noqa: FBT001, FBT002 - the signature of submitit
        """Return whether the job has ended. A result alone is not the end: the queue may run the job again.

        After a lack of device memory it does, with more; after other failures if ``gpuqueue_retries`` says so.
        """
        return super().done(force_check) and self.watcher.has_ended(self.job_id)

    def wait(self) -> None:
        """Wait until the job has ended. The queue wakes this process."""
        while not self.done():
            try:
                with Client() as client:
                    next(iter(client.jobs.ends([self.job_id], timeout_s=WAIT_S)))
            except WaitTimeout:
                continue
            except GpuQueueError:
                time.sleep(1)
                continue
            self.watcher.ask([self.job_id])

    def cancel(self, check: bool = True) -> None:  # noqa: FBT001, FBT002 - the signature of submitit
        """Cancel the job. For a job that has ended this does nothing, as with Slurm.

        Raises:
            GpuQueueError: the job cannot be cancelled; not without *check*.

        """
        try:
            with Client() as client:
                client.jobs.cancel(self.job_id)
        except GpuQueueError as error:
            if check and not (isinstance(error, Refused) and self.watcher.has_ended(self.job_id)):
                raise
        else:
            self.watcher.ask([self.job_id])

    def _get_logs_string(self, name: str) -> str | None:
        """Return the output of all runs of the job, the first one first. None without any.

        The file in the folder is a link to the log of the newest run; those of the earlier ones are beside it.
        """
        try:
            newest = {"stdout": self.paths.stdout, "stderr": self.paths.stderr}[name].readlink()
        except OSError:
            return super()._get_logs_string(name)
        runs = newest.parents[1].glob(f"*/{newest.name}")
        in_order = sorted(runs, key=lambda path: int(path.parent.name.partition(".")[0]))
        return "".join(path.read_text(errors="replace") for path in in_order) if in_order else None
