"""Checks of the launcher, on a host whose jobs run as their submitters."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from gpuqueue.installation.site import TICKET_KEY, WORKERS_CONFIG
from gpuqueue.model.finding import Finding, Findings, note, ok, problem, unknown
from gpuqueue.settings.settings import Settings
from gpuqueue.system.account import name_of
from gpuqueue.system.socket_http import is_local
from workers.launcher.installation import first_changeable
from workers.launcher.main import changeable
from workers.shim import launched


def _socket(settings: Settings) -> str | None:
    """Return the launcher's socket; None if jobs run as the account of the worker, or if the workers have another."""
    return settings.launcher_in_use if settings.workers_account is None else None


def _owner(path: str | Path) -> int | None:
    try:
        return os.lstat(path).st_uid
    except OSError:
        return None


def _name(uid: int | None) -> str:
    return "nobody" if uid is None else name_of(uid)


def launcher(settings: Settings) -> Iterator[Finding]:
    """Check that the launcher answers, serves the account of the workers, and that its socket cannot be replaced."""
    socket = _socket(settings)
    if socket is None:
        return
    who, served, expected = os.geteuid(), _owner(socket), _owner(settings.state_dir)
    trouble = _trouble(socket, is_workers=expected == who)
    open_directory = _open_directory(Path(socket).parent)
    if trouble and who not in {0, expected}:
        yield unknown(f"only root and {_name(expected)} can see the launcher", "run it as one of them")
    elif served is not None and expected is not None and served != expected:
        seen = f"{socket} is for {_name(served)}, and the workers are {_name(expected)}'s"
        is_of_service = settings.service_url is None and WORKERS_CONFIG.exists()
        correct = f'set workers_account = "{_name(served)}" in the settings of the service'
        yield problem(seen, correct if is_of_service else f"start the launcher with --account {_name(expected)}")
    elif trouble:
        seen = f"jobs run as their submitters, and {socket} cannot be used: {trouble}"
        yield problem(seen, "systemctl status gpuqueue-launcher; without systemd, gpuqueue-worker launcher as root")
    elif open_directory is not None:
        seen = f"{open_directory} can be changed by others than root, and so the socket {socket}"
        yield problem(seen, "set launcher to a socket in a directory of root, and start the launcher with it")
    else:
        yield ok(f"{socket} answers, for {_name(served)}")


def _open_directory(path: Path) -> str | None:
    return next(changeable([str(path)], sticky=True), None) if path.is_dir() else None


def _trouble(path: str, *, is_workers: bool) -> str:
    """Return why the launcher cannot be used. It greets the account of the workers only."""
    try:
        if is_workers:
            launched.greet(path)
        else:
            launched.connect(path).close()
    except OSError as error:
        return error.strerror or str(error)
    return ""


def installation(settings: Settings) -> Findings:
    """Check that nobody but root can change what starts jobs as other people."""
    if _socket(settings) is None:
        return ()
    path = first_changeable()
    if path is None:
        return ok("only root can change gpuqueue and its Python")
    seen = f"{path} can be changed by others than root, who could then run jobs as everybody"
    return problem(seen, "install gpuqueue and its Python where only root can write, such as /opt")


def tickets(settings: Settings) -> Findings:
    """Check that the workers cannot read the key by which the launcher knows the jobs that the service has signed."""
    if _socket(settings) is None:
        return ()
    try:
        key = os.lstat(TICKET_KEY)
    except OSError:
        seen = f"jobs need no signature here (there is no {TICKET_KEY}): workers can start anything as their submitters"
        return note(seen, "docs/howto/jobs-as-users.md, section Signed jobs")
    url, owner, workers = settings.service_url, key.st_uid, _owner(settings.state_dir)
    service = _owner(urlsplit(url).path) if url is not None and is_local(url) else None
    is_shared = bool(key.st_mode & (stat.S_IRWXG | stat.S_IRWXO))
    if owner == 0 and not is_shared:
        return ok(f"only root can read {TICKET_KEY}")
    if owner == service != workers and not is_shared:
        return ok(f"only root and {_name(owner)}, the account of the service, can read {TICKET_KEY}")
    seen = f"{TICKET_KEY} can be read by {_name(owner)}" + (" and others" if is_shared else "")
    if url is None and owner == workers and not is_shared:
        return note(f"{seen}, the account of the service and of the workers here: it guards the other hosts")
    return problem(seen, f"chown root: {TICKET_KEY}; chmod 400 {TICKET_KEY}")


def workers_account(settings: Settings) -> Findings:
    """Check that the launcher starts jobs for the account that the service takes for the workers."""
    named = settings.workers_account
    if named is None or settings.launcher_in_use is None:
        return ()
    served = _owner(settings.launcher_in_use)
    if served is None:
        return unknown("the launcher does not run, which knows the account of the workers", "start gpuqueue-launcher")
    if _name(served) == named:
        return ok(f"{named}, as for the launcher")
    seen = f"workers_account is {named}, and the launcher starts jobs for {_name(served)}"
    return problem(seen, f'set workers_account = "{_name(served)}", and restart gpuqueue-serve')


CHECKS = (launcher, installation, tickets, workers_account)
