"""Checks of the store: whether it answers, is safe for jobs, and has enough memory and disk space."""

from __future__ import annotations

from pathlib import Path

from gpuqueue.doctor.site import SKEW_S, Site
from gpuqueue.doctor.state import room
from gpuqueue.errors import StoreNotReady
from gpuqueue.model.finding import Finding, Findings, note, ok, problem, unknown, warning
from gpuqueue.queue.absence import StoreTrouble, why_away
from gpuqueue.queue.connect import START_THERE
from gpuqueue.queue.safety import exposures, is_too_old, may_evict
from gpuqueue.settings.settings import Settings
from gpuqueue.system.timed_call import CallFailed
from gpuqueue.text.sanitize import without_password
from gpuqueue.text.units import format_bytes

#: The access rule that lets the user default read the whole log of writes, and not log in.
DEFAULT_USER = "off ~* &* +@all"
#: Shares of the memory limit (or of the machine's memory) above which the store is nearly full, and full.
NEARLY_FULL, FULL = 0.8, 0.95


def away(settings: Settings, why: CallFailed) -> Finding:
    """Return a finding on why the store is unreachable or not ready, with a remedy."""
    if isinstance(why.cause, StoreNotReady):
        seen, _, remedy = str(why).partition(": ")  # StoreNotReady messages have the form "fault: remedy"
        return problem(seen, remedy or "it runs, and its log has the reason")
    if settings.store_through_service:
        known, remedy = why_away(settings)
        return problem(f"the store does not answer{known and ': '}{known}", remedy)
    if settings.embedded:
        known, remedy = why_away(settings)
        return problem(f"no store answers at {settings.socket_path}{known and ': '}{known}", remedy)
    seen = str(why)  # StoreUnreachable messages name the address
    reason = None if why.cause is None else why.cause.__cause__
    if why.cause is None or reason is not None:
        seen = f"the store at {without_password(settings.redis_url)} does not answer: {reason or why}"
    return problem(seen, f"{START_THERE}. Running jobs go on until their grace is over")


def answers(site: Site) -> Findings:
    """Check that the store is new enough, has loaded its data and is a primary."""
    server = site.server()
    seen = f"{server.product} at {site.settings.store_shown}"
    if is_too_old(server):
        return problem(seen, "Redis 6.2 or newer, or any Valkey, is needed")
    if server.loading:
        return problem(f"{seen} is still loading its data", "wait a moment")
    if server.replica:
        return problem(f"{seen} is a replica", "point GPUQUEUE_REDIS_URL at the primary")
    return ok(seen)


def deaths(site: Site) -> Findings:
    """Check whether the embedded store died within the last day. The host process starts it again."""
    if not site.settings.embedded:
        return ()
    trouble = StoreTrouble.read(site.settings)
    if trouble is None or not trouble.is_recent:
        return ok("none within a day")
    return warning(trouble.text, f"no job was lost; more is in {site.settings.logs_dir / 'host.log'}")


def persistence(site: Site) -> Findings:
    """Check that the store persists each write before it acknowledges it."""
    server = site.server()
    if server.append_only is False:
        seen = "it keeps no log of its writes (appendonly no): when it ends, jobs that were acknowledged are lost"
        return problem(seen, "set appendonly yes, there and in its configuration file")
    if server.append_only is None or server.fsync is None:
        hidden = "appendonly" if server.append_only is None else "appendfsync"
        return note(f"its access rules hide {hidden}", "its administrator must set appendonly yes, appendfsync always")
    if server.fsync == "always":
        return ok("each write is on the disk before it is acknowledged (appendfsync always)")
    if server.fsync == "everysec":
        seen = "a power cut can take the jobs of the last second (appendfsync everysec)"
        return note(seen, "appendfsync always keeps them, for a fraction of a millisecond a submit")
    return warning(
        f"a power cut can take the jobs of half a minute (appendfsync {server.fsync})", "set appendfsync always"
    )


def transactions(site: Site) -> Findings:
    """Check that a store of others reads its transactions back when it starts."""
    drops = site.server().drops_transactions
    if site.settings.embedded:
        return ()
    if drops is None:
        seen = "its access rules hide the user default, who must have all commands and keys"
        return note(seen, "its administrator must check: ACL GETUSER default")
    if not drops:
        return ok("a restart keeps them")
    seen = "a restart drops transactions from its log of writes, and with them jobs: the user default is restricted"
    return problem(seen, f"there: ACL SETUSER default {DEFAULT_USER}, also in its file of rules")


def access(site: Site) -> Findings:
    """Check that only those who know a password reach the store, and that its certificate is checked."""
    found = exposures(site.settings.redis_url, site.server())
    if not found:
        return ok("a unix socket" if site.settings.redis_url.startswith("unix:") else "it requires a password")
    return (warning(seen, remedy) for seen, remedy in found)


def writes(site: Site) -> Findings:
    """Check that the store's last writes to its disk succeeded."""
    server = site.server()
    if server.failed_writes:
        seen = f"it could not write {' and '.join(server.failed_writes)} to its disk"
        return problem(seen, f"free some space in {server.directory or 'its directory'}, and see its log")
    return ok("the last ones succeeded")


def eviction(site: Site) -> Findings:
    """Check that the store does not evict keys when its memory runs out."""
    server = site.server()
    if server.evicted:
        seen = f"it has evicted {server.evicted} keys since it started: jobs may be missing"
        return problem(seen, "set maxmemory-policy noeviction; compare gpuqueue queue with what was submitted")
    if may_evict(server):
        seen = f"it would delete jobs when its memory is full (maxmemory-policy {server.policy})"
        if server.limit_bytes is None:
            return warning(f"{seen}; it has no memory limit yet", "set maxmemory-policy noeviction")
        return problem(seen, "set maxmemory-policy noeviction")
    if server.policy is None:
        return note("its access rules hide maxmemory-policy", "its administrator must set noeviction")
    return ok(f"maxmemory-policy {server.policy}")


def memory(site: Site) -> Findings:
    """Check that the store has memory for more jobs."""
    server = site.server()
    if server.used_bytes is None:
        return unknown("it does not report how much memory it uses")
    limit_bytes, whose = server.limit_bytes, "its maxmemory"
    if limit_bytes is None:
        limit_bytes, whose = server.system_bytes, "its machine's memory"
    used = f"{format_bytes(server.used_bytes)} used"
    if limit_bytes is None:
        return ok(used)
    seen = f"{used} of {format_bytes(limit_bytes)}, {whose}"
    share = server.used_bytes / limit_bytes
    if share > FULL:
        return problem(seen, "raise the limit; is the recorder writing? Ended jobs stay until the history has them")
    if share > NEARLY_FULL:
        return warning(seen, "raise the limit soon; is the recorder writing?")
    return ok(seen)


def disk(site: Site) -> Findings:
    """Check the free space on the disk of the store's data. Only a store on a unix socket is on this machine."""
    directory = site.server().directory
    if directory is None or not site.settings.redis_url.startswith("unix://"):
        return ()
    try:
        return room(Path(directory), where=f" in {directory}", full="a store that cannot write takes no job")
    except OSError:  # this account cannot see it
        return ()


def clock(site: Site) -> Findings:
    """Check that the store's clock agrees with this machine's clock."""
    server = site.server()
    ahead_s = server.clock_ahead_s
    if abs(ahead_s) - server.clock_error_s <= SKEW_S:
        return ok("as ours")
    which = "ahead of" if ahead_s > 0 else "behind"
    return warning(
        f"it is {abs(ahead_s):.1f} s {which} this machine's",
        "synchronise the clocks (chrony, ntp). No job is in danger, leases are judged on the store's clock; "
        "but times in logs and history do not match",
    )


CHECKS = (answers, deaths, access, persistence, transactions, writes, eviction, memory, disk, clock)
