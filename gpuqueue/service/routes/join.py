"""Routes by which a worker host joins this site, and later compares its settings with those of the site."""

from __future__ import annotations

from datetime import datetime, timezone

from gpuqueue.errors import Refused
from gpuqueue.model.access import Action
from gpuqueue.model.joining import SHARED, HostSettings, Joined, JoinRequest, fit
from gpuqueue.service.call import Call
from gpuqueue.service.routes.described import Operations, operation
from gpuqueue.settings.settings import Settings
from gpuqueue.system.account import users_group
from gpuqueue.text.sanitize import brief
from gpuqueue.version import VERSION

router = Operations("hosts")


@operation(router, "GET /host/settings", may=Action.SERVE_JOBS)
def get_host_settings(call: Call) -> HostSettings:
    """Return the settings that a worker host must have in common with its site, and the time. It has no password."""
    return _settings_of(call)


@operation(router, "POST /host/join")
def join_site(call: Call, body: JoinRequest) -> Joined:
    """Let a worker host join this site. The answer has the password of the store."""
    if body.dry_run:
        call.must(Action.SERVE_JOBS)
        return _joined(call, body)
    asked = {"host": call.caller.account, "version": body.version}
    with call.change(Action.SERVE_JOBS, "join", detail=asked):
        return _joined(call, body)


def _joined(call: Call, wanted: JoinRequest) -> Joined:
    """Return what the host needs.

    Raises:
        Refused: the host has another version, or the store of this site cannot be reached by other hosts.

    """
    settings = call.connection.settings
    if not fit(wanted.version, VERSION):
        raise Refused(
            f"this host has gpuqueue {brief(wanted.version)} and the service {VERSION}: install the same minor version"
        )
    if settings.hosts_redis_url is None:
        raise Refused(_unreachable_store(settings))
    redis_url = "" if wanted.dry_run else settings.hosts_redis_url
    return Joined(settings=_settings_of(call), redis_url=redis_url, redis_ca=_certificate(settings))


def _unreachable_store(settings: Settings) -> str:
    remedy = "see docs/howto/second-host.md, setting hosts_redis_url"
    if settings.embedded:
        return f"the store of this site is the embedded one, which other machines cannot reach: {remedy}"
    return f"the service does not know how other machines reach the store: {remedy}"


def _certificate(settings: Settings) -> str | None:
    if settings.hosts_redis_ca is None:
        return None
    try:
        return settings.hosts_redis_ca.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise Refused(f"the service cannot read the certificate {settings.hosts_redis_ca}: {error}") from error


def _settings_of(call: Call) -> HostSettings:
    settings, token = call.connection.settings, call.caller.token_id
    found = None if token is None else call.connection.database.find_token(token)
    shared = {name: getattr(settings, name) for name in SHARED}
    return HostSettings(
        host=call.caller.account,
        version=VERSION,
        now=datetime.now(timezone.utc),
        token_expires_at=None if found is None else found[0].expires_at,
        group=users_group(),
        **{**shared, "on_partition": str(settings.on_partition)},
    )
