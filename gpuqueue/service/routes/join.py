"""Routes by which a worker host joins this site, and later compares its settings with those of the site."""

from __future__ import annotations

from datetime import datetime, timezone

from starlette.requests import Request
from starlette.responses import Response

from gpuqueue.errors import Refused
from gpuqueue.model.access import Action
from gpuqueue.model.joining import SHARED, HostSettings, Joined, JoinRequest, fit
from gpuqueue.service.call import Call
from gpuqueue.service.routes.described import Operations, route
from gpuqueue.service.site import body_of, site_of
from gpuqueue.settings.settings import Settings
from gpuqueue.system.account import users_group
from gpuqueue.text.sanitize import brief
from gpuqueue.version import VERSION

router = Operations("hosts")


@route(router, "GET /host/settings", answer=HostSettings)
async def get_host_settings(request: Request) -> Response:
    """Return the settings that a worker host must have in common with its site, and the time. It has no password."""

    def work(call: Call) -> HostSettings:
        call.must(Action.SERVE_JOBS)
        return _settings_of(call)

    return await site_of(request).answer(request, work)


@route(router, "POST /host/join", answer=Joined, body=JoinRequest)
async def join_site(request: Request) -> Response:
    """Let a worker host join this site. The answer has the password of the store."""
    wanted = await body_of(request, JoinRequest)

    def work(call: Call) -> Joined:
        if wanted.dry_run:
            call.must(Action.SERVE_JOBS)
            return _joined(call, wanted)
        asked = {"host": call.caller.account, "version": wanted.version}
        with call.change(Action.SERVE_JOBS, "join", detail=asked):
            return _joined(call, wanted)

    return await site_of(request).answer(request, work)


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
