"""``up``, ``status``, ``down``, ``gpus`` and ``db``: this machine's part of the queue."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from gpuqueue.cli import render
from gpuqueue.cli.completing import listed, one_of
from gpuqueue.cli.device_table import device_table
from gpuqueue.cli.drain import drain_lines, drain_plain, jobs_on, kept_lines
from gpuqueue.cli.fitting import terminal_width
from gpuqueue.cli.json_option import json_option
from gpuqueue.client import Client
from gpuqueue.codec import device_to_plain
from gpuqueue.command import say
from gpuqueue.embedded.machine import Machine, MachineStatus
from gpuqueue.errors import BadRequest, BookUnreachable, Refused, Unreachable
from gpuqueue.event import BEHIND_S
from gpuqueue.process import DetachedProcess, ProcessIdentity
from gpuqueue.queue.lease import DeviceStatus
from gpuqueue.settings import Settings
from gpuqueue.units import format_bytes, format_duration
from gpuqueue.words import plain, short

if TYPE_CHECKING:
    from gpuqueue.queue.jobqueue import JobQueue


@click.command()
@click.option(
    "--devices",
    metavar="SPEC",
    help="auto, gpu, cpu, or simulated ones such as sim:4x24G or sim:1x8G+1x16G; gpu,cpu serves both.",
    shell_complete=listed(one_of(("auto", "gpu", "cpu"))),
)
@click.option("--foreground", is_flag=True, help="Stay here until SIGTERM or Ctrl-C, for systemd and containers.")
def up(devices: str | None, *, foreground: bool) -> None:
    """Start all that this machine needs: the store, the history's tables, a worker for each device, the recorder.

    \b
    Examples:
      gpuqueue up
      gpuqueue up --devices sim:2x24G              to try things out without a GPU
      gpuqueue up --devices sim:1x8G+1x16G         the same, of two kinds
      gpuqueue up --foreground                     for systemd and containers
    """  # noqa: D301 - \b is click's mark for lines to keep
    if devices is not None and not devices.strip():
        raise BadRequest("--devices is empty: write auto, gpu, cpu or simulated ones like sim:4x24G, or leave it out")
    machine = Machine(Settings.load())
    if not foreground:
        _start(machine, devices)
        return
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)  # as Ctrl-C, from the first moment on
    code = 0
    try:
        host = _start(machine, devices)
        if host is None:
            raise Refused("it is up already, in the background: run gpuqueue down first")
        code = host.wait()
        click.echo(f"gpuqueue: the workers' host process ended with {code}: see {machine.settings.logs_dir}", err=True)
    except KeyboardInterrupt:
        grace = format_duration(machine.settings.shim_grace_s)
        click.echo(f"stopping; running jobs go on for {grace} without a worker: start again before that", err=True)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)  # nothing may be left half stopped
    with machine.alone(patient=True):  # a `down` may be at work; it needs the store to the last
        machine.stop_host()
        machine.stop_store()
    sys.exit(1 if code else 0)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def _start(machine: Machine, devices: str | None) -> DetachedProcess | None:
    """Start what does not run yet and tell it; return the host process, None if there was one."""
    with machine.alone():
        running = machine.host_running()
        if running is not None:
            _refresh(machine, devices, running)
            return None
        spec = devices or machine.settings.devices
        wanted = machine.find_devices(spec)
        store = machine.start_store()
        try:
            _tell("store", store, machine.status().store)
            return _start_host(machine, spec, wanted)
        except BaseException:  # an interrupt as well: what is half up is taken down again
            machine.stop_host()
            if store == "started":
                machine.stop_store()
            raise


def _start_host(machine: Machine, spec: str, wanted: Sequence[str]) -> DetachedProcess:
    _prepare_book(machine)
    _open_queue(machine)
    since_ms = machine.queue.now_ms()
    host = machine.start_host(spec)
    ready = machine.wait_ready(host, wanted, since_ms)
    _tell("workers", "started", f"{len(ready)}, pid {host.pid}, logs in {machine.settings.logs_dir}")
    with contextlib.suppress(BrokenPipeError):
        click.echo(_device_rows(ready, machine.settings, machine.queue))
    return host


def _prepare_book(machine: Machine) -> None:
    """Bring the book's tables up. Only a new store needs the book at once, for the highest id that was given out."""
    try:
        _tell("history", "ready", f"tables at revision {machine.prepare_book()}")
    except BookUnreachable as error:
        if machine.queue.epoch() is None:
            raise
        _tell_away(error)


def _tell_away(error: BookUnreachable) -> None:
    _tell("history", "away", "it waits in the store; when the book is back, run gpuqueue db upgrade")
    say("gpuqueue", str(error))


def _open_queue(machine: Machine) -> None:
    """Make the store ready, and tell it where it had lost its data: also when the recorder was faster than we."""
    opened, pause_s = machine.open_queue(), machine.queue.pause_left_s()
    if pause_s:
        back = f"{opened.jobs} jobs are back" if opened is not None else "its jobs are back"
        pause = format_duration(pause_s)
        _tell("queue", "rebuilt", f"the store had lost its data: {back}, those that wait start in {pause}")


def _refresh(machine: Machine, devices: str | None, host: ProcessIdentity) -> None:
    """Mend what is up already: the store may have died, or an interrupted `down` may have closed the devices."""
    if machine.start_store() == "started":
        _tell("store", "restarted", machine.status().store)
    try:
        if not machine.has_book():
            _tell("history", "made anew", f"tables at revision {machine.prepare_book()}")
    except BookUnreachable as error:
        _tell_away(error)
    _open_queue(machine)
    machine.resume()
    if devices is not None and devices != machine.served(host):
        raise Refused(f"already up (pid {host.pid}): for other devices run gpuqueue down first")
    click.echo(f"already up (pid {host.pid}): see gpuqueue status", err=True)


def _tell(what: str, how: str, where: str) -> None:
    """Say in a line what was done. Where nobody reads on (`up | head`), what is to be done is done all the same."""
    with contextlib.suppress(BrokenPipeError):
        click.echo(f"{what:8} {how:12} {plain(where)}")


@click.command()
@json_option
def status(*, as_json: bool) -> None:
    """Tell what runs here. Exit code 4 if the store does not answer.

    \b
    Examples:
      gpuqueue status
      gpuqueue status --json | jq .waiting
    """  # noqa: D301 - \b is click's mark for lines to keep
    settings = Settings.load()
    machine = Machine(settings)
    found = machine.status()
    if as_json:
        plain = {
            "store": found.store,
            "store_answers": found.store_answers,
            "host_pid": found.host_pid,
            "waiting": found.waiting,
            "active": found.active,
            "unrecorded": found.unrecorded,
            "unrecorded_s": found.unrecorded_s,
            "devices": [device_plain(each) for each in found.devices],
        }
        click.echo(json.dumps(plain, indent=2))
    else:
        _tell("store", "answers" if found.store_answers else "silent", found.store)
        _tell(
            "workers",
            "up" if found.host_pid else "down",
            f"pid {found.host_pid}" if found.host_pid else "start: gpuqueue up",
        )
        if found.store_answers:
            _tell("jobs", f"{found.active} active", f"{found.waiting} waiting")
            _tell("history", *_how_far(found))
        if found.devices:
            click.echo(_device_rows(found.devices, settings, machine.queue))
    sys.exit(0 if found.store_answers else Unreachable.exit_code)


def _how_far(found: MachineStatus) -> tuple[str, str]:
    """Return in words how far the book is behind the queue."""
    late_s = found.unrecorded_s
    if late_s is None or late_s <= BEHIND_S:
        return "recorded", ""
    waits = f"{found.unrecorded} events wait for the book, the oldest for {format_duration(late_s)}"
    return "behind", f"{waits}: see gpuqueue doctor"


@click.command()
@click.option("--leave-jobs", is_flag=True, help="Do not wait: running jobs go on, the next `up` takes them over.")
@click.option("--cancel-jobs", is_flag=True, help="Cancel the running jobs, and wait until they are gone.")
def down(*, leave_jobs: bool, cancel_jobs: bool) -> None:
    """Let the running jobs end, then stop workers, recorder and store. Waiting jobs stay in the queue.

    \b
    Examples:
      gpuqueue down
      gpuqueue down --leave-jobs                   then upgrade, then gpuqueue up
    """  # noqa: D301 - \b is click's mark for lines to keep
    if leave_jobs and cancel_jobs:
        raise BadRequest("--leave-jobs and --cancel-jobs contradict each other: say one of them")
    machine = Machine(Settings.load())
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)  # a closed terminal must not leave the devices drained
    with machine.alone():
        _quiesce(machine, leave=leave_jobs, cancel=cancel_jobs)
        _tell("workers", "stopped" if machine.stop_host() else "were down", "")
        if cancel_jobs:
            machine.end_left_jobs()
        left = machine.left_jobs()
        if left and leave_jobs:
            click.echo(f"{machine.park_jobs()}: the next gpuqueue up takes them over", err=True)
        elif not left:
            _forget(machine)
        not_ours = "was down" if machine.settings.embedded else "left alone"
        _tell("store", "stopped" if machine.stop_store() else not_ours, machine.status().store)
    if left and not leave_jobs:
        raise Refused(f"{left} without a worker: gpuqueue up takes over, gpuqueue down --cancel-jobs ends it")


def _quiesce(machine: Machine, *, leave: bool, cancel: bool) -> None:
    """Let nothing new start, and deal with what runs as asked."""
    try:
        machine.drain()
        if cancel:
            for job_id in machine.running_jobs():
                machine.queue.cancel(job_id)
        if not leave and machine.host_running() is not None:
            _drain(machine)
    except Unreachable as error:
        say("gpuqueue", str(error))
    except KeyboardInterrupt:
        machine.resume()
        click.echo("gpuqueue: stopped waiting: the machine stays up and takes jobs again", err=True)
        raise


def _drain(machine: Machine) -> None:
    """Wait until no job holds a device of this machine, and tell who is waited for."""
    told: Sequence[int] = ()
    while running := machine.running_jobs():
        if running != told:
            called = machine.queue.called(running)
            jobs = ", ".join(called.get(job_id, str(job_id)) for job_id in running)
            click.echo(f"waiting for job {jobs} to end (Ctrl-C stops waiting; --leave-jobs, --cancel-jobs)", err=True)
            told = running
        time.sleep(0.2)


def _forget(machine: Machine) -> None:
    try:
        machine.forget_devices()
    except Unreachable:
        return  # a store that is away has nothing to be told


@click.command()
@json_option
def gpus(*, as_json: bool) -> None:
    """List the devices: what is promised on each, what strangers hold, what a new job could get, for whom it is kept.

    \b
    Examples:
      gpuqueue gpus
      gpuqueue gpus --json | jq '.[] | {uuid, free_bytes}'
    """  # noqa: D301 - \b is click's mark for lines to keep
    with Client() as client:
        found = client.devices()
        rows = _device_rows(found, client.settings, client.queue) if found and not as_json else ""
    if as_json:
        click.echo(json.dumps([device_plain(each) for each in found], indent=2))
    elif found:
        click.echo(rows)
        for line in _stranger_lines(found):
            click.echo(line)
    else:
        click.echo("no worker has announced a device: start one with gpuqueue up", err=True)


def _device_rows(found: Sequence[DeviceStatus], settings: Settings, queue: JobQueue) -> str:
    """Return the table of devices and what stands below it; *queue* knows what their jobs are called."""
    called = queue.called(jobs_on(found))
    table = device_table(found, settings.beat_s, terminal_width(), called)
    return "\n".join((table, *drain_lines(found), *kept_lines(found, called)))


def _stranger_lines(found: Sequence[DeviceStatus]) -> Iterator[str]:
    """Yield a line for each process that the queue did not start, so that one knows whom to ask."""
    for each in found:
        for stranger in each.strangers:
            who = f"{plain(stranger.user or 'somebody')}, pid {stranger.pid}"
            what = short(stranger.command or "cannot be seen", 60)
            held = "unknown" if stranger.held_bytes is None else format_bytes(stranger.held_bytes)
            label = render.device_label(each.device)
            yield f"stranger on {plain(each.host)} device {label}: {held}  {who}  {what}"


def device_plain(each: DeviceStatus) -> dict[str, object]:
    """Return a device and how it stands as plain values."""
    return {
        **device_to_plain(each.device),
        "host": each.host,
        "worker": each.worker,
        "headroom_bytes": each.headroom_bytes,
        "foreign_bytes": each.foreign_bytes,
        "promised_bytes": each.promised_bytes,
        "free_bytes": each.free_bytes,
        "jobs": list(each.jobs),
        "holdings": [asdict(holding) for holding in each.holdings],
        "exclusive": each.exclusive,
        "kept_for": each.kept.job_id if each.kept else None,
        "kept_since": each.kept.since.isoformat(timespec="milliseconds") if each.kept and each.kept.since else None,
        "slots": each.slots,
        "pool": each.pool,
        "seen_s_ago": each.seen_s_ago,
        "drained": each.drained,
        "drains": [drain_plain(said) for said in each.drains],
        "trouble": each.trouble,
        "strangers": [asdict(stranger) for stranger in each.strangers],
    }


@click.group()
def db() -> None:
    """Look after the history's tables.

    \b
    Examples:
      gpuqueue db upgrade
    """  # noqa: D301 - \b is click's mark for lines to keep


@db.command()
def upgrade() -> None:
    """Bring the tables of GPUQUEUE_DATABASE_URL to this version.

    \b
    Examples:
      gpuqueue db upgrade
      GPUQUEUE_DATABASE_URL=postgresql://db/gpuqueue gpuqueue db upgrade
    """  # noqa: D301 - \b is click's mark for lines to keep
    _tell("history", "ready", f"tables at revision {Machine(Settings.load()).prepare_book()}")
