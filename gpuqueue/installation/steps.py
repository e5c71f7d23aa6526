"""The steps of an installation, in their order: of a site with its service, and of a worker host that joins one."""

from __future__ import annotations

from pathlib import Path

from gpuqueue.installation import joined, ticket_key
from gpuqueue.installation.accounts import ServiceAccount, UsersGroup
from gpuqueue.installation.files import Directory, File, Owned
from gpuqueue.installation.joined import SERVICE_CA, STORE_CA, TOKEN, Joining
from gpuqueue.installation.site import CONFIG, RUNS, STATE, UNITS, SystemSite
from gpuqueue.installation.step import Step
from gpuqueue.installation.units import config_text, unit_texts


def steps_of(site: SystemSite, *, force: bool = False) -> list[Step]:
    """Return what a site in system mode consists of, in the order in which it is made, without the running units."""
    settings = Owned(group=site.account, mode=0o640)
    config = File(path=CONFIG, text=config_text(), owned=settings, purpose="settings; yours to change", editable=True)
    return [*_account_and_places(site), config, ticket_key.of_site(site.account), *_units(site, force=force)]


def steps_of_host(site: SystemSite, joining: Joining | None, *, force: bool = False) -> list[Step]:
    """Return what a worker host that joins a service consists of, as above. To remove it, *joining* is not needed."""
    secret = Owned(owner=site.account, group=site.account, mode=0o600)
    settings, public = Owned(group=site.account, mode=0o640), Owned(mode=0o644)
    token = "" if joining is None else f"{joining.token}\n"
    service_ca = "" if joining is None else joining.ca
    store_ca = "" if joining is None else joining.found.redis_ca
    steps: list[Step] = [
        *_account_and_places(site),
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
    return [*steps, config, *key, *_units(site, force=force)]


def _account_and_places(site: SystemSite) -> list[Step]:
    account = site.account
    return [
        ServiceAccount(account),
        UsersGroup(site.group),
        Directory(
            path=STATE,
            owned=Owned(owner=account, group=account, mode=0o700),
            purpose="store, history, logs of the services" if site.serves else "locks and logs of the services",
        ),
        Directory(
            path=RUNS,
            owned=Owned(owner=account, group=account, mode=0o711),
            purpose="directories and logs of the runs",
        ),
    ]


def _units(site: SystemSite, *, force: bool) -> list[File]:
    return [
        File(path=unit_path(name), text=text, owned=Owned(mode=0o644), purpose="unit of systemd", forced=force)
        for name, text in unit_texts(site).items()
    ]


def unit_path(name: str) -> Path:
    """Return the path of the unit *name*."""
    return UNITS / f"{name}.service"
