"""Submits the jobs of a workflow, follows them, and cancels them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo
from snakemake_interface_executor_plugins.executors.remote import RemoteExecutor
from snakemake_interface_executor_plugins.jobs import JobExecutorInterface
from snakemake_interface_executor_plugins.settings import CommonSettings
from snakemake_interface_executor_plugins.utils import encode_target_jobs_cli_args

from gpuqueue import Client, GpuQueueError, Job, JobRequest, JobState
from gpuqueue.errors import JobNotFound, Unreachable
from snakemake_executor_plugin_gpuqueue.request import key_of, request_of

#: Where the links to the logs are made, in the working directory of the workflow.
LOGS = Path(".snakemake", "gpuqueue_logs")

common_settings = CommonSettings(
    non_local_exec=True,
    implies_no_shared_fs=False,
    job_deploy_sources=False,
    auto_deploy_default_storage_provider=False,
    # They are in the environment of the job, whose secrets the queue shows to nobody; a command is shown.
    pass_envvar_declarations_to_cmd=False,
)


class Executor(RemoteExecutor):
    """Runs each job of a workflow as a job of the queue."""

    #: Whether the last question to the queue had no answer.
    _is_away = False

    def __post_init__(self) -> None:
        """Make the directory of the logs."""
        self._workdir = Path(self.workflow.workdir_init).resolve()
        self._logs = Path.cwd() / LOGS
        self._logs.mkdir(parents=True, exist_ok=True)
        #: The jobs of the queue that have not ended. The list of the base class is empty while it is checked.
        self._going_on: set[str] = set()

    def run_job(self, job: JobExecutorInterface) -> None:
        """Submit *job*, or go on with the job of the queue that an earlier Snakemake submitted for it."""
        info = SubmittedJobInfo(job)
        try:
            with Client() as client:
                request = self._request(job)
                queued = self._earlier(client, job, request.dedupe) or client.jobs.submit_request(
                    request, found=self._report_found, note=self.logger.info
                )
        except GpuQueueError as error:
            self.report_job_error(info, msg=f"{error}. ")
            return
        info.external_jobid = str(queued.id)
        self._going_on.add(info.external_jobid)
        line = f"Job {job.jobid} of the workflow is job {queued.id} of the queue."  # its logger formats no arguments
        self.logger.info(line)
        self.report_job_submission(info)

    def _request(self, job: JobExecutorInterface) -> JobRequest:
        targets = encode_target_jobs_cli_args(job.get_target_spec())
        return request_of(
            self.format_job_exec(job),
            job.name,
            job.resources,
            cwd=str(self._workdir),
            dedupe=key_of(Path.cwd(), targets),
            output=str(self._logs).replace("%", "%%") + "/%j.log",
        )

    def get_job_exec_prefix(self, job: JobExecutorInterface) -> str:  # noqa: ARG002 - the interface
        """Return what comes before the command: the Snakemake inside the job has no profile, it runs one job."""
        return "unset SNAKEMAKE_PROFILE"

    def _earlier(self, client: Client, job: JobExecutorInterface, key: str | None) -> Job | None:
        """Return the job that a stopped Snakemake submitted for *job*, if it goes on or has succeeded."""
        name = self.dag.incomplete_external_jobid(job)
        if name is None:
            return None
        try:
            earlier = client.jobs.get(name)
        except JobNotFound:
            return None
        if earlier.spec.waits.dedupe != key or (earlier.state.is_end and earlier.state is not JobState.SUCCEEDED):
            return None
        self._report_found(earlier)
        return earlier

    def _report_found(self, job: Job) -> None:
        line = f"An earlier Snakemake has submitted this as job {job.id}, which {job.state.in_words}."
        self.logger.info(line)

    async def check_active_jobs(self, active_jobs: Sequence[SubmittedJobInfo]) -> AsyncIterator[SubmittedJobInfo]:
        """Report the jobs that have ended, and yield the others. All jobs stay while the queue does not answer."""
        if not active_jobs:  # this is called already while the executor is made, before it has a limiter
            return
        try:
            async with self.status_rate_limiter:
                with Client() as client:
                    ended = dict(_ended(client, active_jobs))
        except Unreachable as error:
            if not self._is_away:
                line = f"The queue does not answer, its jobs go on: {error}"
                self.logger.warning(line)
            self._is_away, ended = True, {}
        else:
            self._is_away = False
        for info in active_jobs:
            if info.external_jobid not in ended:
                yield info
                continue
            self._going_on.discard(info.external_jobid)
            if ended[info.external_jobid] is None:
                self.report_job_success(info)
            else:
                log = str(self._logs / f"{info.external_jobid}.log")
                self.report_job_error(info, msg=f"{ended[info.external_jobid]}. ", aux_logs=[log])

    def cancel_jobs(self, active_jobs: Sequence[SubmittedJobInfo]) -> None:  # noqa: ARG002 - the interface
        """Cancel all jobs that have not ended."""
        try:
            with Client() as client:
                for name in list(self._going_on):
                    with suppress(JobNotFound):
                        if not client.jobs.get(name).state.is_end:
                            client.jobs.cancel(name)
        except GpuQueueError as error:
            line = f"Not all jobs were cancelled: {error}"
            self.logger.warning(line)


def _ended(client: Client, infos: Sequence[SubmittedJobInfo]) -> Iterator[tuple[str, str | None]]:
    """Yield the ids of those jobs that have ended, each with None if it succeeded, else with a line that says how.

    One list has all that have not ended. The others, which end once, are asked for one by one.
    """
    names = [info.external_jobid for info in infos]
    first = min(map(int, names))
    going_on = {str(job.id) for job in client.jobs.listing(user=client.account.name, after=first - 1).jobs}
    for name in names:
        if name in going_on:
            continue
        try:
            record = client.jobs.show(name)
        except JobNotFound as error:
            yield name, str(error)
            continue
        if record.job.state is JobState.SUCCEEDED:
            yield name, None
        elif record.job.state.is_end:
            how = ": ".join(filter(None, [record.job.state.in_words, record.outcome]))
            yield name, f"Job {name} of the queue {how}. See gpuqueue show {name}"
