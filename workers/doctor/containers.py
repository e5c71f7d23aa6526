"""Checks of the container engine that the settings of this host name."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from gpuqueue.model.container import Engine
from gpuqueue.model.finding import Finding, note, ok, problem, warning
from gpuqueue.settings.settings import Settings
from gpuqueue.system.account import name_of
from workers.shim.containers import has_subordinate_ids
from workers.steps.container import engine_of

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


CHECKS = (containers,)
