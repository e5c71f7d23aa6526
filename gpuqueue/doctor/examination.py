"""Examines the whole site, the sections in parallel, each with a time limit, and yields the findings by section."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import IO

from gpuqueue.codec.wire import from_plain
from gpuqueue.doctor import history, processes, queue, service, state, store, values
from gpuqueue.doctor.queue import is_down
from gpuqueue.doctor.site import INTEGRITY_S, POLL_S, Site
from gpuqueue.doctor.values import outside_of_jobs
from gpuqueue.embedded.machine import Machine
from gpuqueue.errors import GpuQueueError, Refused, Unreadable
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.finding import Check, Finding, Grade, examined, name_of, problem, unknown
from gpuqueue.queue.diagnostics import queue_facts
from gpuqueue.settings.settings import Settings
from gpuqueue.system.process import end, installed
from gpuqueue.system.timed_call import CallFailed, TimedCall

#: Time limit of the integrity check of the history's file with ``--deep``, in seconds.
DEEP_INTEGRITY_S = 600.0

#: Exit code for the worst grade. Monitoring plugins use 2 for critical, but here 2 means wrong usage.
#: docs/reference/doctor.md translates.
EXIT_CODES: Mapping[Grade, int] = {
    Grade.OK: 0,
    Grade.NOTE: 0,
    Grade.UNKNOWN: 6,
    Grade.WARNING: 6,
    Grade.PROBLEM: 1,
}

#: Sections that are examined here, with their checks. workers.doctor.examination has three more.
ROOMS: Mapping[str, Sequence[Check[Site]]] = {
    "settings": values.CHECKS,
    "state": state.CHECKS,
    "store": store.CHECKS,
    "queue": queue.CHECKS,
    "history": history.CHECKS,
    "service": service.CHECKS,
    "processes": processes.CHECKS,
}
#: The finding of a section whose first check cannot read its part of the site. It has the name of that check.
AWAY: Mapping[str, Callable[[Settings, CallFailed], Finding]] = {
    "settings": lambda _, why: values.away(why),
    "state": state.away,
    "store": store.away,
    "queue": queue.away,
    "history": history.away,
    "service": service.away,
    "processes": processes.away,
}
#: All sections, in the order of the report. A section depends on those before it.
ORDER = ("settings", "state", "host", "python", "store", "queue", "history", "service", "processes", "runs")
#: Time limit of the program, in seconds. Each part inside it has a far lower limit.
ASK_S = 30.0
#: Additional time limit with ``--deep``, in seconds, because that imports torch.
DEEP_S = 65.0


def examine(environ: Mapping[str, str], *, deep: bool = False) -> Iterator[tuple[str, list[Finding]]]:
    """Yield each section with its findings, in order, as soon as they are known."""
    outside = values.outside_of_jobs(environ)
    try:
        settings, faults = TimedCall(lambda: Settings.salvage(outside), POLL_S).result()
    except CallFailed as why:
        yield "settings", [replace(values.away(why), section="settings", check=name_of(values.file))]
        return
    if faults:  # a default in place of the value that is meant would lead to the wrong store, or to none
        yield "settings", begin("settings", Site(settings, faults, environ), POLL_S)()
        return
    machines_s = ASK_S + (DEEP_S if deep else 0.0) + 1.0
    of_machines = TimedCall(lambda: ask(outside, deep=deep), machines_s)
    integrity_s = DEEP_INTEGRITY_S if deep else INTEGRITY_S
    site = Site(settings, faults, environ, integrity_s=integrity_s)
    # The other sections wait for parts of the site, which have lower limits of their own.
    limits_s = dict.fromkeys(ROOMS, 2 * POLL_S + integrity_s) | {"settings": POLL_S, "state": POLL_S}
    if settings.service_url is None:  # this host has joined none
        del limits_s["service"]
    findings = {section: begin(section, site, limit_s) for section, limit_s in limits_s.items()}
    for section in ORDER:
        if section not in ROOMS:
            yield section, _of_machines(section, of_machines)
        else:
            yield section, findings[section]() if section in findings else []


def begin(section: str, site: Site, limit_s: float) -> Callable[[], list[Finding]]:
    """Begin to examine a section, and return a function that waits for its findings."""
    call = TimedCall(lambda: list(examined(section, site, ROOMS[section])), limit_s)

    def findings() -> list[Finding]:
        try:
            return call.result()
        except CallFailed as why:
            return [replace(AWAY[section](site.settings, why), section=section, check=name_of(ROOMS[section][0]))]

    return findings


def _of_machines(section: str, call: TimedCall[Answer]) -> list[Finding]:
    try:
        return list(call.result().of(section))
    except CallFailed as why:
        return [replace(absent(str(why)), section=section, check="machines")]


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """Output of ``gpuqueue-worker doctor``. ``repairs`` are texts. ``broken`` says why the output ended early."""

    findings: tuple[Finding, ...]
    repairs: tuple[str, ...] = ()
    broken: str = ""

    def of(self, section: str) -> Iterator[Finding]:
        """Yield the findings of *section*, and a finding that some are missing if the program failed."""
        yield from (each for each in self.findings if each.section == section)
        if self.broken:
            missing = unknown(f"the rest of this section could not be checked: {self.broken}", "gpuqueue-worker doctor")
            yield replace(missing, section=section, check="machines")


def ask(environ: Mapping[str, str], *, deep: bool, fix: bool = False) -> Answer:
    """Return the output of ``gpuqueue-worker doctor``. If the program hangs or dies, return its output until then.

    Raises:
        GpuQueueError: ``gpuqueue-worker`` is not installed.

    """
    words = [installed("gpuqueue-worker"), "doctor", *(["--deep"] if deep else []), *(["--fix"] if fix else [])]
    limit_s = ASK_S + (DEEP_S if deep else 0.0)
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = subprocess.Popen(words, env=dict(environ), stdin=subprocess.DEVNULL, stdout=out, stderr=err)
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            end(process, 0.0)
            return _read(_text(out), f"it took longer than {limit_s:g} s")
        if code != 0:
            lines = _text(err).decode(errors="replace").strip().splitlines()
            return _read(_text(out), f"it ended with {code}: {next(iter(lines[-1:]), 'without a word')}")
        return _read(_text(out), "")


def _text(file: IO[bytes]) -> bytes:
    file.seek(0)
    return file.read()


def _read(out: bytes, broken: str) -> Answer:
    lines = out.decode(errors="replace").splitlines()
    findings = tuple(finding for line in lines if (finding := from_line(line)) is not None)
    return Answer(findings=findings, repairs=tuple(_repairs(lines)), broken=broken)


def from_line(line: str) -> Finding | None:
    """Return the finding in one line of JSON, or None if the line is incomplete, since its writer may be killed."""
    try:
        found: Finding = from_plain(Finding, json.loads(line))
    except (ValueError, Unreadable):
        return None
    return found


def _repairs(lines: list[str]) -> Iterator[str]:
    for line in lines:
        try:
            plain = json.loads(line)
        except ValueError:
            continue  # an incomplete line of a program that was killed
        if isinstance(plain, dict) and isinstance(plain.get("repair"), str):
            yield plain["repair"]


def absent(why: str) -> Finding:
    """Return the finding that ``gpuqueue-worker`` cannot be run, for the reason *why*."""
    return problem(why, "install gpuqueue-server whole again: gpuqueue and gpuqueue-worker belong together")


#: Time limit of the repairs in this process, in seconds.
REPAIR_S = 15.0


def repair(environ: Mapping[str, str]) -> Iterator[str]:
    """Make the safe repairs, and yield a text for each repair, or for why it could not be made."""
    environ = outside_of_jobs(environ)
    settings, faults = Settings.salvage(environ)
    if faults:  # the site is unknown
        yield f"nothing was repaired: {faults[0]}"
        return
    try:
        owner = TimedCall(lambda: settings.state_dir.stat().st_uid, REPAIR_S).result()
    except CallFailed as why:
        yield f"nothing was repaired: {why}"
        return
    if owner != os.getuid():  # files created here would have the wrong owner
        yield f"nothing was repaired: {settings.state_dir} is not this account's; gpuqueue doctor shows whose it is"
        return
    try:
        yield from TimedCall(lambda: resume_after_a_killed_down(settings), REPAIR_S).result()
    except CallFailed as why:
        yield f"devices were left as they are: {why}"
    try:
        answer = ask(environ, deep=False, fix=True)
    except GpuQueueError as error:
        yield f"runs were left as they are: {error}"
    else:
        yield from answer.repairs


def resume_after_a_killed_down(settings: Settings) -> list[str]:
    """Resume this machine's devices that a killed ``down`` left drained, and return a text for each.

    ``gpuqueue up`` does the same. Nothing is done if the host process does not run, or if an ``up`` or ``down`` is in
    progress. Drains by people stay.
    """
    machine = Machine(settings)
    if machine.host_running() is None:
        return []
    try:
        with machine.alone():
            here = [each for each in queue_facts(settings.redis_url).devices if each.status.host == settings.own_host]
            drained = [each.status.device for each in here if is_down(each)]
            if drained:
                machine.resume()
            return [
                f"device {device.index} ({device.uuid}) is no longer drained for a down that was killed"
                for device in drained
            ]
    except Refused:
        return []  # an up or down is in progress
