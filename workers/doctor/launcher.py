"""Checks of the launcher, on a host whose jobs run as their submitters."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from gpuqueue.installation.site import TICKET_KEY, WORKERS_CONFIG
from gpuqueue.model.container import Engine
from gpuqueue.model.finding import Finding, Findings, note, ok, problem, unknown, warning
from gpuqueue.settings.settings import Settings
from gpuqueue.system.account import name_of
from gpuqueue.system.socket_http import is_local
from workers.launcher.installation import first_changeable
from workers.launcher.main import changeable
from workers.shim import launched
from workers.shim.containers import has_subordinate_ids
from workers.steps.container import engine_of


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


#: Files that say whether an ordinary account may make a user namespace, and the value that forbids it.
FORBIDS = {
    "proc/sys/user/max_user_namespaces": "0",
    "proc/sys/kernel/unprivileged_userns_clone": "0",
    "proc/sys/kernel/apparmor_restrict_unprivileged_userns": "1",
}
#: Where descriptions of devices for containers are.
CDI = ("etc/cdi", "var/run/cdi")


def containers(settings: Settings, root: Path = Path("/")) -> Iterator[Finding]:
    """Check that the container engine is installed and can work as jobs do here."""
    name, program = engine_of(settings.container_engine)
    if not name:
        return
    if program is None:
        yield problem(
            f"{settings.container_engine} is not installed: no job with --container starts",
            "install it, or change the setting container_engine and restart the workers",
        )
        return
    trouble = list(_troubles(name, settings, root))
    yield from trouble
    if not trouble:
        yield ok(f"{name} is {program}")


def _troubles(name: str, settings: Settings, root: Path) -> Iterator[Finding]:
    """Yield what keeps the engine *name* from working, or from working for all."""
    forbidding = [path for path, value in FORBIDS.items() if _text(root / path) == value]
    if name in {Engine.PODMAN, Engine.CHARLIECLOUD} and forbidding:
        seen = f"/{forbidding[0]} keeps ordinary accounts from making user namespaces, which {name} needs"
        yield warning(seen, f"allow them to {name}: docs/howto/containers.md")
    if name != Engine.PODMAN:
        return
    account = os.geteuid()
    if settings.launcher_in_use is not None:
        yield note(
            "jobs start no set-user-ID program here, and Podman needs one for accounts in /etc/subuid",
            "set container_engine to charliecloud, which needs none; or start the launcher with --allow-setuid",
        )
    elif account != 0 and not has_subordinate_ids(account, name_of(account)):
        yield note(
            f"{name_of(account)} has no ids in /etc/subuid, so it is root in containers", "usermod --add-subuids"
        )
    described = any(list((root / place).glob("*nvidia*")) for place in CDI if (root / place).is_dir())
    if (root / "dev" / "nvidiactl").exists() and not described:
        seen = "no file in /etc/cdi describes the GPUs of this host, so Podman gives no GPU to a container"
        yield problem(seen, "nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml, after each change of the driver")


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""


CONTAINER_CHECKS = (containers,)
