"""Checks of gpuqueue's processes on this machine: the host process, a worker for each device, the recorder."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib.machinery import ModuleSpec
from pathlib import Path

from gpuqueue.embedded.machine import Machine
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.device import Device, DeviceKind
from gpuqueue.model.finding import Findings, note, ok, problem, unknown, warning
from gpuqueue.queue.diagnostics import DeviceFacts, QueueFacts
from gpuqueue.queue.lease import SILENT_HEARTBEATS
from gpuqueue.settings.settings import Settings
from gpuqueue.settings.sources import settings_file, variable_of
from gpuqueue.system.process import ProcessIdentity
from gpuqueue.version import VERSION

#: Settings that workers do not use. Workers read all others when they start.
NOT_OF_WORKERS = frozenset({"state_dir", "default_mem_bytes", "learn_memory", "mem_retries", "default_device"})
#: Remedy for a device that the workers were not started for. A second ``up`` refuses other devices, and ``down``
#: withdraws the devices that hold no job.
WITH_ITS_DEVICES = (
    "gpuqueue down, then gpuqueue up with the same --devices as before; or without this device, if it is gone: down "
    "forgets it"
)
#: Forms in ``--devices``: the prefix of simulated devices, and the suffix that adds the CPU. The pattern matches one
#: kind of simulated device with its count.
_SIM, _BESIDE = "sim:", ",cpu"
_SIMULATED = re.compile(r"(?:^|\+) *(?:([0-9]+)x)?[^+]+")


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessFacts:
    """Facts about the processes of this state directory on this machine."""

    settings: Settings
    #: Whether a host process was started here and not stopped by ``down``, and its identity if it is alive.
    expected: bool
    host: ProcessIdentity | None
    #: UUIDs of the devices that its workers serve, and whether its recorder runs. Empty and False without a host.
    workers: frozenset[str]
    recorder: bool
    #: The host process's ``--devices``. None if it is unknown.
    reported: str | None
    #: The environment with which the host process started. None if this account may not read it.
    environ: Mapping[str, str] | None
    #: Whether the settings file was changed after the host process had started.
    file_changed: bool
    #: How many modules this command had to compile because their bytecode is missing, and where they are.
    uncompiled: int = 0
    code: tuple[Path, ...] = ()
    #: The devices of this machine from the store. None if the store does not answer.
    devices: tuple[DeviceFacts, ...] | None = None

    def with_queue(self, queue: QueueFacts | None) -> ProcessFacts:
        """Return the same facts with this machine's devices from *queue*."""
        if queue is None:
            return self
        here = self.settings.own_host
        return replace(self, devices=tuple(each for each in queue.devices if each.status.host == here))

    @property
    def silent_s(self) -> float:
        """Return the age of the last heartbeat above which a worker is silent, in seconds."""
        return SILENT_HEARTBEATS * self.settings.heartbeat_s

    @property
    def served(self) -> tuple[DeviceFacts, ...]:
        """Return the devices of this machine whose workers send heartbeats."""
        return tuple(each for each in self.devices or () if each.status.seen_s_ago <= self.silent_s)


# ---- gathering facts -------------------------------------------------------------------------------------------------


def process_facts(settings: Settings, environ: Mapping[str, str]) -> ProcessFacts:
    """Return the facts that /proc and the state directory give."""
    machine = Machine(settings)
    host = machine.host_running()
    words = list(_children(host.pid)) if host is not None else []
    uncompiled = [_directory_of(each) for each in _without_bytecode()]
    return ProcessFacts(
        settings=settings,
        expected=(settings.state_dir / "host.pid").exists(),
        host=host,
        workers=frozenset(each[each.index("--device") + 1] for each in words if "--device" in each[:-1]),
        recorder=any("record" in each for each in words),
        reported=machine.served(host) if host is not None else None,
        environ=_environ(host.pid) if host is not None else None,
        file_changed=host is not None and _changed_since(host, settings_file(environ)),
        uncompiled=len(uncompiled),
        code=tuple(sorted(set(uncompiled))),
    )


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


def _children(pid: int) -> Iterator[list[str]]:
    """Yield the command line of each child of *pid*."""
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in children.read_text(encoding="ascii").split():
            with contextlib.suppress(OSError):
                yield Path(f"/proc/{child}/cmdline").read_text(encoding="utf-8", errors="replace").split("\0")


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


# ---- checks ----------------------------------------------------------------------------------------------------------


def host(facts: ProcessFacts) -> Findings:
    """Check that the host process runs. It keeps the workers alive."""
    if facts.host is not None:
        return ok(f"pid {facts.host.pid}")
    if facts.expected:
        seen = "the host process died without a message: nothing starts here, and running jobs end after their grace"
        return problem(seen, f"gpuqueue up; why it died: {facts.settings.logs_dir / 'host.log'}")
    if facts.settings.workers_account is not None:
        return problem("no recorder runs here, and nothing starts it", "start the unit gpuqueue-store")
    if facts.served:
        return ok(f"none: {len(facts.served)} workers of this machine are started by another program")
    return note("no workers run on this machine", "gpuqueue up, if it should run jobs")


def workers(facts: ProcessFacts) -> Findings:
    """Check that each device has a worker."""
    if facts.host is None:
        return ()
    if facts.settings.workers_account is not None:
        who = facts.settings.workers_account
        return ok(f"none: they have the account {who}; examine them with it, and with their settings file")
    if facts.devices is None:
        return unknown(f"{len(facts.workers)} run; for how many devices, only the store knows")
    missing = [each for each in facts.devices if each.status.device.uuid not in facts.workers]
    if not missing:
        return ok(f"{len(facts.workers)}, one for each device")
    return (
        warning(
            f"device {each.status.device.index} ({each.status.device.uuid}) is not one of those that the workers were "
            f"started for (--devices {facts.reported})",
            WITH_ITS_DEVICES,
            about=f"device {each.status.device.index}",
        )
        if not is_meant(facts.reported, each.status.device)
        else problem(
            f"no worker serves device {each.status.device.index} ({each.status.device.uuid}): it ends again and again",
            f"why: {facts.settings.logs_dir / (each.status.device.uuid + '.log')}",
            about=f"device {each.status.device.index}",
        )
        for each in missing
    )


def is_meant(reported: str | None, device: Device) -> bool:
    """Return whether a host process with ``--devices`` *reported* (None: unknown) starts a worker for *device*."""
    if reported is None:
        return True
    spec = reported.removesuffix(_BESIDE)
    if device.kind is DeviceKind.SIMULATED:
        counts = _SIMULATED.findall(spec.removeprefix(_SIM)) if spec.startswith(_SIM) else []
        return device.index < sum(int(count or 1) for count in counts)
    if device.kind is DeviceKind.CPU:
        return reported != spec or spec in {"auto", "cpu"}
    return spec in {"auto", "gpu"}


def recorder(facts: ProcessFacts) -> Findings:
    """Check whether a recorder runs here."""
    if facts.host is None:
        return ()
    if facts.recorder:
        return ok("runs")
    if not facts.settings.record:
        return ok("none: the host of the service records the history (record = false)")
    log = facts.settings.logs_dir / "recorder.log"
    return note(
        "none runs here", f"right if one runs elsewhere (host --no-recorder); else it ends again and again: {log}"
    )


def version(facts: ProcessFacts) -> Findings:
    """Check that the workers have the installed version."""
    others = sorted({each.version or "an older one" for each in facts.served} - {VERSION})
    if others:
        seen = f"{VERSION} is installed, and workers of {', '.join(others)} still run"
        return warning(seen, "gpuqueue down --leave-jobs, then gpuqueue up: running jobs are taken over")
    return ok(VERSION)


def settings(facts: ProcessFacts) -> Findings:
    """Check that the running workers have the current settings."""
    if facts.host is None:
        return ()
    restart = "gpuqueue down --leave-jobs, then gpuqueue up, if the workers should use it too"
    if facts.file_changed:
        return warning("the settings file was changed after the workers had started", restart)
    if facts.environ is None:
        return unknown("the environment of the host process cannot be read", "run this as its account, or as root")
    theirs, _ = Settings.salvage(facts.environ)
    here = facts.settings
    names = [name for name in here.origins.keys() - NOT_OF_WORKERS if getattr(theirs, name) != getattr(here, name)]
    if names:
        variables = ", ".join(sorted(variable_of(name) for name in names))
        return note(f"the workers were started with other values: {variables}", restart)
    return ok("the workers have the same")


def bytecode(facts: ProcessFacts) -> Findings:
    """Check that commands find their modules compiled."""
    if not facts.uncompiled:
        return ok("the modules of this command are compiled")
    seen = f"{facts.uncompiled} modules are not compiled here: each command of this account compiles them again"
    command = shlex.join([sys.executable, "-m", "compileall", "-qq", *map(str, facts.code)])
    return warning(seen, f"as the owner of these files: {command}")


CHECKS = (host, workers, recorder, version, settings, bytecode)
