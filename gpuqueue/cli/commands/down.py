"""The ``down`` command."""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence

import click

from gpuqueue.cli.options.own_queue import refuse_beside_service
from gpuqueue.cli.output.machine import interrupt, report
from gpuqueue.console import print_message
from gpuqueue.embedded.machine import READY_S, Machine, await_store, end_left_jobs, left_jobs, park_jobs
from gpuqueue.embedded.page import PageService
from gpuqueue.errors import BadRequest, Refused, StoreUnreachable, Unreachable
from gpuqueue.settings.settings import Settings
from gpuqueue.system import ownership

#: How long the end of a killed run may take to be recorded, in seconds.
END_S = 10.0


@click.command()
@click.option(
    "--leave-jobs", is_flag=True, help="Do not wait: running jobs continue, and the next `up` takes them over."
)
@click.option("--cancel-jobs", is_flag=True, help="Cancel the running jobs, and wait until they are gone.")
@click.option(
    "--preempt-jobs", is_flag=True, help="Preempt the running jobs: they end within preempt_grace, and run again later."
)
def down(*, leave_jobs: bool, cancel_jobs: bool, preempt_jobs: bool) -> None:
    """Wait for the running jobs, then stop workers, recorder and store. Waiting jobs stay in the queue.

    \b
    Examples:
      gpuqueue down
      gpuqueue down --leave-jobs                   then upgrade, then gpuqueue up
      gpuqueue down --preempt-jobs                 the jobs run again later
    """  # noqa: D301 - \b is click's mark for lines to keep
    if leave_jobs + cancel_jobs + preempt_jobs > 1:
        raise BadRequest("--leave-jobs, --cancel-jobs and --preempt-jobs contradict each other: use one of them")
    settings = Settings.load()
    refuse_beside_service(settings, "down")
    machine = Machine(settings)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)  # a closed terminal must not leave the devices drained
    with machine.alone():
        original = machine.original
        if original is not None:
            copy = ownership.copy_words(settings.state_dir, original)
            print_message("gpuqueue", f"{copy}: nothing runs here, the original is left alone")
            return
        machine.refuse_if_elsewhere()
        grace_s = settings.preempt_grace_s if preempt_jobs else None
        take_down(machine, leave=leave_jobs, cancel=cancel_jobs, preempt_within_s=grace_s)


def take_down(
    machine: Machine, *, leave: bool = False, cancel: bool = False, preempt_within_s: float | None = None
) -> None:
    """Stop all of this machine, whose lock the caller holds. The running jobs are waited for without another choice.

    With *preempt_within_s* they are preempted, and have so many seconds to end.

    Raises:
        Refused: jobs run on without a worker, and nobody asked for that.

    """
    _quiesce(machine, leave=leave, cancel=cancel, preempt_within_s=preempt_within_s)
    if PageService(machine.settings).stop():
        report("page", "stopped", "")
    what = "workers" if machine.settings.workers_account is None else "recorder"
    report(what, "stopped" if machine.stop_host() else "were down", "")
    if cancel or preempt_within_s is not None:
        end_left_jobs()
    left = left_jobs()
    if left and leave:
        click.echo(f"{park_jobs()}: the next gpuqueue up takes them over", err=True)
    with machine.tunnel(is_needed=False):
        if not left:
            _forget(machine)
        not_ours = "was down" if machine.settings.embedded else "left alone"
        report("store", "stopped" if machine.stop_store() else not_ours, machine.status().store)
    if left and not leave:
        raise Refused(f"{left} without a worker: gpuqueue up takes over, gpuqueue down --cancel-jobs ends it")


def _quiesce(machine: Machine, *, leave: bool, cancel: bool, preempt_within_s: float | None) -> None:
    """Drain this machine, then cancel or preempt the running jobs, wait for them or leave them."""
    try:
        machine.drain()
        if cancel:
            for job_id in machine.running_jobs():
                machine.queue.jobs.cancel(job_id)
        if preempt_within_s is not None:
            _preempt(machine, preempt_within_s)
        elif not leave and machine.host_running() is not None:
            _drain(machine)
    except Unreachable as error:
        if machine.host_running() is not None or not machine.settings.embedded:  # else nothing runs, as is printed next
            print_message("gpuqueue", str(error))
    except KeyboardInterrupt:
        machine.resume()
        click.echo("gpuqueue: stopped waiting: the machine stays up and takes jobs again", err=True)
        raise


def _preempt(machine: Machine, within_s: float) -> None:
    """Preempt the running jobs, and wait until they have ended: their shims end those that have not by then.

    Jobs that no worker ends are left to the caller, after the time that a shim takes for it.
    """
    deadline_s = time.monotonic() + within_s
    last_s = deadline_s + machine.settings.kill_grace_s + END_S
    reported: Sequence[int] = ()
    while (left_s := last_s - time.monotonic()) > 0 and machine.host_running() is not None:
        running = machine.preempt_jobs(max(0.0, deadline_s - time.monotonic()))
        if not running:
            return
        if running != reported:
            click.echo(f"preempting {_named(machine, running)}", err=True)
            reported = running
        time.sleep(min(0.2, left_s))


def _drain(machine: Machine) -> None:
    """Wait until no job holds a device of this machine, and print the jobs that still do."""
    reported: Sequence[int] = ()
    while running := _running(machine):
        if running != reported:
            jobs = _named(machine, running)
            click.echo(f"waiting for {jobs} to end (Ctrl-C stops waiting; --leave-jobs, --cancel-jobs)", err=True)
            reported = running
        time.sleep(0.2)


def _named(machine: Machine, jobs: Sequence[int]) -> str:
    called = machine.queue.jobs.called(jobs)
    return f"job {', '.join(called.get(job_id, str(job_id)) for job_id in jobs)}"


def _running(machine: Machine) -> Sequence[int]:
    """Return the jobs that hold a device of this machine. A store that does not answer is waited for, a while."""
    try:
        return machine.running_jobs()
    except StoreUnreachable:
        await_store(machine.queue, within_s=READY_S)
        return machine.running_jobs()


def _forget(machine: Machine) -> None:
    try:
        machine.forget_devices()
    except Unreachable:
        return  # without a store there is no record to remove
