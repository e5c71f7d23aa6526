"""Checks of the queue in the store: its layout, devices, jobs, leases and the transfer of events to the history."""

from __future__ import annotations

from collections.abc import Iterator

from gpuqueue.doctor.processes import WITH_ITS_DEVICES, is_meant
from gpuqueue.doctor.site import SKEW_S, Site
from gpuqueue.embedded.machine import Machine
from gpuqueue.model.event import BEHIND_S
from gpuqueue.model.finding import Finding, Findings, note, ok, problem, unknown, warning
from gpuqueue.queue import keys
from gpuqueue.queue.diagnostics import MOST_NAMED, DeviceFacts
from gpuqueue.queue.drains import Drain, DrainOrigin
from gpuqueue.queue.lease import SILENT_HEARTBEATS
from gpuqueue.settings.settings import Settings
from gpuqueue.system.process import is_locked
from gpuqueue.system.timed_call import CallFailed
from gpuqueue.text.units import format_duration
from gpuqueue.version import VERSION
from gpuqueue.words.values import PID_HOST, REPAIR_OR_CPU, without_gpu, without_processes

#: Delay of the history above which the recorder counts as missing, in seconds. Above BEHIND_S it counts as slow.
LOST_S = 600.0


def away(_: Settings, why: CallFailed) -> Finding:
    """Return the finding that what the store holds cannot be read."""
    return unknown(f"the contents of the store cannot be read: {why}", "repair the store first")


def opened(site: Site) -> Findings:
    """Check that the store was opened for gpuqueue, with this version's layout."""
    queue = site.queue()
    if queue.epoch is None and queue.rebuilding:
        seen = "the store lost its data and is being rebuilt from the history; running jobs go on"
        return problem(
            seen, "wait a moment. If it stays: is the history database there (see below)? gpuqueue up rebuilds it too"
        )
    if queue.epoch is None:
        seen = "the store was never opened for gpuqueue, or lost its data; running jobs go on"
        return problem(seen, "gpuqueue up restores what the history has")
    if queue.layout != keys.LAYOUT:
        seen = f"its layout is {queue.layout or 'unknown'}, and this gpuqueue knows {keys.LAYOUT}"
        return problem(seen, "use the version of gpuqueue that its workers have")
    if queue.claims_from_ms is not None and queue.is_paused:
        left_s = -queue.ago_s(queue.claims_from_ms)
        when = f"in {format_duration(left_s)}" if left_s > 0 else "with the next check of a worker, within seconds"
        return note(f"it lost its data and was rebuilt: jobs start again {when}")
    return ok(f"epoch {queue.epoch}, layout {queue.layout}")


# ---- devices ---------------------------------------------------------------------------------------------------------


def devices(site: Site) -> Iterator[Finding]:
    """Check that each device has a worker and takes jobs."""
    queue = site.queue()
    silent_s = SILENT_HEARTBEATS * site.settings.heartbeat_s
    silent = [each for each in queue.devices if each.status.seen_s_ago > silent_s]
    closed = [each for each in queue.devices if each.status.trouble is not None and each not in silent]
    drained = [each for each in queue.devices if each.status.drains and each not in silent]
    well = len(queue.devices) - len({each.name for each in (*silent, *closed, *drained)})
    yield (ok(f"{well} of {len(queue.devices)} take jobs") if queue.devices else note("no worker has announced one"))
    for each in silent:
        yield _silent(site, each)
    for each in closed:
        seen, remedy = f"it takes no new job: {each.status.trouble}", "it comes back by itself once that is over"
        yield warning(seen, remedy, about=each.name)
    for each in queue.devices:
        lacking = without_gpu(each.status)
        if lacking is not None:
            yield warning(lacking, REPAIR_OR_CPU, about=each.name)
        blind = without_processes(each.status)
        if blind is not None:
            yield warning(blind, PID_HOST, about=each.name)
    for each in queue.devices:
        yield from () if each in silent else _drains(site, each)
    hosts = {each.status.host: each.status.refusals for each in queue.devices}
    for host, refusals in sorted(hosts.items()):
        if refusals is not None and refusals.are_many:
            seen = f"it could not start {refusals.jobs} jobs in a row, the last one: {refusals.why}"
            remedy = "make the directories and programs of the jobs available there, or gpuqueue drain --all there"
            yield warning(seen, remedy, about=host)


def _silent(site: Site, device: DeviceFacts) -> Finding:
    here = device.status.host == site.settings.own_host
    seen = f"its worker has been silent for {format_duration(device.status.seen_s_ago)}"
    remedy = "gpuqueue up" if here else f"on {device.status.host}: gpuqueue doctor, gpuqueue up"
    machine = Machine(site.settings)
    host = machine.host_running() if here else None
    if host is not None and not is_meant(machine.served(host), device.status.device):
        remedy = WITH_ITS_DEVICES  # the host process does not start a worker for it
    if is_down(device):
        return note(f"{seen}: gpuqueue down took its machine down", "gpuqueue up there ends that", about=device.name)
    if not device.status.jobs:
        return warning(seen, remedy, about=device.name)
    jobs = ", ".join(str(job_id) for job_id in device.status.jobs)
    return problem(f"{seen}, and it holds job {jobs}", remedy, about=device.name)


def _drains(site: Site, device: DeviceFacts) -> Iterator[Finding]:
    yield from (_drained(site, device, drain) for drain in device.status.drains)
    for drain in device.status.planned_drains:
        seen = f"it takes only jobs that are over by {drain.since:%Y-%m-%d %H:%M} UTC"
        yield note(seen + (f": {drain.why}" if drain.why else ""), about=device.name)


def _drained(site: Site, device: DeviceFacts, drain: Drain) -> Finding:
    since = "" if drain.since is None else f", since {drain.since:%Y-%m-%d %H:%M} UTC"
    seen = f"it takes no new job: drained {drain}{since}" + (f": {drain.why}" if drain.why else "")
    index = device.status.device.index
    if drain.origin is DrainOrigin.DEATHS:
        remedy = f"look at those jobs' logs and at nvidia-smi; then gpuqueue resume {device.status.host}:{index}"
        return warning(seen, remedy, about=device.name)
    if drain.origin is DrainOrigin.PERSON:
        return note(seen, f"gpuqueue resume {device.status.host}:{index}, once its reason is gone", about=device.name)
    if drain.origin is DrainOrigin.UNTIL or device.status.host != site.settings.own_host:
        return note(seen, about=device.name)
    if is_locked(site.settings.state_dir / "up.lock"):
        return note(f"{seen}; a gpuqueue down is in progress", about=device.name)
    if Machine(site.settings).host_running() is None:
        return note(seen, "gpuqueue up ends that", about=device.name)
    remedy = "gpuqueue doctor --fix lets it take jobs again, as gpuqueue up would"
    return warning(f"{seen}; but no gpuqueue down runs: it was killed", remedy, about=device.name, fixable=True)


def is_down(device: DeviceFacts) -> bool:
    """Return whether the device is drained by ``gpuqueue down``."""
    return any(drain.origin is DrainOrigin.DOWN for drain in device.status.drains)


def versions(site: Site) -> Findings:
    """Check that the workers of other machines have this version."""
    others: dict[str, set[str]] = {}
    for each in site.queue().devices:
        if each.version not in {None, VERSION} and each.status.host != site.settings.own_host:
            others.setdefault(str(each.version), set()).add(each.status.host)
    if not others:
        return ok(f"all of {VERSION}")
    reported = "; ".join(f"{version} on {', '.join(sorted(hosts))}" for version, hosts in sorted(others.items()))
    return warning(f"this is {VERSION}, and there are workers of {reported}", "install one version on all machines")


def clocks(site: Site) -> Findings:
    """Check that the clocks of the devices' machines agree with the store's clock."""
    skewed = {
        each.status.host: each.clock_ahead_s
        for each in site.queue().devices
        if each.clock_ahead_s is not None and abs(each.clock_ahead_s) > SKEW_S
    }
    if not skewed:
        return ok("they agree")
    remedy = "synchronise the clocks (chrony, ntp): times in its logs do not match the history"
    return (warning(_skew(ahead_s), remedy, about=host) for host, ahead_s in sorted(skewed.items()))


def _skew(ahead_s: float) -> str:
    which = "ahead of" if ahead_s > 0 else "behind"
    return f"its clock was {abs(ahead_s):.1f} s {which} the store's when its workers started"


# ---- jobs ------------------------------------------------------------------------------------------------------------


def waiting(site: Site) -> Findings:
    """Check that a device exists if jobs wait."""
    queue = site.queue()
    jobs = f"{queue.waiting} waiting, {queue.active} active"
    if queue.waiting and not queue.devices:
        return warning(f"{jobs}, and no worker has announced a device", "gpuqueue up, on a machine that is to run them")
    return ok(jobs)


def arrays(site: Site) -> Findings:
    """Check for arrays whose progress could not be restored after a loss of the store's data."""
    torn = [str(array_id) for array_id in site.queue().torn_arrays]
    if not torn:
        return ok("the progress of each is known")
    named = ", ".join(torn[:MOST_NAMED]) + (" and others" if len(torn) > MOST_NAMED else "")
    return warning(
        f"the store lost its data, and the progress of array {named} is unknown: no further member starts",
        f"gpuqueue history --array {torn[0]} shows what ran; submit the rest again, and gpuqueue cancel {torn[0]}",
    )


def leases(site: Site) -> Findings:
    """Check that expired leases are reaped."""
    queue = site.queue()
    if queue.overdue_since_ms is None:
        return ok("none is overdue")
    jobs = ", ".join(str(job_id) for job_id in queue.overdue)
    more = " and others" if queue.overdue_count > len(queue.overdue) else ""
    late_s = queue.ago_s(queue.overdue_since_ms)
    seen = f"no worker renews the lease of job {jobs}{more} any more, since {format_duration(late_s)}"
    if queue.grace_until_ms is not None and queue.grace_until_ms > queue.now_ms:
        left_s = -queue.ago_s(queue.grace_until_ms)
        return note(f"{seen}; the reaper was away, so they have another {format_duration(left_s)}")
    if late_s <= 2 * site.settings.heartbeat_s:
        return ok("some are about to be reclaimed")
    return problem(f"{seen}, and nothing reclaims it", "gpuqueue up: every worker and recorder does")


def reaper(site: Site) -> Findings:
    """Check that a reaper looks for expired leases."""
    queue = site.queue()
    if queue.reaped_ms is None:
        return ok("nothing ran yet")
    ago_s = queue.ago_s(queue.reaped_ms)
    seen = f"checked {format_duration(ago_s)} ago"
    if ago_s > SILENT_HEARTBEATS * site.settings.heartbeat_s and queue.active:
        return warning(f"{seen}: nothing checks for expired leases", "gpuqueue up: every worker and recorder does")
    return ok(seen)


# ---- transfer to the history -----------------------------------------------------------------------------------------


def outbox(site: Site) -> Findings:
    """Check that the history keeps up with the outbox, and is the history of this store."""
    queue = site.queue()
    box = queue.outbox
    if box.of_another_store:
        remedy = "point GPUQUEUE_DATABASE_URL at this queue's own, or at a new one; the history waits in the store"
        return problem("the history database belongs to another store: nothing is written to it", remedy)
    if box.unread_ms is None:
        return ok("the history has all")
    late_s = queue.ago_s(box.unread_ms)
    seen = f"{box.length} events wait for the history database, the oldest for {format_duration(late_s)}"
    if late_s <= BEHIND_S:
        return ok(seen)
    remedy = "nothing is lost. Is a recorder running (gpuqueue up)? Its log is recorder.log"
    return problem(seen, remedy) if late_s > LOST_S else warning(seen, remedy)


def ended(site: Site) -> Findings:
    """Check that ended jobs are deleted from the store once the history has them."""
    queue = site.queue()
    if queue.ended_since_ms is None:
        return ok("no ended job that the history has is left in the store")
    late_s = queue.ago_s(queue.ended_since_ms)
    seen = f"{queue.ended} ended jobs are in the store, the oldest for {format_duration(late_s)}"
    if late_s <= BEHIND_S:
        return ok(seen)
    return warning(seen, "they take up its memory until the history has them: is a recorder running?")


CHECKS = (opened, devices, versions, clocks, waiting, arrays, leases, reaper, outbox, ended)
