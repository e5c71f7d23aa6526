"""The internal command ``gpuqueue-worker``: each process of a worker host starts here, and so does the recorder.

Users run ``gpuqueue``, which calls it. On one person's machine the recorder also answers commands, see ``record``.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuqueue.clock import SystemClock
from gpuqueue.codec.wire import to_plain
from gpuqueue.console import print_message
from gpuqueue.console import run as run_command
from gpuqueue.errors import GpuQueueError, Refused
from gpuqueue.lazy.imports import later
from gpuqueue.model.device import Device, DeviceKind, names_gpus
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.settings.parsers import RunAs
from gpuqueue.settings.settings import Settings
from gpuqueue.system.process import shield, stop_signal
from gpuqueue.text.units import format_bytes, parse_bytes, parse_duration
from workers.devices.select import chosen, find, remember
from workers.services.log_records import SafeRecord
from workers.threads import SteadyEvent

if TYPE_CHECKING:
    from workers.devices import mps
else:  # few sites use it
    mps = later("workers.devices.mps")

log = logging.getLogger(__name__)

#: The socket of the launcher, as in the settings.
SOCKET = "/run/gpuqueue-launcher/launcher.sock"
#: The run directories of system mode.
RUNS = "/var/lib/gpuqueue-runs"
#: The control group of the unit that holds the runs, as `gpuqueue install` makes it.
RUNS_GROUP = "/system.slice/gpuqueue-runs.service"
#: How often a process checks that its parent is still alive, in seconds.
PARENT_POLL_S = 1.0

devices_option = click.option(
    "--devices",
    "spec",
    metavar="SPEC",
    help="auto, gpu, cpu, gpu,cpu (both), gpu:0,2 (only these), slurm, or simulated: sim:4x24G.",
)
parent_option = click.option("--parent", type=int, hidden=True, help="Stop when this process is gone.")


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def worker_commands() -> None:
    """Serve the devices of this machine."""


@worker_commands.command()
@devices_option
@click.option("--device", "wanted", default="0", show_default=True, help="Index, UUID or start of a UUID.")
@click.option("--plain", is_flag=True, help="Run without Celery (no Flower, no inspect).")
@click.option("--no-gpu", hidden=True, help="Why the CPU is served in place of GPUs.")
@parent_option
def run(spec: str | None, wanted: str, *, plain: bool, no_gpu: str | None, parent: int | None) -> None:
    """Serve one device until SIGTERM or Ctrl-C. Running jobs continue; the next worker takes them over."""
    from workers.worker import Worker  # noqa: PLC0415 - `devices` and --help need none of this

    settings = Settings.load()
    backend = chosen(settings, spec)
    device = find(backend, wanted)
    if device.kind is DeviceKind.GPU:
        from workers.measure.context import with_context  # noqa: PLC0415 - only for a GPU

        device = with_context(settings, backend, device)
    worker = Worker(settings, backend, device if no_gpu is None else replace(device, no_gpu=no_gpu), SystemClock())
    if plain:
        from workers import threaded as host  # noqa: PLC0415 - only where asked for

        host.serve(worker, _stop_signal(parent))
        return
    from workers import celery_app  # noqa: PLC0415 - as above: Celery's import is the largest

    _watch_parent(parent, lambda: os.kill(os.getpid(), stop_signal()))
    sys.exit(celery_app.serve(worker))


@worker_commands.command(hidden=True)
@click.argument("fd", type=int)
def parent(fd: int) -> None:
    """Fork the workers of a host process, which asks for them over the socket FD, after their modules are loaded."""
    from workers import celery_app  # noqa: PLC0415 - only here
    from workers.services import worker_parent  # noqa: PLC0415 - only here

    celery_app.preload()
    if worker_parent.serve(fd):
        sys.exit(run_command(worker_commands, "gpuqueue-worker"))


@worker_commands.command()
@click.option(
    "--socket",
    "path",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Answer the commands of this account there, if the libraries of the service are installed.",
)
@parent_option
def record(path: Path | None, parent: int | None) -> None:
    """Write the history, recover the leases of lost workers, send notifications, and submit repeating jobs."""
    from gpuqueue.history.database import HistoryDatabase  # noqa: PLC0415 - only here
    from gpuqueue.queue.scripts import load_all  # noqa: PLC0415 - only here
    from workers.services.prune import HistoryPruner  # noqa: PLC0415 - only here
    from workers.services.reaper import Reaper  # noqa: PLC0415 - only here
    from workers.services.recorder import Recorder  # noqa: PLC0415 - only here
    from workers.services.sender import Sender  # noqa: PLC0415 - only here

    load_all()
    settings = Settings.load()
    stopping = _stop_signal(parent)
    reaper = Reaper(settings, JobQueue.of(settings), SystemClock())
    threading.Thread(target=reaper.loop, args=(stopping,), name="gpuqueue-reaper", daemon=True).start()
    sender = Sender(settings, JobQueue.of(settings), HistoryDatabase(settings.database_url))
    threading.Thread(target=sender.loop, args=(stopping,), name="gpuqueue-sender", daemon=True).start()
    database = HistoryDatabase(settings.database_url, keep_secrets=settings.keep_secrets)
    pruner = HistoryPruner(settings, SystemClock(), database, JobQueue.of(settings))
    threading.Thread(target=pruner.loop, args=(stopping,), name="gpuqueue-pruner", daemon=True).start()
    if path is not None:
        threading.Thread(target=_serve, args=(settings, path, stopping), name="gpuqueue-api").start()
    elif settings.run_as is RunAs.WORKER:  # otherwise the service has the key of the tickets
        threading.Thread(target=_repeat, args=(settings, stopping), name="gpuqueue-repeating").start()
    try:
        Recorder(settings, JobQueue.of(settings), database).loop(stopping)
    finally:
        stopping.set()  # the API ends as well, so that this process ends and is started again
    sender.leave()


def _serve(settings: Settings, path: Path, stopping: threading.Event) -> None:
    """Serve the API at *path* until *stopping* is set. Without it, commands ask store and history themselves."""
    try:
        from gpuqueue.service import server  # noqa: PLC0415 - needs the extra, and is slow to import
        from gpuqueue.service.identity.site_identity import SiteIdentity  # noqa: PLC0415 - as above
    except ModuleNotFoundError as error:
        log.info("commands are not answered: %s is not installed", error.name)
        _repeat(settings, stopping)
        return
    try:
        server.serve(settings, SiteIdentity(settings), server.Listen(path=path, is_private=True), stopping=stopping)
    except GpuQueueError as error:
        log.error("commands are not answered: %s", error)  # noqa: TRY400 - a traceback does not help


def _repeat(settings: Settings, stopping: threading.Event) -> None:
    """Submit the repeating jobs of this account until *stopping* is set. It needs no libraries of a service."""
    from gpuqueue.service.identity.site_identity import SiteIdentity  # noqa: PLC0415 - only here
    from gpuqueue.service.repeating import Repeater  # noqa: PLC0415 - only here

    identity = SiteIdentity(settings)
    identity.start()
    try:
        Repeater(settings, identity, SystemClock(), only_uid=os.geteuid()).loop(stopping)
    finally:
        identity.close()


@worker_commands.command()
@click.option("--account", default="gpuqueue", show_default=True, help="Account of the service.")
def notify(account: str) -> None:
    """Send messages to URLs of users, on behalf of the service of this machine, with an account that has no file."""
    # A new interpreter: isolated from the variables of this one, and with nothing of it in its memory.
    os.execv(sys.executable, [sys.executable, "-I", "-m", "gpuqueue.notify.notifier", "--account", account])  # noqa: S606


@worker_commands.command()
@click.option(
    "--last",
    metavar="TIME",
    help="For a host that leaves for good, without workers: send what is left, for so long at most, and end.",
)
@parent_option
def relay(parent: int | None, last: str | None) -> None:
    """Send logs and kept files to the service, and serve its requests. Without a service: pack kept files."""
    from workers.relay.relay import Relay  # noqa: PLC0415 - only here

    settings, stopping = Settings.load(), _stop_signal(parent)
    if last is None:
        Relay(settings).serve(stopping)
        return
    from workers.relay.last_delivery import deliver  # noqa: PLC0415 - only here

    left = deliver(settings, stopping, parse_duration(last))
    if left:
        raise GpuQueueError(f"not all was sent of {left} run{'s' if left > 1 else ''}")


@worker_commands.command()
@click.option("--for-command", is_flag=True, hidden=True, help="Say when it works, and end with standard input.")
@parent_option
def tunnel(*, for_command: bool, parent: int | None) -> None:
    """Offer the store of the site to this host: a socket whose connections go through the service."""
    from workers.relay.tunnel import Tunnel  # noqa: PLC0415 - only here

    settings = Settings.load()
    if not settings.store_through_service:
        raise Refused("this host does not reach the store through a service: set service_url, and no redis_url")
    stopping = _stop_signal(parent)
    if not for_command:
        Tunnel(settings).serve(stopping)
        return

    def watch() -> None:
        sys.stdin.read()
        stopping.set()

    threading.Thread(target=watch, name="gpuqueue-command", daemon=True).start()
    Tunnel(settings).serve(stopping, lambda: click.echo("ready"))


@worker_commands.command()
@devices_option
@click.option("--no-recorder", is_flag=True, help="Do not start a recorder: one runs on another host (setting record).")
@click.option("--needs-store", is_flag=True, help="End with exit code 4 if the store cannot be started again.")
@click.option("--until", metavar="TIME", help="When the time of this machine is over: gpuqueue up --until says it.")
def host(spec: str | None, *, no_recorder: bool, needs_store: bool, until: str | None) -> None:
    """Serve every device of this machine: a worker for each, the recorder, and the relay when there is work for it.

    It also starts the store again that `gpuqueue up` has started, if it dies. With --devices none, there are no
    workers: those of this machine have another account.
    """
    from gpuqueue.embedded.device_list import DeviceList  # noqa: PLC0415 - only here
    from gpuqueue.model.times import end  # noqa: PLC0415 - only here
    from workers.services.host import Host  # noqa: PLC0415 - only here

    settings = Settings.load()
    spec = spec or settings.devices
    if spec == "none":
        devices: tuple[Device, ...] = ()
    elif names_gpus(spec):  # a driver call that never returns would keep this process from ending
        devices = DeviceList(spec, checked=False).wait()
        remember(settings, devices)
    else:
        devices = chosen(settings, spec).devices()
    record = settings.record and not no_recorder
    until_at = None if until is None else end("--until", until)
    Host(settings, devices, spec, record=record, needs_store=needs_store, until=until_at).serve(_stop_signal(None))


@worker_commands.command()
@click.option("--end", is_flag=True, help="End these jobs, and wait until they are gone.")
@click.option("--forget", is_flag=True, help="Of a copied state directory: settle all runs, and end nothing.")
def left(*, end: bool, forget: bool) -> None:
    """List the jobs of this machine that run without a worker. Needs no store."""
    from workers.run import orphans as runs  # noqa: PLC0415 - only here

    settings = Settings.load()
    if forget:
        runs.forget(settings)
        return
    if end:
        runs.end(settings)
    found = ", ".join(str(job_id) for job_id in sorted(runs.left(settings)))
    if found:
        click.echo(f"job {found} still runs")


@worker_commands.command()
def killed() -> None:
    """Print as JSON the runs of this machine that were killed together with their shims. Needs no store."""
    from workers.run.orphans import killed as runs  # noqa: PLC0415 - only here

    click.echo(json.dumps(to_plain(runs(Settings.load()))))


@worker_commands.command()
@click.option("--account", default="gpuqueue", show_default=True, help="Account of the workers.")
@click.option("--group", default="gpuqueue-users", show_default=True, help="Group whose members' jobs are started.")
@click.option("--socket", default=SOCKET, show_default=True, help="Where workers find it.")
@click.option("--runs", default=RUNS, show_default=True, help="Directory of the workers' run directories (runs_dir).")
@click.option("--allow-setuid", is_flag=True, envvar="GPUQUEUE_ALLOW_SETUID", help="Let jobs run set-user-ID programs.")
@click.option("--runs-group", default=RUNS_GROUP, show_default=True, help="Control group of the runs' unit.")
@click.option("--run-memory", metavar="SIZE", envvar="GPUQUEUE_RUN_MEMORY", help="Most host memory of one run.")
@click.option(
    "--run-cpus",
    type=click.FloatRange(0.01, 10_000),
    metavar="N",
    envvar="GPUQUEUE_RUN_CPUS",
    help="Most processors that one run may keep busy.",
)
@click.option(
    "--run-processes",
    type=click.IntRange(min=1),
    metavar="N",
    envvar="GPUQUEUE_RUN_PROCESSES",
    help="Most processes and threads of one run.",
)
@click.option(
    "--remove-shared-memory",
    is_flag=True,
    envvar="GPUQUEUE_REMOVE_SHARED_MEMORY",
    help="Remove shared memory that a run has used and left.",
)
@click.option(
    "--ticket-key",
    metavar="FILE",
    envvar="GPUQUEUE_TICKET_KEY",
    help="Key of the service: start only jobs that it has signed.",
)
@click.option("--pam-service", metavar="NAME", help="PAM service that opens a session for each run.")
@click.option(
    "--login-shells",
    metavar="SHELL,…",
    envvar="GPUQUEUE_LOGIN_SHELLS",
    help="Login shells of people who may run jobs. Default: those of /etc/shells, less the restricted ones.",
)
@click.option("--check", is_flag=True, help="Only check that nobody but root can change this installation.")
def launcher(*, check: bool, run_memory: str | None, **words: str | float | bool | None) -> None:
    """Start jobs as their submitters, on behalf of this machine's workers. Needs root."""
    if check:
        _check_installation()
        return
    words["run_memory_bytes"] = None if run_memory is None else parse_bytes(run_memory)
    options: list[str] = []
    for name, value in words.items():
        if value is not None and value is not False:
            options += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    main = Path(__file__).with_name("launcher") / "main.py"
    # A new interpreter: isolated, without site-packages, and with nothing of this one in its memory.
    os.execv(sys.executable, [sys.executable, "-I", "-S", "-X", "utf8", str(main), *options])  # noqa: S606


def _check_installation() -> None:
    from workers.launcher.installation import first_changeable  # noqa: PLC0415 - only here

    path = first_changeable()
    if path is not None:
        raise Refused(f"{path} can be changed by others than root: install gpuqueue and its Python where only root can")


@worker_commands.command()
def pack() -> None:
    """Write files of a run to standard output, as a tar archive. Standard input says which, in JSON."""
    from gpuqueue.files.pack_program import MOST_BYTES, PackRequest  # noqa: PLC0415 - only here
    from workers.results.command import pack_results  # noqa: PLC0415 - only here

    request = PackRequest.read(sys.stdin.buffer.read(MOST_BYTES))
    launcher = Settings.load().launcher_in_use
    for line in pack_results(request, launcher, sys.stdout.fileno()):
        print_message("gpuqueue-worker", line)


@worker_commands.command()
@click.option("--for", "how_long", default="7d", show_default=True, metavar="TIME", help="How long the jobs may run.")
def park(how_long: str) -> None:
    """Let this machine's jobs run without a worker (`gpuqueue down --leave-jobs` does this)."""
    from workers.services.adoption import park as leave_alone  # noqa: PLC0415 - only here

    number = leave_alone(Settings.load(), parse_duration(how_long))
    if number == 1:
        click.echo(f"1 job goes on without a worker for up to {how_long}")
    else:
        click.echo(f"{number} jobs go on without a worker for up to {how_long}")


@worker_commands.command()
@devices_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--unchecked", is_flag=True, hidden=True, help="List them also where MPS is on and does not run.")
def devices(spec: str | None, *, as_json: bool, unchecked: bool) -> None:
    """List the devices that this machine would serve."""
    settings = Settings.load()
    found = chosen(settings, spec).devices()
    if settings.mps and not unchecked:
        mps.check(settings, found)
    if as_json:
        click.echo(json.dumps(to_plain(found)))
        return
    for device in found:
        click.echo(f"{device.index}  {device.uuid}  {format_bytes(device.total_bytes)}  {device.name}")


@worker_commands.command()
@click.option("--deep", is_flag=True, help="Include slow checks, as gpuqueue doctor --deep.")
@click.option("--fix", is_flag=True, help="Make safe repairs before the checks, and report each.")
def doctor(*, deep: bool, fix: bool) -> None:
    """Run the checks of the worker side for `gpuqueue doctor`. Prints one JSON object per finding."""
    from gpuqueue.codec.wire import to_plain  # noqa: PLC0415 - only here
    from workers.doctor import examination  # noqa: PLC0415 - only here

    settings, _ = Settings.salvage()  # `gpuqueue doctor` reports the errors in the settings
    for what in examination.repair(settings) if fix else ():
        click.echo(json.dumps({"repair": what}))
    for finding in examination.examine(settings, os.environ, deep=deep):
        click.echo(json.dumps(to_plain(finding)))  # printed one by one, since the next check may hang


@worker_commands.command()
@click.argument("part", type=click.Choice(["host", "recorder"]))
def health(part: str) -> None:
    """Exit with 0 if a part of this machine does its work, for the health checks of containers."""
    from workers.doctor.examination import trouble_of  # noqa: PLC0415 - only here

    settings = Settings.load()
    trouble = trouble_of(part, JobQueue.of(settings), settings)
    if trouble:
        raise GpuQueueError(trouble)


def _stop_signal(parent: int | None) -> threading.Event:
    """Return an event that SIGTERM, Ctrl-C or the end of *parent* sets."""
    stopping = SteadyEvent()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    shield()
    _watch_parent(parent, stopping.set)
    return stopping


def _watch_parent(parent: int | None, act: object) -> None:
    """Call *act* when the parent process is gone, because nothing would supervise or restart this process."""
    if parent is None or not callable(act):
        return

    def watch() -> None:
        never = SteadyEvent()
        while os.getppid() == parent:
            never.wait(PARENT_POLL_S)
        act()

    threading.Thread(target=watch, name="gpuqueue-parent", daemon=True).start()


def main() -> None:
    """Run the command. Print an error as one line on stderr and exit with a documented exit code."""
    logging.setLogRecordFactory(SafeRecord)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    sys.exit(run_command(worker_commands, "gpuqueue-worker"))


if __name__ == "__main__":
    main()
