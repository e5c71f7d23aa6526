"""Checks of gpuqueue's processes on this machine: the host process, a worker for each device, the recorder."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib.machinery import ModuleSpec
from pathlib import Path

from gpuqueue.doctor.site import Site, or_none
from gpuqueue.embedded.machine import RESTART, Machine, of_other_versions
from gpuqueue.model.device import Device, DeviceKind, cards_in, names_gpus, without_beside
from gpuqueue.model.finding import Finding, Findings, note, ok, problem, unknown, warning
from gpuqueue.queue.diagnostics import DeviceFacts
from gpuqueue.queue.lease import SILENT_HEARTBEATS
from gpuqueue.settings.settings import Settings
from gpuqueue.settings.sources import settings_file, variable_of
from gpuqueue.system.account import members_of, name_of, runs_have_sessions, users_group
from gpuqueue.system.logind import Logind
from gpuqueue.system.process import ProcessIdentity
from gpuqueue.system.run_processes import children
from gpuqueue.system.timed_call import CallFailed
from gpuqueue.version import VERSION

#: Settings that workers do not use. Workers read all others when they start.
NOT_OF_WORKERS = frozenset(
    {"state_dir", "default_mem_bytes", "learn_memory", "mem_retries", "max_failures", "default_device"}
)
#: Fewest open files with which data loaders work, and the word of the kernel for no limit.
LEAST_OPEN_FILES, UNLIMITED = 4096, "unlimited"
#: Remedy for a device that the workers were not started for. A second ``up`` refuses other devices, and ``down``
#: withdraws the devices that hold no job.
WITH_ITS_DEVICES = (
    "gpuqueue down, then gpuqueue up with the same --devices as before; or without this device, if it is gone: down "
    "forgets it"
)
#: Forms in ``--devices``: the prefix of simulated devices, and the suffix that adds the CPU. The pattern matches one
#: kind of simulated device with its count.
_SIM = "sim:"
_SIMULATED = re.compile(r"(?:^|\+) *(?:([0-9]+)x)?[^+]+")


def away(_: Settings, why: CallFailed) -> Finding:
    """Return the finding that the processes cannot be checked."""
    return unknown(f"they cannot be checked: {why}", "repair the state directory first")


def host(site: Site) -> Findings:
    """Check that the host process runs. It keeps the workers alive."""
    settings = site.settings
    machine = Machine(settings)
    running = machine.host_running()
    if running is not None:
        return ok(f"pid {running.pid}")
    if (settings.state_dir / "host.pid").exists() and machine.original is None:  # gpuqueue down removes it
        seen = "the host process died without a message: nothing starts here, and running jobs end after their grace"
        return problem(seen, f"gpuqueue up; why it died: {settings.logs_dir / 'host.log'}")
    if settings.workers_account is not None:
        return problem("no recorder runs here, and nothing starts it", "start the unit gpuqueue-store")
    served = _served(site)
    if served:
        return ok(f"none: {len(served)} workers of this machine are started by another program")
    return note("no workers run on this machine", "gpuqueue up, if it should run jobs")


def _devices(site: Site) -> list[DeviceFacts] | None:
    """Return the devices of this machine that the store knows, or None if it does not answer."""
    queue, here = or_none(site.queue), site.settings.own_host
    return None if queue is None else [device for device in queue.devices if device.status.host == here]


def _served(site: Site) -> list[DeviceFacts]:
    """Return the devices of this machine whose workers send heartbeats."""
    silent_s = SILENT_HEARTBEATS * site.settings.heartbeat_s
    return [device for device in _devices(site) or () if device.status.seen_s_ago <= silent_s]


def workers(site: Site) -> Findings:
    """Check that each device has a worker."""
    machine, logs = Machine(site.settings), site.settings.logs_dir
    host = machine.host_running()
    if host is None:
        return ()
    if site.settings.workers_account is not None:
        who = site.settings.workers_account
        return ok(f"none: they have the account {who}; examine them with it, and with their settings file")
    running = {words[words.index("--device") + 1] for words in _children(host) if "--device" in words[:-1]}
    devices = _devices(site)
    if devices is None:
        return unknown(f"{len(running)} run; for how many devices, only the store knows")
    missing = [each.status.device for each in devices if each.status.device.uuid not in running]
    if not missing:
        return ok(f"{len(running)}, one for each device")
    reported = machine.served(host)
    return (
        problem(
            f"no worker serves device {device.index} ({device.uuid}): it ends again and again",
            f"why: {logs / (device.uuid + '.log')}",
            about=f"device {device.index}",
        )
        if is_meant(reported, device)
        else warning(
            f"device {device.index} ({device.uuid}) is not one of those that the workers were started for "
            f"(--devices {reported})",
            WITH_ITS_DEVICES,
            about=f"device {device.index}",
        )
        for device in missing
    )


def _children(host: ProcessIdentity) -> Iterator[list[str]]:
    """Yield the command line of each child of *host*, and of each child of these: the workers are among them."""
    for child in children(host.pid):
        for pid in (child, *children(child)):
            with contextlib.suppress(OSError):
                yield Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8", errors="replace").split("\0")


def is_meant(reported: str | None, device: Device) -> bool:
    """Return whether a host process with ``--devices`` *reported* (None: unknown) starts a worker for *device*."""
    if reported is None:
        return True
    spec = without_beside(reported)
    if device.kind is DeviceKind.SIMULATED:
        counts = _SIMULATED.findall(spec.removeprefix(_SIM)) if spec.startswith(_SIM) else []
        return device.index < sum(int(count or 1) for count in counts)
    if device.kind.is_engine:
        return reported.endswith(device.kind.value)
    if device.kind is DeviceKind.CPU:
        return ",cpu" in reported or spec in {"auto", "cpu"}
    cards = cards_in(spec)
    return names_gpus(spec) and (cards is None or device.card in cards)


def recorder(site: Site) -> Findings:
    """Check whether a recorder runs here."""
    host = Machine(site.settings).host_running()
    if host is None:
        return ()
    if any("record" in words for words in _children(host)):
        return ok("runs")
    if not site.settings.record:
        return ok("none: the host of the service records the history (record = false)")
    log = site.settings.logs_dir / "recorder.log"
    return note(
        "none runs here", f"right if one runs elsewhere (host --no-recorder); else it ends again and again: {log}"
    )


def version(site: Site) -> Findings:
    """Check that the workers have the installed version."""
    others = of_other_versions(_served(site))
    return ok(VERSION) if others is None else warning(others, RESTART)


def settings(site: Site) -> Findings:
    """Check that the running workers have the current settings."""
    host, here = Machine(site.settings).host_running(), site.settings
    if host is None:
        return ()
    restart = "gpuqueue down --leave-jobs, then gpuqueue up, if the workers should use it too"
    if _changed_since(host, settings_file(site.environ)):
        return warning("the settings file was changed after the workers had started", restart)
    environ = _environ(host.pid)
    if environ is None:
        return unknown("the environment of the host process cannot be read", "run this as its account, or as root")
    theirs, _ = Settings.salvage(environ)
    names = [name for name in here.origins.keys() - NOT_OF_WORKERS if getattr(theirs, name) != getattr(here, name)]
    if names:
        variables = ", ".join(sorted(variable_of(name) for name in names))
        return note(f"the workers were started with other values: {variables}", restart)
    return ok("the workers have the same")


def limits(site: Site) -> Findings:
    """Check the limits that jobs get from the workers. Jobs of submitters get those of the launcher or of a session."""
    host = Machine(site.settings).host_running()
    if host is None or site.settings.launcher_in_use is not None:
        return ()
    current = _limits_of(host.pid)
    if not current:
        return unknown("they cannot be read")
    bad = [warning(*words) for words in _tight(current)]
    names = ("open files", "processes", "locked memory")
    return bad or ok(", ".join(f"{name}: {current[name]}" for name in names if name in current))


def logout(site: Site, logind: Callable[[], Logind] = Logind) -> Findings:
    """Check that a logout neither ends the queue of this account nor deletes the shared memory of jobs."""
    host = Machine(site.settings).host_running()
    if site.settings.launcher_in_use is not None:
        group = None if runs_have_sessions() else users_group()  # a session of its own keeps its person logged in
        trouble = None if group is None else logind().trouble_of_jobs(members_of(group))
    elif host is not None and (uid := _owner_of(host.pid)) is not None:
        trouble = logind().trouble_of_queue(host.pid, name_of(uid), uid)
    else:
        return ()
    return ok("a logout changes nothing") if trouble is None else warning(*trouble)


def _tight(current: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with limits by which jobs fail, and what to do."""
    again = "then gpuqueue down --leave-jobs and gpuqueue up"
    files = current.get("open files", UNLIMITED)
    if files.isdecimal() and int(files) < LEAST_OPEN_FILES:
        seen = f"a process of a job can open only {files} files: data loaders with many workers fail"
        yield seen, f"raise nofile in /etc/security/limits.conf, or LimitNOFILE in the unit; log in again, {again}"
    for name in ("address space", "data size", "cpu time", "file size"):
        if current.get(name, UNLIMITED) != UNLIMITED:
            seen = f"the {name} of each process of a job is limited to {current[name]}: it fails there"
            yield seen, f"ulimit -a; take the limit away, {again}"


def _limits_of(pid: int) -> dict[str, str]:
    """Return the limits of a process by their names in the kernel: of open files the hard one, which jobs get."""
    try:
        lines = Path(f"/proc/{pid}/limits").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return {}
    rows = (re.match(r"Max (.+?) {2,}(\S+) +(\S+)", line) for line in lines)
    return {row[1]: row[3 if row[1] == "open files" else 2] for row in rows if row is not None}


def _owner_of(pid: int) -> int | None:
    try:
        return Path(f"/proc/{pid}").stat().st_uid
    except OSError:
        return None


def _environ(pid: int) -> dict[str, str] | None:
    try:
        text = Path(f"/proc/{pid}/environ").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return None  # the process belongs to another account
    return dict(pair.split("=", 1) for pair in text.split("\0") if "=" in pair)


def _changed_since(process: ProcessIdentity, file: Path) -> bool:
    """Return whether *file* was changed after *process* started. The kernel's boot time is exact to one second."""
    try:
        boot = next(line for line in Path("/proc/stat").read_text(encoding="ascii").splitlines() if "btime" in line)
        began_s = int(boot.split()[1]) + process.started / os.sysconf("SC_CLK_TCK")
        return file.stat().st_mtime > began_s + 1
    except (OSError, StopIteration, ValueError):
        return False


def bytecode(_: Site) -> Findings:
    """Check that commands find their modules compiled."""
    uncompiled = [_directory_of(each) for each in _without_bytecode()]
    if not uncompiled:
        return ok("the modules of this command are compiled")
    seen = f"{len(uncompiled)} modules are not compiled here: each command of this account compiles them again"
    command = shlex.join([sys.executable, "-m", "compileall", "-qq", *map(str, sorted(set(uncompiled)))])
    return warning(seen, f"as the owner of these files: {command}")


def _without_bytecode() -> Iterator[ModuleSpec]:
    """Yield the modules of this process that have no bytecode even now, since this account cannot write it."""
    for module in list(sys.modules.values()):
        spec = getattr(module, "__spec__", None)
        if isinstance(spec, ModuleSpec) and spec.cached and not os.access(spec.cached, os.R_OK):
            yield spec


def _directory_of(spec: ModuleSpec) -> Path:
    """Return the directory in which Python found the outermost package of a module."""
    depth = spec.name.count(".") + (spec.submodule_search_locations is not None)
    return Path(str(spec.origin)).parents[depth]


CHECKS = (host, workers, recorder, version, settings, limits, logout, bytecode)
