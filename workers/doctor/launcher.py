"""Checks of the launcher, on a host whose jobs run as their submitters."""

from __future__ import annotations

import os
import pwd
import stat
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from gpuqueue.installation.site import TICKET_KEY, WORKERS_CONFIG
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.finding import Finding, Findings, note, ok, problem, unknown
from gpuqueue.settings.settings import Settings
from gpuqueue.system.socket_http import is_local
from workers.launcher.installation import first_changeable
from workers.launcher.main import changeable
from workers.shim import launched


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """The launcher of this host, as this account sees it."""

    #: Its socket; None if jobs run as the account of the worker.
    socket: str | None
    #: Why it cannot be used; empty if it answers.
    trouble: str = ""
    #: The account that it serves, and the account of the workers, which owns the state directory.
    served: int | None = None
    expected: int | None = None
    #: What others than root can change: of the directories of the socket, and of this installation.
    open_directory: str | None = None
    open_installation: str | None = None
    #: The owner and the mode of the key of the tickets; None if this host has none.
    key: tuple[int, int] | None = None
    #: Whether this host has joined a service, and the account of that service if it runs on this machine.
    is_joined: bool = False
    #: For the service: the setting ``workers_account``.
    named: str | None = None
    service: int | None = None


# ---- facts -----------------------------------------------------------------------------------------------------------


def facts_of(settings: Settings) -> Facts:
    """Return the facts about the launcher."""
    path = settings.launcher_in_use
    if path is None:
        return Facts(socket=None)
    if settings.workers_account is not None:
        return Facts(socket=None, served=_owner(path), named=settings.workers_account)
    url = settings.service_url
    expected = _owner(str(settings.state_dir))
    return Facts(
        socket=path,
        trouble=_trouble(path, is_workers=expected == os.geteuid()),
        served=_owner(path),
        expected=expected,
        open_directory=_open_directory(Path(path).parent),
        open_installation=first_changeable(),
        key=_key(),
        is_joined=url is not None,
        service=_owner(urlsplit(url).path) if url is not None and is_local(url) else None,
    )


def _key() -> tuple[int, int] | None:
    try:
        found = os.lstat(TICKET_KEY)
    except OSError:
        return None
    return found.st_uid, stat.S_IMODE(found.st_mode)


def _owner(path: str) -> int | None:
    try:
        return os.lstat(path).st_uid
    except OSError:
        return None


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


# ---- checks ----------------------------------------------------------------------------------------------------------


def launcher(facts: Facts) -> Iterator[Finding]:
    """Check that the launcher answers, serves the account of the workers, and that its socket cannot be replaced."""
    if facts.socket is None:
        return
    who = os.geteuid()
    if facts.trouble and who not in {0, facts.expected}:
        yield unknown(f"only root and {_name(facts.expected)} can see the launcher", "run it as one of them")
    elif facts.served is not None and facts.expected is not None and facts.served != facts.expected:
        seen = f"{facts.socket} is for {_name(facts.served)}, and the workers are {_name(facts.expected)}'s"
        is_of_service = not facts.is_joined and WORKERS_CONFIG.exists()
        correct = f'set workers_account = "{_name(facts.served)}" in the settings of the service'
        yield problem(seen, correct if is_of_service else f"start the launcher with --account {_name(facts.expected)}")
    elif facts.trouble:
        seen = f"jobs run as their submitters, and {facts.socket} cannot be used: {facts.trouble}"
        yield problem(seen, "systemctl status gpuqueue-launcher; without systemd, gpuqueue-worker launcher as root")
    elif facts.open_directory is not None:
        seen = f"{facts.open_directory} can be changed by others than root, and so the socket {facts.socket}"
        yield problem(seen, "set launcher to a socket in a directory of root, and start the launcher with it")
    else:
        yield ok(f"{facts.socket} answers, for {_name(facts.served)}")


def installation(facts: Facts) -> Findings:
    """Check that nobody but root can change what starts jobs as other people."""
    if facts.socket is None:
        return ()
    if facts.open_installation is None:
        return ok("only root can change gpuqueue and its Python")
    seen = f"{facts.open_installation} can be changed by others than root, who could then run jobs as everybody"
    return problem(seen, "install gpuqueue and its Python where only root can write, such as /opt")


def tickets(facts: Facts) -> Findings:
    """Check that the workers cannot read the key by which the launcher knows the jobs that the service has signed."""
    if facts.socket is None:
        return ()
    if facts.key is None:
        seen = f"jobs need no signature here (there is no {TICKET_KEY}): workers can start anything as their submitters"
        return note(seen, "docs/howto/jobs-as-users.md, section Signed jobs")
    owner, mode = facts.key
    if owner == 0 and not mode & (stat.S_IRWXG | stat.S_IRWXO):
        return ok(f"only root can read {TICKET_KEY}")
    if owner == facts.service != facts.expected and not mode & (stat.S_IRWXG | stat.S_IRWXO):
        return ok(f"only root and {_name(owner)}, the account of the service, can read {TICKET_KEY}")
    seen = f"{TICKET_KEY} can be read by {_name(owner)}" + ("" if not mode & 0o077 else " and others")
    if not facts.is_joined and owner == facts.expected and not mode & (stat.S_IRWXG | stat.S_IRWXO):
        return note(f"{seen}, the account of the service and of the workers here: it guards the other hosts")
    return problem(seen, f"chown root: {TICKET_KEY}; chmod 400 {TICKET_KEY}")


def _name(uid: int | None) -> str:
    try:
        return "nobody" if uid is None else pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def workers_account(facts: Facts) -> Findings:
    """Check that the launcher starts jobs for the account that the service takes for the workers."""
    if facts.named is None:
        return ()
    if facts.served is None:
        return unknown("the launcher does not run, which knows the account of the workers", "start gpuqueue-launcher")
    if _name(facts.served) == facts.named:
        return ok(f"{facts.named}, as for the launcher")
    seen = f"workers_account is {facts.named}, and the launcher starts jobs for {_name(facts.served)}"
    return problem(seen, f'set workers_account = "{_name(facts.served)}", and restart gpuqueue-serve')


CHECKS = (launcher, installation, tickets, workers_account)
