"""Real accounts of this machine, and a real launcher. Tests that use them are skipped where they are not root."""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import secrets
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import mkdtemp

import pytest
from bounded import until
from installed_copy import PYTHON, install, site_packages

from workers.launcher import cgroup_place

#: Where only root can write on any Linux system. It is empty again after a reboot.
ROOTS_PLACE = "/run"


class People:
    """Accounts with random names, their private homes, and the group whose members may run jobs.

    In *installation* is a copy of gpuqueue for them (installed_copy.py).
    """

    def __init__(self, base: Path, installation: Path) -> None:
        self.base, self.installation = base, installation
        self.launcher = site_packages(installation) / "workers" / "launcher" / "main.py"
        self._mark = secrets.token_hex(3)
        self._names: list[str] = []
        self.group = f"gq{self._mark}"
        _change("groupadd", self.group)
        self.team = f"gqt{self._mark}"
        _change("groupadd", self.team)
        self.alice = self.add("alice", "-G", f"{self.group},{self.team}")
        self.bob = self.add("bob", "-G", self.group)
        self.service = self.add("service", "-r")

    def add(self, name: str, *words: str) -> pwd.struct_passwd:
        """Add an account with a home that only it may enter, and return it. A second call returns the same one."""
        full = f"gq{name}{self._mark}"
        if full in self._names:  # the fixture of a module, which is set up again if another worker took a part of it
            return pwd.getpwnam(full)
        home = self.base / full
        _change("useradd", "-m", "-k", "", "-d", str(home), "-s", "/bin/sh", *words, full)
        self._names.append(full)
        home.chmod(0o700)
        return pwd.getpwnam(full)

    def delete(self, name: str) -> None:
        """Remove one account."""
        _change("userdel", "-f", name)
        self._names.remove(name)

    def change(self, name: str, *words: str) -> None:
        """Change an account with ``usermod``."""
        _change("usermod", *words, name)

    def groups_of(self, account: pwd.struct_passwd) -> set[int]:
        """Return the groups of an account."""
        return set(os.getgrouplist(account.pw_name, account.pw_gid))

    def shell(self, account: pwd.struct_passwd, words: str) -> subprocess.CompletedProcess[str]:
        """Run *words* in a shell as *account*, as in a login of its own."""
        return subprocess.run(
            ["/bin/sh", "-c", words],
            user=account.pw_uid,
            group=account.pw_gid,
            extra_groups=sorted(self.groups_of(account)),
            cwd="/",
            env={"PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    def running(self, account: pwd.struct_passwd) -> list[int]:
        """Return the pids of the account's processes, without zombies."""
        found = []
        for entry in Path("/proc").iterdir():
            try:
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0] if entry.name.isdigit() else "Z"
                if state != "Z" and entry.stat().st_uid == account.pw_uid:
                    found.append(int(entry.name))
            except OSError:
                continue
        return found

    @staticmethod
    def command_of(pid: int) -> bytes:
        """Return the command line of a process, nothing if it has ended meanwhile."""
        try:
            return Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            return b""

    def gid(self, group: str) -> int:
        """Return the id of a group."""
        return grp.getgrnam(group).gr_gid

    def remove(self) -> None:
        """Remove all accounts and groups."""
        for name in self._names:
            _change("userdel", "-f", name)
        for group in (self.group, self.team):
            _change("groupdel", group)


def _change(*words: str) -> None:
    """Run a program that changes the accounts, again while another one has locked them."""

    def done() -> bool:
        found = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
        assert found.returncode == 0 or "cannot lock" in found.stderr, found.stderr
        return found.returncode == 0

    until(done, what=" ".join(words))


class Launcher:
    """A launcher for the service account *account*, by default that of *people*."""

    def __init__(self, folder: Path, people: People, *words: str, account: str | None = None) -> None:
        self.socket, self.runs = str(folder / "launcher.sock"), folder / "runs"
        account = account or people.service.pw_name
        self._command = [str(PYTHON), "-I", "-S", "-X", "utf8", str(people.launcher)]
        self._command += ["--account", account, "--group", people.group, "--socket", self.socket]
        self._command += ["--runs", str(self.runs), *words]
        self.process = self.start()

    def start(self) -> subprocess.Popen[str]:
        """Start the process, and wait until it listens."""
        process = subprocess.Popen(self._command, stderr=subprocess.PIPE, text=True, start_new_session=True)
        assert process.stderr is not None
        line = process.stderr.readline()
        assert "for jobs of the group" in line, line
        self.process = process
        return process

    @property
    def cgroups(self) -> str | None:
        """Return the directory with the control groups of its runs, or None if this machine permits none."""
        return cgroup_place.of_launcher(self.socket)

    def kill(self) -> None:
        """Kill the process. Its guards stay."""
        self.process.kill()
        self.process.wait(timeout=30)
        if self.process.stderr is not None:
            self.process.stderr.close()


@pytest.fixture(scope="session")
def people() -> Iterator[People]:
    """Return real accounts of this machine, which are removed at the end."""
    if os.geteuid() != 0 or shutil.which("useradd") is None:
        pytest.skip("only root can add accounts and run the launcher, and useradd must be installed")
    base, code = Path(mkdtemp(prefix="gpuqueue-people-")), Path(mkdtemp(prefix="gpuqueue-test-", dir=ROOTS_PLACE))
    base.chmod(0o755)
    try:
        install(code)
        found = People(base, code)
        yield found
        found.remove()
    finally:
        for each in (base, code):
            shutil.rmtree(each, ignore_errors=True)


@pytest.fixture
def open_dir() -> Iterator[Path]:
    """Return a directory that every account may enter, unlike pytest's own."""
    found = Path(mkdtemp(prefix="gpuqueue-open-"))
    found.chmod(0o755)
    yield found
    shutil.rmtree(found, ignore_errors=True)


@pytest.fixture
def launch(people: People, open_dir: Path) -> Iterator[Callable[..., Launcher]]:
    """Return a function that starts a launcher for a service account, by default root."""
    started: list[Launcher] = []

    def start(*words: str, account: str = "root") -> Launcher:
        started.append(Launcher(open_dir, people, *words, account=account))
        return started[-1]

    yield start
    for each in started:
        each.kill()
        if each.cgroups is not None:
            with contextlib.suppress(OSError):
                Path(each.cgroups).rmdir()
