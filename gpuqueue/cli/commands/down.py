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


@click.command()
@click.option(
    "--leave-jobs", is_flag=True, help="Do not wait: running jobs continue, and the next `up` takes them over."
)
@click.option("--cancel-jobs", is_flag=True, help="Cancel the running jobs, and wait until they are gone.")
def down(*, leave_jobs: bool, cancel_jobs: bool) -> None:
    """Wait for the running jobs, then stop workers, recorder and store. Waiting jobs stay in the queue.

    \b
    Examples:
      gpuqueue down
      gpuqueue down --leave-jobs                   then upgrade, then gpuqueue up
    """  # noqa: D301 - \b is click's mark for lines to keep
    if leave_jobs and cancel_jobs:
        raise BadRequest("--leave-jobs and --cancel-jobs contradict each other: use one of them")
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
        _quiesce(machine, leave=leave_jobs, cancel=cancel_jobs)
        if PageService(settings).stop():
            report("page", "stopped", "")
        what = "workers" if settings.workers_account is None else "recorder"
        report(what, "stopped" if machine.stop_host() else "were down", "")
        if cancel_jobs:
            end_left_jobs()
        left = left_jobs()
        if left and leave_jobs:
            click.echo(f"{park_jobs()}: the next gpuqueue up takes them over", err=True)
        with machine.tunnel(is_needed=False):
            if not left:
                _forget(machine)
            not_ours = "was down" if machine.settings.embedded else "left alone"
            report("store", "stopped" if machine.stop_store() else not_ours, machine.status().store)
    if left and not leave_jobs:
        raise Refused(f"{left} without a worker: gpuqueue up takes over, gpuqueue down --cancel-jobs ends it")


def _quiesce(machine: Machine, *, leave: bool, cancel: bool) -> None:
    """Drain this machine, then cancel the running jobs, wait for them or leave them."""
    try:
        machine.drain()
        if cancel:
            for job_id in machine.running_jobs():
                machine.queue.jobs.cancel(job_id)
        if not leave and machine.host_running() is not None:
            _drain(machine)
    except Unreachable as error:
        if machine.host_running() is not None or not machine.settings.embedded:  # else nothing runs, as is printed next
            print_message("gpuqueue", str(error))
    except KeyboardInterrupt:
        machine.resume()
        click.echo("gpuqueue: stopped waiting: the machine stays up and takes jobs again", err=True)
        raise


def _drain(machine: Machine) -> None:
    """Wait until no job holds a device of this machine, and print the jobs that still do."""
    reported: Sequence[int] = ()
    while running := _running(machine):
        if running != reported:
            called = machine.queue.jobs.called(running)
            jobs = ", ".join(called.get(job_id, str(job_id)) for job_id in running)
            click.echo(f"waiting for job {jobs} to end (Ctrl-C stops waiting; --leave-jobs, --cancel-jobs)", err=True)
            reported = running
        time.sleep(0.2)


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
