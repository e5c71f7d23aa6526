"""Checks of the container engine that the settings of this host name. One starts the smallest container there is."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from gpuqueue.model.container import Engine
from gpuqueue.model.finding import Finding, note, ok, problem, warning
from gpuqueue.settings.settings import Settings
from gpuqueue.system.account import name_of
from workers.shim.containers import ENGINES, MAX_WORDS, Inside, has_subordinate_ids
from workers.steps.container import engine_of

#: Files that say whether an ordinary account may make a user namespace, and the value that forbids it.
FORBIDS = {
    "proc/sys/user/max_user_namespaces": "0",
    "proc/sys/kernel/unprivileged_userns_clone": "0",
    "proc/sys/kernel/apparmor_restrict_unprivileged_userns": "1",
}
#: Where descriptions of devices for containers are.
CDI = ("etc/cdi", "var/run/cdi")
GUIDE = "docs/howto/containers.md"
#: How long the engine may take to start and end the smallest container, and to remove one that hangs, in seconds.
TRIAL_S, REMOVAL_S = 12.0, 4.0
#: The directories of this host that have its programs, and the places that an engine binds over in each tree.
PROGRAMS = ("usr", "bin", "lib", "lib64")
PLACES = ("dev", "proc", "sys", "tmp", "var/tmp", "home", "root", "mnt", "ch")
FILES = ("etc/passwd", "etc/group", "etc/hosts", "etc/hostname", "etc/resolv.conf", "run/.containerenv")


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
    yield from _troubles(name, settings, root)
    if settings.launcher_in_use is not None:
        yield note(
            f"{name} is {program}; no container was started: here jobs start them as their submitters",
            "as one of them: gpuqueue run --mem 100M --container IMAGE -- true",
        )
    elif error := _trial(name, program):
        seen = f"{name}, which is {program}, starts no container as {name_of(os.geteuid())}: {error}"
        yield problem(seen, f"mend what it names; jobs with --container fail like that: {GUIDE}")
    elif name == Engine.DOCKER:
        yield ok(f"docker is {program}, and its daemon answers; no container was started, which needs an image")
    else:
        yield ok(f"{name} is {program}, and has started a container, without an image and without a GPU")


def _trial(name: str, program: str) -> str:
    """Have the engine run ``true`` as it runs a job, in a tree of this host's own programs. Return why it cannot."""
    if name == Engine.DOCKER:
        return _error_of([program, "version", "--format", "{{.Server.Version}}"], dict(os.environ), TRIAL_S)
    engine = ENGINES[name]
    with tempfile.TemporaryDirectory(prefix="gpuqueue-doctor-", ignore_cleanup_errors=True) as folder:
        tree = Path(folder, "tree")
        binds = _make_tree(tree)
        env = {
            "USER": name_of(os.geteuid()),
            **os.environ,
            "GPUQUEUE_JOB_ID": "0",
            "GPUQUEUE_TOKEN": f"0.doctor{os.getpid()}",
        }
        fields = {"engine": name, "program": program, "image": str(tree), "binds": binds, "devices": (), "outside": env}
        inside = Inside(["/bin/true"], env, folder, fields, None, pty=False, typed=False)
        try:
            words, env = engine.command(inside)
        except OSError as error:
            return str(error.strerror)
        if name == Engine.PODMAN:
            words.insert(words.index("run") + 1, "--rootfs")
        failure = _error_of(words, env, TRIAL_S)
        if failure and (removal := engine.removal(program, inside.name)):
            _error_of(removal, env, REMOVAL_S)
        return failure


def _make_tree(tree: Path) -> list[str]:
    """Make the root directory of a container that has the programs of this host, and return what to bind there."""
    for place in (*PLACES, "etc", "run"):
        (tree / place).mkdir(parents=True, exist_ok=True)
    for name in FILES:
        (tree / name).touch()
    binds = []
    for directory in (Path("/", name) for name in PROGRAMS):
        if directory.is_symlink():
            (tree / directory.name).symlink_to(directory.readlink())
        elif directory.is_dir():
            (tree / directory.name).mkdir()
            binds.append(f"{directory}:{directory}")
    return binds


def _error_of(words: Sequence[str], env: dict[str, str], limit_s: float) -> str:
    """Run a command and return why it fails, with its last words; an empty text if it succeeds."""
    try:
        done = subprocess.run(
            words,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=limit_s,
            check=False,
            start_new_session=True,
        )
    except subprocess.TimeoutExpired:
        return f"it did not end within {limit_s:g} s"
    except OSError as error:
        return str(error.strerror)
    lines = (done.stderr or done.stdout).decode(errors="replace").strip().splitlines()
    return "" if done.returncode == 0 else " ".join(lines[-1:])[:MAX_WORDS] or f"exit code {done.returncode}"


def _troubles(name: str, settings: Settings, root: Path) -> Iterator[Finding]:
    """Yield what keeps the engine *name* from working, or from working for all."""
    forbidding = [path for path, value in FORBIDS.items() if _text(root / path) == value]
    if name in {Engine.PODMAN, Engine.CHARLIECLOUD} and forbidding:
        seen = f"/{forbidding[0]} keeps ordinary accounts from making user namespaces, which {name} needs"
        yield warning(seen, f"allow them to {name}: {GUIDE}")
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
