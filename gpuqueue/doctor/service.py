"""Checks of the service, from a host that has joined it: its answer, the host's token, the clock, common settings."""

from __future__ import annotations

from collections.abc import Iterator

from gpuqueue.doctor.site import SKEW_S, Site
from gpuqueue.errors import GpuQueueError, NotAuthenticated
from gpuqueue.model.finding import Finding, Findings, ok, problem, warning
from gpuqueue.model.joining import SHARED
from gpuqueue.settings.settings import Settings
from gpuqueue.settings.sources import key_of
from gpuqueue.system.socket_http import is_local
from gpuqueue.system.timed_call import CallFailed
from gpuqueue.text.units import format_duration
from gpuqueue.version import VERSION

#: Time before the end of a token from which it should be renewed, in seconds.
SOON_S = 14 * 86400.0
_RENEW = (
    "gpuqueue token create --host {host} on the machine of the service, then here, as root: "
    "gpuqueue join {url} --token-file FILE"
)


def away(settings: Settings, why: CallFailed) -> Finding:
    """Return a finding on why the service did not answer as it should, with a remedy."""
    if isinstance(why.cause, NotAuthenticated):
        return problem(str(why).partition(": ")[0], _renew(settings))
    if isinstance(why.cause, GpuQueueError):
        return problem(str(why), "jobs go on, but their logs and results reach nobody: correct it here or there")
    return problem(f"the service at {settings.service_url} does not answer: {why}", "is gpuqueue serve running there?")


def answers(site: Site) -> Findings:
    """Check that the service answers, and is of this version."""
    version = site.service().there.version
    seen = f"gpuqueue {version} at {site.settings.service_url}"
    if version != VERSION:
        return warning(f"{seen}, and this is {VERSION}", "install one version on all machines")
    return ok(seen)


def token(site: Site) -> Findings:
    """Check that the token of this host is for its name, and stays valid."""
    answer, host = site.service(), site.settings.host
    there, here = answer.there, is_local(site.settings.service_url or "")
    if here and there.host != host:
        seen = f"the service calls this machine {there.host}, and its workers {host}"
        return problem(f"{seen}: no log reaches it", "set one host in the settings files of both, and restart")
    if here:
        return ok("none is needed: the service knows the account of the workers")
    if there.host != host:
        seen = f"the token is for the host {there.host}, and this is {host}: no log reaches it"
        return problem(seen, _renew(site.settings))
    until = there.token_expires_at
    if until is None:
        return ok(f"of host {there.host}, does not expire")
    left_s = (until - answer.now).total_seconds()
    seen = f"of host {there.host}, expires in {format_duration(max(0.0, left_s))}"
    return warning(seen, _renew(site.settings)) if left_s < SOON_S else ok(seen)


def clock(site: Site) -> Findings:
    """Check that the service's clock agrees with this machine's clock."""
    answer = site.service()
    ahead_s = (answer.there.now - answer.now).total_seconds()
    if abs(ahead_s) - answer.asked_s <= SKEW_S:
        return ok("as ours")
    which = "ahead of" if ahead_s > 0 else "behind"
    return warning(f"it is {abs(ahead_s):.1f} s {which} this machine's", "synchronise the clocks (chrony, ntp)")


def common(site: Site) -> Iterator[Finding]:
    """Check that the settings which all hosts have in common are those of the service."""
    here, there = site.settings, site.service().there
    differ = [name for name in SHARED if _of(here, name) != getattr(there, name)]
    for name in differ:
        seen = f"{_of(here, name)} here, and {getattr(there, name)} at the service"
        yield warning(seen, "use one value on all hosts, and restart", about=key_of(name))
    if not differ:
        yield ok("those that all hosts have in common are the same")


def _of(settings: Settings, name: str) -> object:
    found = getattr(settings, name)
    return str(found) if name == "on_partition" else found


def _renew(settings: Settings) -> str:
    return _RENEW.format(host=settings.host, url=settings.service_url)


CHECKS = (answers, token, clock, common)
