"""Runs the checks of a GPU host, each group with a time limit, and yields the findings."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from gpuqueue.errors import Unreachable
from gpuqueue.model.event import BEHIND_S
from gpuqueue.model.finding import Check, Finding, examined, name_of, problem, unknown
from gpuqueue.queue.diagnostics import queue_facts
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.queue.lease import SILENT_HEARTBEATS
from gpuqueue.settings.settings import Settings
from gpuqueue.system.timed_call import CallFailed, TimedCall
from gpuqueue.text.units import format_duration
from workers.devices.nvml_calls import CardFacts, DriverFacts, DriverState, Session, card_facts, driver_facts
from workers.doctor import cards, containers, driver, launcher, python, runs
from workers.doctor.host import Host, read_devices
from workers.doctor.runs import UnsettledRuns, links, tokens_over
from workers.run.directory import RunDir
from workers.run.links import LIVE

T = TypeVar("T")

#: Time limits for opening the driver, for a card, for all devices, and for any other group of checks, in seconds.
DRIVER_S, CARD_S, DEVICES_S, POLL_S = 8.0, 4.0, 12.0, 8.0
#: Time limit for the check of the installation, which has tens of thousands of files, in seconds.
INSTALLATION_S = 20.0

#: The checks of each section.
ROOMS: Mapping[str, tuple[Callable[..., object], ...]] = {
    "host": (*driver.CHECKS, *cards.CHECKS, *cards.VISIBILITY_CHECKS, *launcher.CHECKS, *containers.CHECKS),
    "python": (*python.CHECKS, python.environments),
    "runs": (*runs.CHECKS, runs.orphans, runs.shared_memory),
}


def examine(settings: Settings, environ: Mapping[str, str], *, deep: bool) -> Iterator[Finding]:
    """Yield all findings of this machine. The checks that do not depend on the driver come first."""
    session = Session()
    opening = TimedCall(lambda: driver_facts(session), DRIVER_S)
    first = [
        _begun("runs", lambda: runs.UnsettledRuns(settings), runs.CHECKS),
        _begun("runs", lambda: settings, (runs.orphans, runs.shared_memory)),
        _begun("python", lambda: settings, (python.environments,)),
        _begun("host", lambda: settings, (*launcher.CHECKS, *containers.CHECKS), INSTALLATION_S),
    ]
    for findings in first:
        yield from findings()
    try:
        facts = _with_cards(session, opening.result())
    except CallFailed as why:
        seen, remedy = (
            f"the NVIDIA driver hangs: {why}",
            "dmesg (NVRM, Xid) shows which card; a reset or a reboot helps",
        )
        yield replace(problem(seen, remedy), section="host", check=name_of(driver.driver))
        facts = DriverFacts(state=DriverState.BROKEN, words=str(why))
    else:
        devices = TimedCall(lambda: read_devices(settings), DEVICES_S)
        host = Host(settings=settings, environ=environ, driver=facts, devices=devices.result)
        for checks in (driver.CHECKS, cards.CHECKS, cards.VISIBILITY_CHECKS):
            yield from _begun("host", lambda: host, checks, 2 * DEVICES_S)()
    python_s = POLL_S + (python.DEEP_S if deep else 0.0)
    yield from _begun("python", lambda: python.Interpreter(environ, facts, deep=deep), python.CHECKS, python_s)()


def _begun(
    section: str, read: Callable[[], T], checks: Sequence[Check[T]], limit_s: float = POLL_S
) -> Callable[[], list[Finding]]:
    """Begin to run *checks*, and return a function that waits for their findings."""
    call = TimedCall(lambda: list(examined(section, read(), checks)), limit_s)

    def findings() -> list[Finding]:
        try:
            return call.result()
        except CallFailed as why:
            return [replace(unknown(f"it could not be checked: {why}"), section=section, check=name_of(checks[0]))]

    return findings


def _with_cards(session: Session, facts: DriverFacts) -> DriverFacts:
    """Return *facts* with the facts of each card. A card that hangs is in trouble, and does not delay the others."""
    calls = [TimedCall(partial(card_facts, session, index), CARD_S) for index in range(facts.count)]
    found = []
    for index, call in enumerate(calls):
        try:
            found.append(call.result())
        except CallFailed as why:
            found.append(CardFacts(index=index, trouble=f"it hangs: {why}"))
    return replace(facts, cards=tuple(found))


def remove_dangling_links(settings: Settings) -> Iterator[str]:
    """Remove the links below ``runs/live`` whose run directories are gone.

    A new run is not affected, because its directory is created before its link.
    """
    for job_id, token in links(settings.runs_dir):
        link = settings.runs_dir / LIVE / f"{job_id}.{token}"
        if not os.path.lexists(settings.runs_dir / str(job_id) / token):
            link.unlink(missing_ok=True)
            yield f"removed {link}: its run directory is gone"


def tidy_stale_directories(settings: Settings) -> Iterator[str]:
    """Settle the runs that are certainly over and have neither a shim nor a worker. Their logs stay.

    Each run is locked first, and checked again under the lock.
    """
    for run in UnsettledRuns(settings).runs:
        if not (run.is_left and run.is_over):
            continue
        directory = RunDir(run.directory.path)
        fd = directory.try_lock()
        if fd is None:
            continue  # a worker or a shim has locked the run meanwhile
        try:
            if run.token in tokens_over(settings, [(run.job_id, run.token)]):
                directory.settle()
                yield f"tidied up {directory.path}: job {run.job_id} has gone on without this run; its log stays"
        except Unreachable:
            continue  # without an answer the run is not certainly over
        finally:
            os.close(fd)


REPAIRS = (remove_dangling_links, tidy_stale_directories)


def repair(settings: Settings) -> Iterator[str]:
    """Make every repair, and yield a line for each thing done and for each failure."""
    for each in REPAIRS:
        try:
            yield from each(settings)
        except OSError as error:
            yield f"could not {each.__name__.replace('_', ' ')}: {error.strerror}: {error.filename}"


def trouble_of(part: str, queue: JobQueue, settings: Settings) -> str:
    """Return what is wrong with the *part* ``host`` or ``recorder``, empty if nothing is.

    Raises:
        StoreUnreachable: the store does not answer.

    """
    silent_s = SILENT_HEARTBEATS * settings.heartbeat_s
    return _of_host(queue, settings.host, silent_s) if part == "host" else _of_recorder(queue, settings, silent_s)


def _of_host(queue: JobQueue, host: str, silent_s: float) -> str:
    devices = queue.devices.all(host)
    silent = [each for each in devices if each.seen_s_ago > silent_s]
    if not devices:
        return f"host {host} serves no device: see the logs of its workers"
    if silent:
        ago = format_duration(max(each.seen_s_ago for each in silent))
        return f"{len(silent)} of {len(devices)} devices of host {host} are silent for up to {ago}: see their logs"
    return ""


def _of_recorder(queue: JobQueue, settings: Settings, silent_s: float) -> str:
    """Judge the recorder by the oldest event that waits for it, and by the reaper in its process."""
    _, waits_s = queue.outbox.backlog()
    if waits_s is not None and waits_s > BEHIND_S:
        return f"the history is {format_duration(waits_s)} behind: does the database answer?"
    facts = queue_facts(settings.redis_url, None)
    if facts.reaped_ms is None:
        return "no reaper has run: the recorder has not started"
    ago_s = facts.ago_s(facts.reaped_ms)
    return f"the recorder's process is silent for {format_duration(ago_s)}" if ago_s > silent_s else ""
