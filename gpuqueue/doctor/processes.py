"""Our own processes on this machine: the host process, a worker for each device, the recorder."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from gpuqueue.embedded.machine import Machine
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.device import Device, DeviceKind
from gpuqueue.model.finding import Findings, note, ok, problem, unknown, warning
from gpuqueue.queue.diagnostics import DeviceFacts, QueueFacts
from gpuqueue.queue.lease import SILENT_BEATS
from gpuqueue.settings.settings import Settings, settings_file, variable_of
from gpuqueue.system.process import ProcessIdentity
from gpuqueue.version import VERSION

#: Settings that the workers do not look at; all others hold for them from their next start on.
NOT_OF_WORKERS = frozenset({"state_dir", "default_mem_bytes", "default_device"})
#: What to do about a device that the workers were not started for: an `up` is refused other devices, and a `down`
#: forgets those that hold no job.
WITH_ITS_DEVICES = (
    "gpuqueue down, then gpuqueue up with the --devices of before; or without them, if it is gone for good: the down "
    "forgets it"
)
#: How ``--devices`` names simulated ones, and the CPU beside others. Of each kind of simulated ones how many.
_SIM, _BESIDE = "sim:", ",cpu"
_SIMULATED = re.compile(r"(?:^|\+) *(?:([0-9]+)x)?[^+]+")


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessFacts:
    """What runs for this state directory on this machine."""

    settings: Settings
    #: Whether a host process was ever started here and not stopped, and its identity if it lives.
    expected: bool
    host: ProcessIdentity | None
    #: The devices that its workers serve, by UUID, and whether its recorder runs. Empty and false without a host.
    workers: frozenset[str]
    recorder: bool
    #: Which devices the host process was told to serve (``--devices``); None where nobody can see that.
    told: str | None
    #: Our variables as the host process found them when it started; None where one may not look.
    environ: Mapping[str, str] | None
    #: Whether the settings file was written after the host process had started.
    file_changed: bool
    #: The devices of this machine as the store knows them; None while it does not answer.
    devices: tuple[DeviceFacts, ...] | None = None

    def with_queue(self, queue: QueueFacts | None) -> ProcessFacts:
        """Return the same, with what the store knows of this machine's devices."""
        if queue is None:
            return self
        here = self.settings.host
        return replace(self, devices=tuple(each for each in queue.devices if each.status.host == here))

    @property
    def silent_s(self) -> float:
        """Return after how long a worker counts as silent."""
        return SILENT_BEATS * self.settings.beat_s

    @property
    def served(self) -> tuple[DeviceFacts, ...]:
        """Return the devices of this machine whose workers beat."""
        return tuple(each for each in self.devices or () if each.status.seen_s_ago <= self.silent_s)


# ---- looking ---------------------------------------------------------------------------------------------------------


def process_facts(settings: Settings, environ: Mapping[str, str]) -> ProcessFacts:
    """Return what can be seen in /proc.

    Raises:
        OSError: the state directory cannot be looked at.

    """
    machine = Machine(settings)
    host = machine.host_running()
    words = list(_children(host.pid)) if host is not None else []
    return ProcessFacts(
        settings=settings,
        expected=(settings.state_dir / "host.pid").exists(),
        host=host,
        workers=frozenset(each[each.index("--device") + 1] for each in words if "--device" in each[:-1]),
        recorder=any("record" in each for each in words),
        told=machine.served(host) if host is not None else None,
        environ=_environ(host.pid) if host is not None else None,
        file_changed=host is not None and _changed_since(host, settings_file(environ)),
    )


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
        return None  # another account's
    return dict(pair.split("=", 1) for pair in text.split("\0") if "=" in pair)


def _changed_since(process: ProcessIdentity, file: Path) -> bool:
    """Return whether *file* was written after *process* had started; to the second, as the kernel tells its boot."""
    try:
        boot = next(line for line in Path("/proc/stat").read_text(encoding="ascii").splitlines() if "btime" in line)
        began_s = int(boot.split()[1]) + process.started / os.sysconf("SC_CLK_TCK")
        return file.stat().st_mtime > began_s + 1
    except (OSError, StopIteration, ValueError):
        return False


# ---- judging ---------------------------------------------------------------------------------------------------------


def host(facts: ProcessFacts) -> Findings:
    """Is somebody there who keeps the workers alive?"""
    if facts.host is not None:
        return ok(f"pid {facts.host.pid}")
    if facts.expected:
        seen = (
            "the host process died without a word: nothing starts here, and running jobs end when their grace is over"
        )
        return problem(seen, f"gpuqueue up; why it died: {facts.settings.logs_dir / 'host.log'}")
    if facts.served:
        return ok(f"none of ours: {len(facts.served)} workers of this machine are kept alive by somebody else")
    return note("no workers run on this machine", "gpuqueue up, if it shall run jobs")


def workers(facts: ProcessFacts) -> Findings:
    """Does each device have its worker?"""
    if facts.host is None:
        return ()
    if facts.devices is None:
        return unknown(f"{len(facts.workers)} run; for how many devices, only the store knows")
    missing = [each for each in facts.devices if each.status.device.uuid not in facts.workers]
    if not missing:
        return ok(f"{len(facts.workers)}, one for each device")
    return (
        warning(
            f"device {each.status.device.index} ({each.status.device.uuid}) is none of those that the workers were "
            f"started for (--devices {facts.told})",
            WITH_ITS_DEVICES,
            about=f"device {each.status.device.index}",
        )
        if not is_meant(facts.told, each.status.device)
        else problem(
            f"no worker serves device {each.status.device.index} ({each.status.device.uuid}): it ends again and again",
            f"why: {facts.settings.logs_dir / (each.status.device.uuid + '.log')}",
            about=f"device {each.status.device.index}",
        )
        for each in missing
    )


def is_meant(told: str | None, device: Device) -> bool:
    """Return whether who was *told* to serve some devices starts a worker for *device*; as long as we know, it does."""
    if told is None:
        return True
    spec = told.removesuffix(_BESIDE)
    if device.kind is DeviceKind.SIMULATED:
        counts = _SIMULATED.findall(spec.removeprefix(_SIM)) if spec.startswith(_SIM) else []
        return device.index < sum(int(count or 1) for count in counts)
    if device.kind is DeviceKind.CPU:
        return told != spec or spec in {"auto", "cpu"}
    return spec in {"auto", "gpu"}


def recorder(facts: ProcessFacts) -> Findings:
    """Does somebody here write the history?"""
    if facts.host is None:
        return ()
    if facts.recorder:
        return ok("runs")
    log = facts.settings.logs_dir / "recorder.log"
    return note(
        "none runs here", f"right if one runs elsewhere (host --no-recorder); else it ends again and again: {log}"
    )


def version(facts: ProcessFacts) -> Findings:
    """Are the workers of the version that is installed?"""
    others = sorted({each.version or "an older one" for each in facts.served} - {VERSION})
    if others:
        seen = f"{VERSION} is installed, and workers of {', '.join(others)} still run"
        return warning(seen, "gpuqueue down --leave-jobs, then gpuqueue up: running jobs are taken over")
    return ok(VERSION)


def settings(facts: ProcessFacts) -> Findings:
    """Do the running workers have the settings that hold here?"""
    if facts.host is None:
        return ()
    restart = "gpuqueue down --leave-jobs, then gpuqueue up, if the workers shall have it too"
    if facts.file_changed:
        return warning("the settings file was changed after the workers had started", restart)
    if facts.environ is None:
        return unknown("the environment of the host process may not be seen", "ask as its account, or as root")
    theirs, _ = Settings.salvage(facts.environ)
    here = facts.settings
    names = [name for name in here.origins.keys() - NOT_OF_WORKERS if getattr(theirs, name) != getattr(here, name)]
    if names:
        variables = ", ".join(sorted(variable_of(name) for name in names))
        return note(f"the workers were started with other values: {variables}", restart)
    return ok("the workers have the same")


CHECKS = (host, workers, recorder, version, settings)
