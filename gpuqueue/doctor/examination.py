"""Examines the whole site, the sections in parallel, each with a time limit, and yields the findings by section."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from gpuqueue.doctor import history, machines, processes, queue, service, state, store, values
from gpuqueue.doctor.site import INTEGRITY_S, POLL_S, Site
from gpuqueue.model.finding import Check, Finding, Grade, examined, name_of
from gpuqueue.settings.settings import Settings
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


def examine(environ: Mapping[str, str], *, deep: bool = False) -> Iterator[tuple[str, list[Finding]]]:
    """Yield each section with its findings, in order, as soon as they are known."""
    outside = values.outside_of_jobs(environ)
    try:
        settings, faults = TimedCall(lambda: Settings.salvage(outside), POLL_S).result()
    except CallFailed as why:
        yield "settings", [replace(values.away(why), section="settings", check=name_of(values.file))]
        return
    machines_s = machines.ASK_S + (machines.DEEP_S if deep else 0.0) + 1.0
    of_machines = TimedCall(lambda: machines.ask(outside, deep=deep), machines_s)
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


def _of_machines(section: str, call: TimedCall[machines.Answer]) -> list[Finding]:
    try:
        return list(call.result().of(section))
    except CallFailed as why:
        return [replace(machines.absent(str(why)), section=section, check="machines")]
