"""The device monitor: takes every sample of this host's devices, and keeps the latest one of each.

It also says whose the sampled memory and work are: which run each process belongs to, who runs an external process, and
which part of a device's utilisation is that of one run.
"""

from __future__ import annotations

import logging
import os
import pwd
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from gpuqueue.clock import Clock
from gpuqueue.lazy.imports import later
from gpuqueue.model import xids
from gpuqueue.model.device import Device, DeviceKind, Health, Reading, Utilisation, Xid
from gpuqueue.queue.lease import ExternalProcess
from gpuqueue.settings.settings import Settings
from gpuqueue.system.process import ProcessIdentity, boot_id, start_time
from workers.devices.backend import DeviceBackend, DeviceTrouble
from workers.measure.active_runs import LiveRuns, root_of
from workers.measure.meter import INTERVAL_S
from workers.measure.sample import ExternalProcesses, RunOnDevice, Sample
from workers.run import process_tree
from workers.run.directory import Held, RunDir, unsettled
from workers.run.environment import TOKEN

if TYPE_CHECKING:
    from workers.devices import mps
    from workers.measure import context
else:
    context = later("workers.measure.context")
    mps = later("workers.devices.mps")

log = logging.getLogger(__name__)

#: Largest age of a sample that may be reused, in seconds. A new sample protects no better, because an external process
#: could still start right after it. The start of a job's interpreter takes about this long.
MOMENT_S = 0.05
#: Most steps of a walk from a process up to the root of its run. Process trees are shallower; the limit ends a loop if
#: /proc changes during the walk.
_DEEPEST = 64
_TOKEN_VARIABLE = f"{TOKEN}=".encode()
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(slots=True)
class _Latest:
    """The latest sample of one device. The lock is held while the device is sampled."""

    external_processes: ExternalProcesses
    lock: threading.Lock = field(default_factory=threading.Lock)
    sample: Sample | None = None
    health: tuple[float, Health] | None = None


class DeviceMonitor:
    """Samples the devices of one host for one worker, and records each sample of the worker's runs. Thread-safe.

    The claimer, the heartbeats and the sampler ask for samples in separate threads.
    """

    def __init__(self, settings: Settings, backend: DeviceBackend, runs: LiveRuns, clock: Clock) -> None:
        self._settings = settings
        self._backend = backend
        self._runs = runs
        self._clock = clock
        self.devices = {device.uuid: device for device in backend.devices()}
        half_life_s = settings.external_half_life_s
        self._latest = {uuid: _Latest(ExternalProcesses(half_life_s)) for uuid in self.devices}
        #: The claims of other workers' runs, by token. A claim never changes.
        self._claims: dict[str, Held] = {}

    def sample(self, device: Device, since_s: float | None = None) -> Sample:
        """Return a sample of *device* that began after *since_s*, by default after this call.

        Raises:
            DeviceTrouble: The device does not answer.
            OSError: The host is short of a resource.

        """
        since_s = self._clock.monotonic_s() if since_s is None else since_s
        latest = self._latest[device.uuid]
        with latest.lock:
            if latest.sample is None or latest.sample.began_s <= since_s:
                latest.sample = self._new_sample(device, latest.external_processes)
            return latest.sample

    def recent(self, device: Device) -> Sample | None:
        """Return the latest sample of *device*, divided among the present runs, or None if it is too old.

        A sample of the CPU is never reused: the memory of its processes is measured anew, and would not match an older
        total.
        """
        sample = self._latest[device.uuid].sample
        if sample is None or device.kind is DeviceKind.CPU or sample.began_s < self._clock.monotonic_s() - MOMENT_S:
            return None
        runs = self._runs_on(device, sample.reading)
        ours = _pids_of(runs)
        counted = {pid: held for pid, held in sample.counted.items() if pid not in ours}
        return replace(sample, runs=runs, counted=counted, is_outdated=not _pids_of(sample.runs) <= ours)

    def health(self, device: Device, max_age_s: float = 0.0) -> Health:
        """Return the health of *device*, as of *max_age_s* seconds ago at the earliest.

        Raises:
            DeviceTrouble: The device does not answer.

        """
        latest = self._latest[device.uuid]
        with latest.lock:
            now_s = self._clock.monotonic_s()
            if latest.health is None or now_s - latest.health[0] >= max_age_s:
                before = latest.health[1].xids if latest.health is not None else None
                latest.health = now_s, self._backend.health(device)
                self._note_xids(device, before or (), latest.health[1].xids or ())
                self._note_health(device, latest.health[1], latest.sample)
            return latest.health[1]

    def _note_xids(self, device: Device, before: Collection[Xid], now: Iterable[Xid]) -> None:
        """Report the Xid errors that are new since *before* to the worker's runs on *device*."""
        for xid in now:
            if xid not in before:
                log.warning("the driver reported %s of %s", xids.in_words(xid), device.uuid)
                for run in self._runs.all():
                    if run.has(device.uuid) and run.shim is not None:
                        run.note_xid(device, xid)

    def _note_health(self, device: Device, health: Health, sample: Sample | None) -> None:
        """Record *health* for the worker's runs on *device*, and how much the device worked for each of them."""
        now_s = self._clock.monotonic_s()
        fresh = sample if sample is not None and now_s - sample.began_s <= 2 * INTERVAL_S else None
        by_process = cache(lambda: self._utilisations(device))
        for run in self._runs.all():
            if run.has(device.uuid) and run.shim is not None:
                own = None if fresh is None else own_utilisation(run.held.token, fresh, health, by_process)
                run.note_health(device, health, own, now_s)

    def _utilisations(self, device: Device) -> Mapping[int, Utilisation] | None:
        try:
            return self._backend.utilisations(device)
        except DeviceTrouble as trouble:
            log.warning("no utilisation of %s by process: %s", device.uuid, trouble)
            return None

    def context_bytes(self, model: str | None) -> int:
        """Return what a CUDA context takes of a device of this *model*; 0 if it was not measured."""
        return context.known_bytes(self._settings, [model]) or 0

    def accounted(self, uuid: str, pids: Collection[int]) -> Mapping[int, int]:
        """Return the driver's own peak of each process of *pids* on the device *uuid*, in bytes. Usually empty."""
        device = self.devices.get(uuid)
        if device is None or not pids:
            return {}
        try:
            return self._backend.accounted(device, pids)
        except DeviceTrouble as trouble:
            log.warning("no accounting of %s: %s", uuid, trouble)
            return {}

    def _new_sample(self, device: Device, external_processes: ExternalProcesses) -> Sample:
        began_s = self._clock.monotonic_s()
        reading = self._backend.reading(device)
        if self._settings.mps and device.kind is DeviceKind.GPU:
            reading = mps.without_servers(reading)
        runs = self._runs_on(device, reading)
        ours = _pids_of(runs)
        jobs = {pid: run.job_id for run in runs if not run.was_given for pid in run.pids}
        counted = external_processes.note(reading.processes, ours, began_s)
        others = sorted(pid for pid in reading.processes if pid not in ours)
        sample = Sample(
            device=device,
            began_s=began_s,
            reading=reading,
            runs=runs,
            counted=counted,
            external_processes=tuple(
                external_process_of(pid, reading.processes[pid], counted.get(pid), jobs.get(pid)) for pid in others
            ),
        )
        for run in self._runs.all():
            run.note(sample)
        return sample

    def _runs_on(self, device: Device, reading: Reading) -> tuple[RunOnDevice, ...]:
        """Return this host's runs on *device*, with the processes of each in *reading*.

        The worker of one device leads a job on several devices. The other workers find the run by its run directory,
        which exists before the run starts and until it is settled. The store's last answer would be out of date for
        both the start and the end.
        """
        live = self._runs.all()
        own = [run for run in live if run.has(device.uuid)]
        of_others = self._others({run.held.token for run in live})
        others = [(directory, held, directory.processes()) for directory, held in of_others if held.has(device.uuid)]
        roots = {run.held.token: run.root for run in own} | {each.token: root_of(known) for _, each, known in others}
        pids = pids_by_run(device, reading, roots)
        found = [self._run(run.held, device.uuid, run.shim, reading, pids) for run in own]
        for directory, held, known in others:
            run = self._run(held, device.uuid, next(iter(known), None), reading, pids)
            found.append(run if self._counts(directory, run) else replace(run, lease_bytes=0))
        external = reading.processes.keys() - frozenset[int]().union(*(run.pids for run in found))
        if external:  # a script may have named another card than those of its job
            elsewhere = {run.held.token: (run.held, run.root) for run in live if not run.has(device.uuid)}
            elsewhere |= {
                held.token: (held, root_of(directory.processes()))
                for directory, held in of_others
                if not held.has(device.uuid)
            }
            found += self._not_given(reading, external, elsewhere)
        return tuple(found)

    def _not_given(
        self,
        reading: Reading,
        external: Collection[int],
        elsewhere: Mapping[str, tuple[Held, ProcessIdentity | None]],
    ) -> Iterator[RunOnDevice]:
        """Yield those runs of other devices, *elsewhere* with their roots by token, that have *external* processes."""
        pids_by_token: dict[str, set[int]] = {}
        for pid, token in owners(external, {token: root for token, (_, root) in elsewhere.items()}).items():
            pids_by_token.setdefault(token, set()).add(pid)
        for token, pids in pids_by_token.items():
            yield RunOnDevice(
                job_id=elsewhere[token][0].job_id,
                token=token,
                lease_bytes=0,
                started=True,
                alive=True,
                pids=frozenset(pids),
                used_bytes=self._backend.used_by(reading, pids),
                was_given=False,
                member=elsewhere[token][0].member,
            )

    def _others(self, own: Collection[str]) -> list[tuple[RunDir, Held]]:
        """Return the unsettled runs of other workers than this one, whose runs are *own*."""
        found = []
        for directory in unsettled(self._settings.runs_dir, but=own):
            held = self._claims.get(directory.token) or directory.held()
            if held is not None:
                found.append((directory, held))
        self._claims = {held.token: held for _, held in found}
        return found

    def _run(
        self,
        held: Held,
        uuid: str,
        shim: ProcessIdentity | None,
        reading: Reading,
        pids_by_token: Mapping[str, frozenset[int]],
    ) -> RunOnDevice:
        pids = pids_by_token.get(held.token, frozenset())
        return RunOnDevice(
            job_id=held.job_id,
            token=held.token,
            lease_bytes=sum(each.lease_bytes for each in held.devices if each.uuid == uuid),
            started=shim is not None,
            alive=bool(pids) or (shim is not None and shim.alive()),
            pids=pids,
            used_bytes=self._backend.used_by(reading, pids) if pids else 0,
            member=held.member,
        )

    def _counts(self, directory: RunDir, run: RunOnDevice) -> bool:
        """Return whether the lease of another worker's run counts.

        The run may have ended without being settled, because its worker may be gone. A claim that never became a run
        counts until its lease expires.
        """
        if run.started:
            return run.alive
        claimed_at, lease = directory.claimed_at(), timedelta(seconds=self._settings.lease_s)
        return claimed_at is not None and self._clock.now() - claimed_at <= lease


def _pids_of(runs: Iterable[RunOnDevice]) -> frozenset[int]:
    """Return the processes of those of *runs* that were given the device."""
    return frozenset[int]().union(*(run.pids for run in runs if run.was_given))


def pids_by_run(
    device: Device, reading: Reading, roots: Mapping[str, ProcessIdentity | None]
) -> dict[str, frozenset[int]]:
    """Return the processes of each run that are on *device* in *reading*, by the run's token.

    *roots* maps the tokens of the runs to the roots of their process trees. A run without a process on the device is
    left out. A CPU reading lists no processes, so for the CPU the result has all processes of each run.
    """
    if device.kind is DeviceKind.CPU:
        below = {
            token: process_tree.below(root.pid) for token, root in roots.items() if root is not None and root.alive()
        }
        return {token: frozenset(pids) for token, pids in below.items() if pids}
    found: dict[str, set[int]] = {}
    for pid, token in owners(reading.processes, roots).items():
        found.setdefault(token, set()).add(pid)
    return {token: frozenset(pids) for token, pids in found.items()}


def owners(
    pids: Iterable[int], roots: Mapping[str, ProcessIdentity | None], *, proc: Path = Path("/proc")
) -> dict[int, str]:
    """Return the token of the run that each of *pids* belongs to. External processes are left out.

    It walks from each process up to the root of its run. A device lists few processes and a host has many, so this is
    about a hundred times cheaper than a walk down from the run: five small reads in /proc per process, no matter how
    many processes the run has. The root of a run is its shim, or its guard if the job runs as its submitter. It is the
    subreaper of the run, so it is an ancestor of every process of the run, including daemons. If it was killed, the
    walk ends at init. In that case the token in the process environment identifies the run; forked processes inherit
    it.

    Args:
        pids: Processes of this host. Ended processes and processes of other pid namespaces belong to no run.
        roots: The root of each run's process tree by token; None while it is unknown.
        proc: The root of the proc file system.

    """
    tops = {root.pid: (root.started, token) for token, root in roots.items() if root and root.boot == boot_id()}
    found = {pid: _token_above(pid, tops, proc) or _token_carried(pid, roots, proc) for pid in pids}
    return {pid: token for pid, token in found.items() if token is not None}


def _token_above(pid: int, tops: Mapping[int, tuple[int, str]], proc: Path) -> str | None:
    """Return the token of the root that is *pid* or its ancestor, or None if no ancestor is in *tops*."""
    for _ in range(_DEEPEST):
        try:
            raw = _read(f"{proc}/{pid}/stat")
        except OSError:
            return None
        fields = raw[raw.rindex(b")") + 2 :].split()  # the process name may contain spaces and parentheses
        if pid in tops and tops[pid][0] == int(fields[19]):  # the start time rules out a reused pid
            return tops[pid][1]
        pid = int(fields[1])
        if pid <= 1:
            return None
    return None


def _token_carried(pid: int, tokens: Iterable[str], proc: Path) -> str | None:
    """Return the one of *tokens* in the initial environment of *pid*, or None if absent or not readable."""
    try:
        environ = _read(f"{proc}/{pid}/environ")
    except OSError:
        return None
    for entry in environ.split(b"\0"):
        if entry.startswith(_TOKEN_VARIABLE):
            token = entry[len(_TOKEN_VARIABLE) :].decode(errors="replace")
            return token if token in tokens else None
    return None


def _read(file: str) -> bytes:
    with open(file, "rb", buffering=0) as opened:  # noqa: PTH123 - creating a Path takes longer than reading the file
        return opened.read()


def external_process_of(
    pid: int, held_bytes: int | None, counted_bytes: int | None = None, job_id: int | None = None
) -> ExternalProcess:
    """Return the external process *pid*. What cannot be read is None: it has ended, or is in another pid namespace."""
    process = Path(f"/proc/{pid}")
    try:
        user = _user_name(process.stat().st_uid)
    except (OSError, KeyError):
        user = None
    try:
        words = (process / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
        command = b" ".join(words).decode(errors="replace")[:200] or None
        ticks = start_time(pid)
    except OSError:
        command, ticks = None, None
    return ExternalProcess(
        pid=pid,
        held_bytes=held_bytes,
        counted_bytes=counted_bytes,
        user=user,
        command=command,
        started_at=None if ticks is None else _started_at(pid, ticks),
        job_id=job_id,
    )


@cache
def _user_name(uid: int) -> str:
    return pwd.getpwuid(uid).pw_name


@lru_cache(maxsize=1024)
def _started_at(_pid: int, ticks: int) -> datetime:
    """Return the time of *ticks* after the boot, in whole seconds.

    It is cached by process: the clock may be adjusted, and a time that changes would be sent again and again.
    """
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / _TICKS_PER_S
    return (datetime.now(timezone.utc) - timedelta(seconds=age_s)).replace(microsecond=0)


def own_utilisation(
    token: str, sample: Sample, health: Health, by_process: Callable[[], Mapping[int, Utilisation] | None]
) -> Utilisation | None:
    """Return the utilisation of the sampled device by the run with this token, or None if it is unknown.

    If a run is alone on a device, the device's utilisation is that of the run. Otherwise only figures by process show
    it, which some drivers and cards do not report. What nobody reports is unknown (None), never 0.

    Args:
        token: The run.
        sample: The latest sample of the device.
        health: The health of the device at about the same time.
        by_process: Returns the utilisation by each process, or None if the driver does not report it. It is called only
            if the device's utilisation is not enough.

    """
    share = sample.measured(token)
    if share is None or sample.device.mig_parent is not None:  # the utilisation of a MIG instance is that of its card
        return None
    others = any(run.alive for run in sample.runs if run.token != token)
    is_alone = not others and sample.reading.processes.keys() <= share.pids
    if is_alone and share.pids and health.utilisation:
        return Utilisation(busy=health.utilisation, memory=health.memory_utilisation)
    found = by_process()
    if found is not None and _is_whole(found, sample, health):
        own = [found[pid] for pid in share.pids if pid in found]
        memory = [each.memory for each in own if each.memory is not None]
        return Utilisation(
            busy=min(1.0, sum(each.busy for each in own)),
            memory=min(1.0, sum(memory)) if len(memory) == len(own) else None,
        )
    if is_alone and health.utilisation == 0:
        return Utilisation(busy=0.0, memory=health.memory_utilisation)
    return None


def _is_whole(found: Mapping[int, Utilisation], sample: Sample, health: Health) -> bool:
    """Return whether *found* has all work of the device, so that a run without a figure did not use it.

    A pid that the device does not list may be a process of another pid namespace, or of the run, that has just ended.
    A device that works for nobody in *found* works for a process that the driver does not report.
    """
    return (
        found.keys() <= sample.reading.processes.keys()
        and health.utilisation is not None
        and (bool(found) or health.utilisation == 0)
    )
