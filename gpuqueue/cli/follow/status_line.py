"""Messages while a job is followed: it is held, it runs again, it has ended, the store does not answer."""

from __future__ import annotations

from gpuqueue.console import print_message
from gpuqueue.errors import Unreachable
from gpuqueue.model.job import Job, JobState, WaitReason
from gpuqueue.model.run import Record, Run
from gpuqueue.text.sanitize import plain

_WHY = {
    WaitReason.LOST_TOO_OFTEN: " (its runs were lost too often)",
    WaitReason.REQUEUED_TOO_OFTEN: " (its runs asked to be requeued too often)",
}


def report_held(job: Job) -> None:
    """Print that *job* is held, and how to release it."""
    why = _WHY.get(job.reason, "") if job.reason is not None else ""
    if job.because is not None:
        why = f" ({plain(job.because)})"
    print_message("gpuqueue", f"job {job.label} is held{why} until it is released: gpuqueue release {job.label}")


def report_state(job_id: int | str, job: Job) -> None:
    """Print the state of *job*, where no output shows how it goes on."""
    if job.state is JobState.HELD:
        report_held(job)
    else:
        where = f" on {job.host}" if job.host else ""
        print_message("gpuqueue", f"job {job_id} {job.state}{where}")


def report_end(job_id: int | str, record: Record) -> None:
    """Print the final state of a job, and why it ended so."""
    last = record.last_run
    why = record.job.because or (last.ending if last else None)
    how = f" ({why})" if why and str(why) != str(record.job.state) else ""
    print_message("gpuqueue", f"job {job_id} {record.job.state}{how}")
    report_notes(job_id, record)


def report_notes(job_id: int | str, record: Record) -> None:
    """Print what is to be known of the last run of a job beside its ending."""
    for note in record.last_run.notes if record.last_run is not None else ():
        print_message("gpuqueue", f"job {job_id}: {note.words}")


def report_why(job_id: int | str, job: Job) -> None:
    """Print why the queue ended a job, and of an array how its members ended. Other jobs have an exit code."""
    ended = {} if job.tally is None else job.tally.ended
    counts = ", ".join(f"{count} {state}" for state, count in ended.items() if count)
    words = "; ".join(filter(None, [plain(job.because or ""), counts]))
    if words:
        see = f": gpuqueue show {job_id}" if job.tally is not None and job.state is not JobState.SUCCEEDED else ""
        print_message("gpuqueue", f"job {job_id} {job.state} ({words}){see}")


def report_again(job_id: int | str, run: Run) -> None:
    """Print that the following output is from another run."""
    print_message("gpuqueue", f"job {job_id} runs again: the following output is of attempt {run.attempt}")


def report_away(error: Unreachable) -> None:
    """Print that the command waits for the store, and that the jobs go on."""
    print_message("gpuqueue", f"{error}. Waiting for it; the jobs go on")


def report_history_away(error: Unreachable) -> None:
    """Print that the following data is from the history, which may be behind."""
    print_message("gpuqueue", f"{error}. The following is from the history")
