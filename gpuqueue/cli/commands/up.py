"""The ``up`` command."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial

import click

from gpuqueue.cli.commands.down import take_down
from gpuqueue.cli.completion.candidates import listed, one_of
from gpuqueue.cli.options.own_queue import refuse_beside_service
from gpuqueue.cli.output.devices import device_rows
from gpuqueue.cli.output.machine import interrupt, report
from gpuqueue.cli.output.page_link import print_link, sign_in_link
from gpuqueue.cli.output.warnings import warn_of_unknown_variables
from gpuqueue.clock import SystemClock
from gpuqueue.console import print_message
from gpuqueue.embedded.machine import (
    RESTART,
    Machine,
    history_exists,
    last_line,
    prepare_history,
    refuse_newer_history,
)
from gpuqueue.embedded.page import PageService
from gpuqueue.errors import BadRequest, GpuQueueError, HistoryUnreachable, Refused, StoreUnreachable
from gpuqueue.model.device import Device
from gpuqueue.settings.settings import Settings
from gpuqueue.system.account import current_account
from gpuqueue.system.disk_room import USE_A_LOCAL_DISK, filesystem_of, network_trouble
from gpuqueue.system.logind import Logind
from gpuqueue.system.process import DetachedProcess, ProcessIdentity, ending_of, shield
from gpuqueue.text.sanitize import plain
from gpuqueue.text.units import format_duration
from gpuqueue.words.values import REPAIR_OR_CPU, device_label

#: The devices of a machine whose workers have an account of their own.
NO_DEVICES = "none"


@click.command()
@click.option(
    "--devices",
    metavar="SPEC",
    help="auto, gpu, cpu, gpu,cpu (both), gpu:0,2 (only these), slurm, or simulated: sim:4x24G, sim:1x8G+1x16G.",
    shell_complete=listed(one_of(("auto", "gpu", "cpu"))),
)
@click.option("--foreground", is_flag=True, help="Run in the foreground until SIGTERM or Ctrl-C.")
@click.option(
    "--until",
    metavar="TIME",
    help="End of this host's time: 18:00, 2h, 2026-11-01T09:00. Then jobs are preempted, and all stops.",
)
@click.option("--hold-jobs", is_flag=True, help="Start a copy of a state directory, with all its jobs held.")
@click.option("--web", is_flag=True, help="Also serve the web page, on this machine only, and print a link to it.")
@click.option("--web-port", metavar="PORT", type=click.IntRange(1, 65535), help="Port of --web. Default: a free one.")
def up(
    devices: str | None, web_port: int | None, until: str | None, *, foreground: bool, hold_jobs: bool, web: bool
) -> None:
    """Start the services of this machine: store, history database, recorder, and a worker for each device.

    They are started again when they die. With --foreground the exit code is 4 if the store cannot be started again.

    With --until the devices take only jobs that are over by then. What still runs shortly before that time is preempted
    and queued again, and then all stops as with gpuqueue down; --foreground returns with exit code 0. SIGTERM does the
    same at once.

    \b
    Examples:
      gpuqueue up
      gpuqueue up --devices sim:2x24G              without a GPU
      gpuqueue up --devices sim:1x8G+1x16G         two device kinds, without a GPU
      gpuqueue up --foreground                     for systemd and containers
      gpuqueue up --web                            also the web page
      gpuqueue up --foreground --until 3h          in a batch job of 3 hours
    """  # noqa: D301 - \b is click's mark for lines to keep
    if devices is not None and not devices.strip():
        raise BadRequest("--devices is empty: write auto, gpu, cpu or simulated ones like sim:4x24G, or leave it out")
    settings = Settings.load()
    refuse_beside_service(settings, "up")
    machine = Machine(settings)
    warn_of_unknown_variables()
    _warn_of_network_disk(settings)
    page = PageService(settings) if web or web_port is not None else None
    ends_at = None if until is None else _end(settings, until)
    if not foreground:
        _start(machine, devices, hold_jobs=hold_jobs, until=ends_at)
        _show(page, web_port)
        return
    with machine.in_foreground():
        code = _serve(machine, devices, page, web_port, hold_jobs=hold_jobs, until=ends_at)
    sys.exit(code if code == StoreUnreachable.exit_code else 1 if code else 0)


def _end(settings: Settings, until: str) -> datetime:
    """Return the end of this host's time.

    Raises:
        BadRequest: *until* is no time to come, leaves no time but the grace of a preemption, or the workers have
            another account.

    """
    from gpuqueue.model.times import end  # noqa: PLC0415 - lazy import for startup time

    if settings.workers_account is not None:
        raise BadRequest(
            f"the workers here have the account {settings.workers_account}: use gpuqueue drain --all --at {until}"
        )
    ends_at = end("--until", until)
    if _grace_s(settings, ends_at) < settings.preempt_grace_s:
        grace = format_duration(settings.preempt_grace_s)
        raise BadRequest(f"--until {until} is too soon: at the end, preempt_grace ({grace}) is left to running jobs")
    return ends_at


def _warn_of_network_disk(settings: Settings) -> None:
    """Warn of a state directory on a network disk, before anything is written to it."""
    trouble = network_trouble(filesystem_of(settings.state_dir) or "")
    if trouble is not None:
        print_message("gpuqueue: warning", f"{settings.state_dir}: {trouble}: {USE_A_LOCAL_DISK}")


def _serve(
    machine: Machine,
    devices: str | None,
    page: PageService | None,
    web_port: int | None,
    *,
    hold_jobs: bool,
    until: datetime | None,
) -> int:
    """Start the services, wait for a signal or their end, stop them, and return the exit code of the host process."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)  # like Ctrl-C, also during the start
    shield()
    code = 0
    is_up, is_stopped = False, False
    try:
        host = _start(machine, devices, needs_store=True, hold_jobs=hold_jobs, until=until)
        is_up = True
        if host is None:
            raise Refused("it is up already, in the background: run gpuqueue down first")
        try:
            _show(page, web_port)
        except GpuQueueError as error:  # what was started is stopped, as with Ctrl-C
            print_message("gpuqueue", f"the web page cannot be served: {error}")
            code = 1
        else:
            code = _wait(machine, host, until)
    except KeyboardInterrupt:
        is_stopped = True
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)  # the stop must not be interrupted
    with machine.alone(patient=True):  # `down` may be running, and needs the store until it ends
        if is_stopped and until is not None and is_up:
            click.echo("stopping; the running jobs are preempted", err=True)
            take_down(machine, preempt_within_s=_grace_s(machine.settings, until))
            return code
        if is_stopped:
            grace = format_duration(machine.settings.shim_grace_s)
            click.echo(f"stopping; running jobs go on for {grace} without a worker: start again before that", err=True)
        if page is not None:
            page.stop()
        machine.stop_host()
        machine.stop_store()
    return code


def _grace_s(settings: Settings, until: datetime) -> float:
    """Return how long a preempted run may take: the grace of a preemption, or what is left until then."""
    left_s = (until - SystemClock().now()).total_seconds()
    return max(0.0, min(settings.preempt_grace_s, left_s))


def _wait(machine: Machine, host: DetachedProcess, until: datetime | None) -> int:
    """Wait for the end of the host process, report what ends, and return its exit code.

    The first store is a child of this process. The host process starts the next one, and this process reaps the first.
    """
    store = machine.store.server()
    for pid, code in host.wait_and_reap():
        if store is not None and pid == store.pid:
            print_message("gpuqueue", f"the store (pid {pid}) {ending_of(code)}: see {machine.host_log}")
    code = host.wait()
    if code == 0 and until is not None and _grace_s(machine.settings, until) < machine.settings.preempt_grace_s:
        click.echo("the time of this host is over", err=True)
        return 0
    why = f": {last_line(machine.host_log)}" if code == StoreUnreachable.exit_code else ""
    print_message("gpuqueue", f"the workers' host process ended with {code}{why} ({machine.host_log})")
    return code


def _show(page: PageService | None, port: int | None) -> None:
    """Start the web page, and print a link that signs a browser in."""
    if page is None:
        return
    is_new = page.start(port or 0)
    link, valid_s = sign_in_link(page.settings)
    report("page", "started" if is_new else "was running", "on this machine only; a new link: gpuqueue web")
    print_link(link, valid_s)
    trouble = page.trouble()
    if trouble is not None:
        print_message("gpuqueue: warning", trouble)


def _start(
    machine: Machine,
    devices: str | None,
    *,
    hold_jobs: bool,
    needs_store: bool = False,
    until: datetime | None = None,
) -> DetachedProcess | None:
    """Start the services that do not run yet; return the host process, or None if it ran already."""
    from gpuqueue.embedded.device_list import DeviceList  # noqa: PLC0415 - lazy import for startup time

    with machine.alone(), machine.tunnel():
        original = machine.own_directory(hold_jobs=hold_jobs)
        if machine.settings.record:
            # before anything starts: workers would run jobs that nobody can record
            refuse_newer_history(machine.settings.database_url)
        running = machine.host_running()
        if running is not None and needs_store and machine.is_of_foreground(running):
            # Its `up` was killed, since this one holds the lock. Its jobs go on without a worker for a moment.
            report("workers", "left over", f"pid {running.pid}, of an up that was killed: they are started again")
            machine.stop_host()
            running = None
        if running is not None:
            _refresh(machine, devices, running, until)
            return None
        spec = _devices(machine.settings, devices)
        served = () if spec == NO_DEVICES else DeviceList(spec).wait()
        store = machine.start_store()
        try:
            report("store", store, machine.status().store)
            start = partial(machine.start_host, spec, needs_store=needs_store, until=until)
            return _start_host(machine, spec, served, start, original=original)
        except BaseException:  # also KeyboardInterrupt: undo a partial start
            machine.stop_host()
            if store == "started":
                machine.stop_store()
            raise


def _devices(settings: Settings, given: str | None) -> str:
    """Return the devices that this account serves.

    Raises:
        BadRequest: devices are *given*, and the workers have another account.

    """
    if settings.workers_account is None:
        return given or settings.devices
    if given is not None:
        raise BadRequest(
            f"the workers here have the account {settings.workers_account}: leave out --devices, and start them with it"
        )
    return NO_DEVICES


def _start_host(
    machine: Machine,
    spec: str,
    served: Sequence[Device],
    start: Callable[[], DetachedProcess],
    *,
    original: str | None,
) -> DetachedProcess:
    _prepare_history(machine)
    _open_queue(machine)
    if original is not None:
        report("queue", "held", f"{machine.hold_jobs(original)} jobs of this copy of {original}")
    if spec == NO_DEVICES:
        host = start()
        report("recorder", "started", f"pid {host.pid}, logs in {machine.settings.logs_dir}")
        report("workers", "elsewhere", f"they have the account {machine.settings.workers_account}")
        return host
    machine.take_name()
    killed = machine.killed_runs()
    if killed is not None:
        print_message("gpuqueue", killed)
    _warn_of_missing(machine, served)
    since_ms = machine.queue.now_ms()
    host = start()
    ready, late = machine.wait_ready(host, served, since_ms)
    _warn_of_logout(machine.settings, host.pid)
    report("workers", "started", f"{len(ready)}, pid {host.pid}, logs in {machine.settings.logs_dir}")
    with contextlib.suppress(BrokenPipeError):
        click.echo(device_rows(ready, machine.settings, machine.queue.jobs.called))
    if any(each.lost_gpus for each in ready):
        print_message("gpuqueue: warning", REPAIR_OR_CPU)
    for device in late:
        print_message("gpuqueue: warning", f"{_named(device)} has no worker yet: {machine.why_not_ready(device.uuid)}")
    return host


def _warn_of_missing(machine: Machine, served: Sequence[Device]) -> None:
    """Warn of each device that the last workers of this host served, and that is not among those *served* now."""
    uuids = {device.uuid for device in served}
    for device in (status.device for status in machine.queue.devices.all(machine.settings.host)):
        if device.uuid not in uuids and device.kind.is_gpu and not device.is_unidentified:
            what = f"{_named(device)} is missing: it was served before. Jobs that name it wait"
            print_message("gpuqueue: warning", what)


def _named(device: Device) -> str:
    return f"device {device_label(device)} ({plain(device.name)}, {plain(device.uuid)})"


def _warn_of_logout(settings: Settings, pid: int) -> None:
    """Warn if a logout ends the queue of the host process *pid*, or deletes the shared memory of its jobs.

    Jobs that run as their submitters are warned of by ``install`` and ``doctor``.
    """
    account = current_account(settings.host)
    trouble = None if settings.launcher_in_use else Logind().trouble_of_queue(pid, account.name, account.uid)
    if trouble is not None:
        print_message("gpuqueue: warning", f"{trouble.seen}: {trouble.remedy}")


def _prepare_history(machine: Machine) -> None:
    """Create or upgrade the tables of the history.

    An unreachable history is an error only for a new store, which needs the highest job id from it. A host that records
    no history needs none.
    """
    if not machine.settings.record:
        report("history", "elsewhere", "the recorder beside the service writes it")
        return
    try:
        report("history", "ready", f"tables at revision {prepare_history(machine.settings.database_url)}")
    except HistoryUnreachable as error:
        if machine.queue.epoch() is None:
            raise
        _report_away(error)


def _report_away(error: HistoryUnreachable) -> None:
    report("history", "away", "it waits in the store; when the history database is back, run gpuqueue db upgrade")
    print_message("gpuqueue", str(error))


def _open_queue(machine: Machine) -> None:
    """Prepare the queue, and report if it was rebuilt after a loss of data, also if the recorder rebuilt it."""
    opened, pause_s = machine.open_queue(), machine.queue.recovery.pause_left_s()
    if pause_s:
        back = f"{opened.jobs} jobs are back" if opened is not None else "its jobs are back"
        pause = format_duration(pause_s)
        report("queue", "rebuilt", f"the store had lost its data: {back}, those that wait start in {pause}")


def _refresh(machine: Machine, devices: str | None, host: ProcessIdentity, until: datetime | None) -> None:
    """Repair a running machine: the store may have died, or an interrupted `down` may have drained the devices."""
    if machine.start_store() == "started":
        report("store", "restarted", machine.status().store)
    database_url = machine.settings.database_url
    try:
        if machine.settings.record and not history_exists(database_url):
            report("history", "created", f"tables at revision {prepare_history(database_url)}")
    except HistoryUnreachable as error:
        _report_away(error)
    _open_queue(machine)
    machine.resume()
    others = machine.other_versions()
    if others is not None:
        print_message("gpuqueue: warning", f"{others}: {RESTART}")
    if devices is not None and devices != machine.served(host):
        raise Refused(f"already up (pid {host.pid}): for other devices run gpuqueue down first")
    if until is not None and until != machine.end_of(host):
        raise Refused(f"already up (pid {host.pid}): for another end run gpuqueue down first, or gpuqueue drain --at")
    click.echo(f"already up (pid {host.pid}): see gpuqueue status", err=True)
