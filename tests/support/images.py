"""Images for the tests of containers: a tree with busybox, for Podman without root and for Charliecloud."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from submitters import People

from workers.shim.containers import ENGINES, UNIFIED, has_subordinate_ids

#: The image in the store of Podman.
NAME = "localhost/gpuqueue-test:1"
ALL_IDS = "1-4294967294"
#: What Charliecloud binds in each image.
FILES = ("etc/passwd", "etc/group", "etc/hosts", "etc/resolv.conf")


def program(engine: str) -> str:
    """Return the program of *engine*. The test is skipped where it, or busybox, is missing."""
    path = shutil.which(ENGINES[engine].program)
    if path is None or shutil.which("busybox") is None:
        pytest.skip(f"needs {ENGINES[engine].program} and busybox (apt install podman charliecloud busybox-static)")
    return path


def make_tree(folder: Path) -> Path:
    """Make a tree with busybox in *folder*, and return it."""
    for name in ("bin", "dev", "etc", "home", "mnt", "proc", "root", "sys", "tmp", "run", "var/tmp"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for name in FILES:
        (folder / name).touch()
    busybox = str(shutil.which("busybox"))
    shutil.copy(busybox, folder / "bin" / "busybox")
    listed = subprocess.run([busybox, "--list"], capture_output=True, text=True, check=True, timeout=60).stdout.split()
    for name in {*listed} - {"busybox"}:
        (folder / "bin" / name).symlink_to("busybox")
    (folder / "ch").mkdir()
    (folder / "ch" / "environment").write_text("PATH=/bin\nOF_IMAGE=yes\n")
    return folder


class PodmanUser:
    """An account whose Podman has the image NAME. With *ids* it may use further user ids."""

    def __init__(self, people: People, name: str, *, ids: bool) -> None:
        self.program = program("podman")
        self.account = people.add(name, "-G", people.group)
        self._people, self._home = people, Path(self.account.pw_dir)
        self.close()  # of an earlier account with this id, whose test was killed
        if ids:
            first = 1_000_000 + 65536 * (self.account.pw_uid % 1000)
            span = f"{first}-{first + 65535}"
            people.change(self.account.pw_name, "--add-subuids", span, "--add-subgids", span)
        elif has_subordinate_ids(self.account.pw_uid, self.account.pw_name):  # some machines give them to each account
            people.change(self.account.pw_name, "--del-subuids", ALL_IDS, "--del-subgids", ALL_IDS)
        self._settings = self._home / ".config" / "containers" / "containers.conf"
        self._settings.parent.mkdir(parents=True, exist_ok=True)
        # crun does not know a host that has the old control groups beside the unified ones.
        self._settings.write_text("" if Path(UNIFIED).exists() else '[engine]\nruntime = "runc"\n')
        tree = make_tree(self._home / "tree")
        self.shell(f"chown -R {self.account.pw_uid}:{self.account.pw_gid} {self._home}", as_root=True)
        changes = "--change ENV=PATH=/bin --change ENV=OF_IMAGE=yes"
        made = self.shell(f"tar -C {tree} --owner=0 --group=0 -c . | podman import {changes} - {NAME}")
        assert made.returncode == 0, made.stderr

    @property
    def env(self) -> dict[str, str]:
        """Return the variables of a login."""
        account = self.account
        return {"PATH": "/usr/bin:/bin", "HOME": account.pw_dir, "USER": account.pw_name, "LOGNAME": account.pw_name}

    def shell(self, words: str, *, as_root: bool = False) -> subprocess.CompletedProcess[str]:
        """Run *words* in a shell as the account."""
        who = {} if as_root else {"user": self.account.pw_uid, "group": self.account.pw_gid, "extra_groups": []}
        return subprocess.run(
            ["/bin/sh", "-c", words],
            cwd="/",
            env=self.env,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
            **who,  # type: ignore[call-overload] # the keywords of one account
        )

    @contextlib.contextmanager
    def runtime(self, name: str) -> Iterator[None]:
        """Have Podman start containers by the program *name*."""
        before = self._settings.read_text()
        self._settings.write_text(f'[engine]\nruntime = "{name}"\n')
        try:
            yield
        finally:
            self._settings.write_text(before)

    def containers(self) -> list[str]:
        """Return the names of the containers that Podman knows of."""
        return self.shell("podman ps --all --format '{{.Names}}'").stdout.split()

    def running(self) -> list[str]:
        """Return the command lines of the account's processes, but for the one that holds its user namespace."""
        lines = (self._people.command_of(pid).replace(b"\0", b" ") for pid in self._people.running(self.account))
        return [line.decode() for line in lines if line and not line.startswith((b"catatonit", b"podman pause"))]

    def pids(self) -> list[int]:
        """Return the pids of the account's processes."""
        return self._people.running(self.account)

    def close(self) -> None:
        """End what is left, and remove what Podman has outside of the home."""
        self.shell("podman rm --all --force; kill -9 -1")
        shutil.rmtree(f"/tmp/podman-run-{self.account.pw_uid}", ignore_errors=True)


def container(engine: str, image: str, path: str, *binds: str) -> dict[str, object]:
    """Return the container of a run, as the worker writes it."""
    return {"engine": engine, "program": path, "image": image, "binds": binds, "devices": (), "outside": ()}
