"""The steps of an installation, in their order: of a site with its service, and of a worker host that joins one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from gpuqueue.installation import joined, ticket_key
from gpuqueue.installation.accounts import ServiceAccount, UsersGroup
from gpuqueue.installation.bytecode import Bytecode
from gpuqueue.installation.files import Directory, File, Owned
from gpuqueue.installation.joined import SERVICE_CA, STORE_CA, TOKEN, Joining
from gpuqueue.installation.site import (
    CONFIG,
    NO_HOME,
    NOTIFIER_ACCOUNT,
    RUNS,
    STATE,
    STORE,
    UNITS,
    WORKERS_CONFIG,
    SystemSite,
)
from gpuqueue.installation.step import Step
from gpuqueue.installation.units import config_text, unit_texts, workers_config_text

#: The directory in which gpuqueue is installed.
SITE = Path(__file__).resolve().parents[2]


def steps_of(site: SystemSite, *, force: bool = False) -> list[Step]:
    """Return what a site in system mode consists of, in the order in which it is made, without the running units."""
    of_service, of_workers = (Owned(group=name, mode=0o640) for name in (site.account, site.runner))
    settings, workers_settings = config_text(site), workers_config_text(site)
    files = (
        (CONFIG, settings, of_service, "settings of store, recorder and service; yours to change"),
        (WORKERS_CONFIG, workers_settings, of_workers, "settings of the workers; yours to change"),
    )
    configs = [
        File(path=path, text=text, owned=owned, purpose=purpose, editable=True) for path, text, owned, purpose in files
    ]
    key = ticket_key.of_site(site.account)
    return [*_accounts_and_places(site), *configs, key, Bytecode(SITE), *_units(site, force=force)]


def steps_of_host(site: SystemSite, joining: Joining | None, *, force: bool = False) -> list[Step]:
    """Return what a worker host that joins a service consists of, as above. To remove it, *joining* is not needed."""
    secret = Owned(owner=site.account, group=site.account, mode=0o600)
    settings, public = Owned(group=site.account, mode=0o640), Owned(mode=0o644)
    token = "" if joining is None else f"{joining.token}\n"
    service_ca = "" if joining is None else joining.ca
    store_ca = "" if joining is None else joining.found.redis_ca
    steps: list[Step] = [
        *_accounts_and_places(site),
        File(path=TOKEN, text=token, owned=secret, purpose="access token of this host", forced=True),
    ]
    for path, text, whose in ((SERVICE_CA, service_ca, "service"), (STORE_CA, store_ca, "store")):
        if text is not None:
            about = f"certificate of the authority of the {whose}"
            steps.append(File(path=path, text=text, owned=public, purpose=about, forced=True))
    config = File(
        path=CONFIG,
        text="" if joining is None else joined.config_text(joining),
        owned=settings,
        purpose="settings, with the password of the store; yours to change",
        editable=True,
        keeps_changes=False,
    )
    has_key = joining is None or site.has_ticket_key
    key = [ticket_key.of_host(None if joining is None else joining.ticket_key)] if has_key else []
    return [*steps, config, *key, Bytecode(SITE), *_units(site, force=force)]


def _accounts_and_places(site: SystemSite) -> list[Step]:
    account, runner = site.account, site.runner
    of_workers = Owned(owner=runner, group=runner, mode=0o700)
    steps: list[Step] = [ServiceAccount(runner, site.runner_state, "workers")]
    if site.serves:
        own, shared = Owned(owner=account, group=account, mode=0o700), Owned(owner=account, group=runner, mode=0o750)
        steps += [
            ServiceAccount(account, STATE, "store, recorder and service"),
            # It owns nothing, so uninstall removes it.
            ServiceAccount(NOTIFIER_ACCOUNT, NO_HOME, "messages to URLs of users", lasting=False),
            Directory(path=STATE, owned=own, purpose="store, history, logs of the services"),
            Directory(path=STORE, owned=shared, purpose="socket of the store, for the workers"),
        ]
    return [
        *steps,
        UsersGroup(site.group),
        Directory(path=site.runner_state, owned=of_workers, purpose="locks and logs of the workers"),
        Directory(path=RUNS, owned=replace(of_workers, mode=0o711), purpose="directories and logs of the runs"),
    ]


def _units(site: SystemSite, *, force: bool) -> list[File]:
    return [
        File(path=unit_path(name), text=text, owned=Owned(mode=0o644), purpose="unit of systemd", forced=force)
        for name, text in unit_texts(site).items()
    ]


def unit_path(name: str) -> Path:
    """Return the path of the unit *name*."""
    return UNITS / f"{name}.service"
