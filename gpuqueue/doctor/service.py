"""Checks of the service, from a host that has joined it: its answer, the host's token, the clock, common settings."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime, timezone

from gpuqueue.errors import BadRequest, GpuQueueError, NotAuthenticated
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.finding import Finding, Findings, ok, problem, warning
from gpuqueue.model.joining import SHARED, HostSettings
from gpuqueue.settings.settings import Settings
from gpuqueue.settings.sources import key_of
from gpuqueue.system.socket_http import is_local
from gpuqueue.system.timed_call import CallFailed
from gpuqueue.text.units import format_duration
from gpuqueue.version import VERSION

#: How much longer the service may take than other parts, in seconds: its own limit is higher.
PATIENCE_S = 5.0
#: Clock difference that makes the times in logs hard to read, in seconds.
SKEW_S = 5.0
#: Time before the end of a token from which it should be renewed, in seconds.
SOON_S = 14 * 86400.0
_RENEW = (
    "gpuqueue token create --host {host} on the machine of the service, then here, as root: "
    "gpuqueue join {url} --token-file FILE"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class ServiceFacts:
    """What the service says. ``asked_s`` is how long its answer took, and ``now`` the time here when it came."""

    settings: Settings
    there: HostSettings
    now: datetime
    asked_s: float


def service_facts(settings: Settings) -> ServiceFacts | None:
    """Return what the service says, None if this host has joined none.

    Raises:
        GpuQueueError: it does not answer, or does not accept the token of this host.

    """
    if settings.service_url is None:
        return None
    # Only a host that has joined a service needs these.
    from gpuqueue.client.first_call import ServiceAddress  # noqa: PLC0415 - as above
    from gpuqueue.client.joining import settings_of  # noqa: PLC0415 - as above

    token = _token(settings)
    began_s = time.monotonic()
    there = settings_of(ServiceAddress(url=settings.service_url, token=token, ca=settings.service_ca))
    now = datetime.now(timezone.utc)
    return ServiceFacts(settings=settings, there=there, now=now, asked_s=time.monotonic() - began_s)


def _token(settings: Settings) -> str:
    from gpuqueue.client.remote.credentials import token_in  # noqa: PLC0415 - only on a host that has joined

    if is_local(settings.service_url or ""):
        return ""  # the kernel says who calls
    if settings.service_token_file is None:
        raise BadRequest("there is no token of this host (setting service_token_file)")
    return token_in(settings.service_token_file)


def away(settings: Settings, why: CallFailed) -> Finding:
    """Return a finding on why the service did not answer as it should, with a remedy."""
    if isinstance(why.cause, NotAuthenticated):
        return problem(str(why).partition(": ")[0], _renew(settings))
    if isinstance(why.cause, GpuQueueError):
        return problem(str(why), "jobs go on, but their logs and results reach nobody: correct it here or there")
    return problem(f"the service at {settings.service_url} does not answer: {why}", "is gpuqueue serve running there?")


def answers(facts: ServiceFacts) -> Findings:
    """Check that the service answers, and is of this version."""
    seen = f"gpuqueue {facts.there.version} at {facts.settings.service_url}"
    if facts.there.version != VERSION:
        return warning(f"{seen}, and this is {VERSION}", "install one version on all machines")
    return ok(seen)


def token(facts: ServiceFacts) -> Findings:
    """Check that the token of this host is for its name, and stays valid."""
    here = is_local(facts.settings.service_url or "")
    if here and facts.there.host != facts.settings.host:
        seen = f"the service calls this machine {facts.there.host}, and its workers {facts.settings.host}"
        return problem(f"{seen}: no log reaches it", "set one host in the settings files of both, and restart")
    if here:
        return ok("none is needed: the service knows the account of the workers")
    if facts.there.host != facts.settings.host:
        seen = f"the token is for the host {facts.there.host}, and this is {facts.settings.host}: no log reaches it"
        return problem(seen, _renew(facts.settings))
    until = facts.there.token_expires_at
    if until is None:
        return ok(f"of host {facts.there.host}, does not expire")
    left_s = (until - facts.now).total_seconds()
    seen = f"of host {facts.there.host}, expires in {format_duration(max(0.0, left_s))}"
    return warning(seen, _renew(facts.settings)) if left_s < SOON_S else ok(seen)


def clock(facts: ServiceFacts) -> Findings:
    """Check that the service's clock agrees with this machine's clock."""
    ahead_s = (facts.there.now - facts.now).total_seconds()
    if abs(ahead_s) - facts.asked_s <= SKEW_S:
        return ok("as ours")
    which = "ahead of" if ahead_s > 0 else "behind"
    return warning(f"it is {abs(ahead_s):.1f} s {which} this machine's", "synchronise the clocks (chrony, ntp)")


def common(facts: ServiceFacts) -> Iterator[Finding]:
    """Check that the settings which all hosts have in common are those of the service."""
    differ = [name for name in SHARED if _of(facts.settings, name) != getattr(facts.there, name)]
    for name in differ:
        seen = f"{_of(facts.settings, name)} here, and {getattr(facts.there, name)} at the service"
        yield warning(seen, "use one value on all hosts, and restart", about=key_of(name))
    if not differ:
        yield ok("those that all hosts have in common are the same")


def _of(settings: Settings, name: str) -> object:
    found = getattr(settings, name)
    return str(found) if name == "on_partition" else found


def _renew(settings: Settings) -> str:
    return _RENEW.format(host=settings.host, url=settings.service_url)


CHECKS = (answers, token, clock, common)
